//! Processes that are gone before they can be looked at, and what of a connection is not seen.

use std::{
    env,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::AsFd,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use tailcomb::{
    attribute::{node::ProcFs, workload},
    clock,
};
use tailcomb_tests::{
    agent::Agent,
    case::{Case, Need},
    http::{Server, Step, chunk, read_until, write},
};

use crate::traffic::{Scrape, connect, until};

pub(crate) const CASES: &[Case] = &[
    Case { name: "edge_a_server_that_answers_once_and_exits_has_its_name", needs: &[Need::Kernel], run: one_shot },
    Case { name: "edge_a_process_for_each_connection_is_its_servers", needs: &[Need::Kernel], run: a_process_each },
    Case { name: "edge_upgrades_and_compressed_streams_are_said", needs: &[Need::Kernel], run: unseen },
];

/// Tells this binary what to be: see [`be_if_told`].
const ROLE: &str = "TAILCOMB_TEST_EDGE";
/// One that answers one request on a port and exits: `once:PORT`.
const ONCE: &str = "once:";
/// One that starts a process for each connection: `each:PORT`.
const EACH: &str = "each:";
/// That process, its connection as standard input.
const CHILD: &str = "child";

const COUNT: &str = "http_server_request_duration_seconds_count";
const REQUESTS: u32 = 20;

/// Is this process meant to be a server of this file? Then it is one until it ends, on its first thread. False: it is the test.
pub(crate) fn be_if_told() -> Result<bool> {
    let Some(role) = env::var_os(ROLE) else { return Ok(false) };
    let role = role.to_string_lossy();
    let listen = |port: &str| -> Result<TcpListener> { Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse()?))?) };
    if let Some(port) = role.strip_prefix(ONCE) {
        answer(listen(port)?.accept()?.0)?;
    } else if let Some(port) = role.strip_prefix(EACH) {
        for stream in listen(port)?.incoming() {
            let descriptor = std::os::fd::OwnedFd::from(stream?);
            Command::new(env::current_exe()?).env(ROLE, CHILD).stdin(descriptor).spawn()?.wait()?;
        }
    } else if role == CHILD {
        answer(TcpStream::from(std::io::stdin().as_fd().try_clone_to_owned()?))?;
    } else {
        bail!("no role `{role}`");
    }
    Ok(true)
}

fn answer(mut stream: TcpStream) -> Result<()> {
    read_until(&mut stream, b"\r\n\r\n")?;
    Ok(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")?)
}

/// A process that is ended when this is.
struct Role(Child);

impl Role {
    fn start(role: &str, port: u16) -> Result<Self> {
        Ok(Self(Command::new(env::current_exe()?).env(ROLE, format!("{role}{port}")).stdin(Stdio::null()).spawn()?))
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One request, once somebody listens.
fn ask(port: u16) -> Result<()> {
    let begun = clock::monotonic_ns();
    let mut stream = loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => break stream,
            Err(error) if clock::monotonic_ns() - begun > 10_000_000_000 => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    stream.set_read_timeout(Some(Duration::from_mins(1)))?;
    stream.write_all(b"GET /v1/models HTTP/1.1\r\nHost: server\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.ends_with("ok"), "{answer}");
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Every request is under one of these workloads.
fn all_are_of(agent: &Agent, workloads: &[&str]) -> Result<()> {
    let count = f64::from(REQUESTS);
    let all = |scrape: &Scrape| scrape.sum(COUNT, &[]) >= Some(count);
    let (scrape, _) = until(agent, Duration::from_secs(5), "the requests", all)?;
    let of = |name: &&str| scrape.sum(COUNT, &[("workload", name)]).unwrap_or(0.0);
    let found: f64 = workloads.iter().map(of).sum();
    ensure!((found - count).abs() < 1e-9, "{found} of {count} requests are under {workloads:?}:\n{}", scrape.shown());
    Ok(())
}

fn one_shot() -> Result<()> {
    let port = free_port()?;
    let agent = Agent::start(&["--target", &format!("port:{port}")])?;
    for _ in 0..REQUESTS {
        let mut server = Role::start(ONCE, port)?;
        ask(port)?;
        ensure!(server.0.wait()?.success(), "the server failed");
    }
    // This binary once more, so its name and its unit are this process's.
    let this = workload::look(&ProcFs, std::process::id()).context("this process")?;
    let mut names = vec![this.name.as_str(), this.workload.workload.as_str()];
    names.dedup();
    all_are_of(&agent, &names)
}

fn a_process_each() -> Result<()> {
    let port = free_port()?;
    let server = Role::start(EACH, port)?;
    let agent = Agent::start(&["--target", &format!("pid:{}", server.0.id())])?;
    for _ in 0..REQUESTS {
        ask(port)?;
    }
    let seen = workload::look(&ProcFs, server.0.id()).context("the server")?;
    all_are_of(&agent, &[&seen.workload.workload])?;
    let status: serde_json::Value = serde_json::from_str(&agent.get("/api/v1/status")?.1)?;
    let listed = &status["targets"][0];
    ensure!(listed["pid"] == server.0.id() && listed["ports"] == serde_json::json!([port]), "{status}");
    ensure!(listed["workload"] == seen.workload.workload && listed["process"] == seen.name, "{status}");
    drop(server);
    let gone = |_: &Scrape| {
        let status = agent.get("/api/v1/status").ok().and_then(|(_, text)| serde_json::from_str::<serde_json::Value>(&text).ok());
        status.is_some_and(|status| status["processes_measured"] == 0 && status["targets"] == serde_json::json!([]))
    };
    until(&agent, Duration::from_secs(5), "the end of the server in the status", gone)?;
    Ok(())
}

fn unseen() -> Result<()> {
    const UPGRADED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n";
    const END: &str = "0\r\n\r\n";
    const STREAM: &str =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n";
    let server = Server::start(|path| match path {
        "/upgrade" => vec![Step::Write(UPGRADED.to_vec()), write("no HTTP"), Step::Close],
        _ => vec![write(STREAM), Step::Wait(20), write(&chunk("\u{1f}data: zipped")), write(END)],
    })?;
    let agent = Agent::start(&["--target", &format!("port:{}", server.port)])?;
    let mut client = connect(server.port)?;
    client.write_all(b"GET /upgrade HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")?;
    read_until(&mut client, b"no HTTP")?;
    let mut client = connect(server.port)?;
    for _ in 0..2 {
        client.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")?;
        read_until(&mut client, b"\r\n0\r\n\r\n")?;
    }
    let (scrape, _) = until(&agent, Duration::from_secs(5), "the requests", |scrape| scrape.sum(COUNT, &[]) >= Some(3.0))?;
    let undecoded = |reason| scrape.sum("tailcomb_undecoded_total", &[("reason", reason)]);
    let counted = (undecoded("upgraded"), undecoded("encoded"));
    ensure!(counted == (Some(1.0), Some(2.0)), "{counted:?}:\n{}", scrape.shown());
    let first_tokens = scrape.sum("gen_ai_server_time_to_first_token_seconds_count", &[]);
    ensure!(first_tokens.is_none(), "a compressed stream has no first token that can be seen: {first_tokens:?}");
    ensure!(scrape.sum(COUNT, &[("http_response_status_code", "101")]) == Some(1.0), "{}", scrape.shown());
    Ok(())
}
