//! What ends badly, and what ends: servers that die, clients that reset, a ring buffer that is full, SIGTERM.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::TcpStream,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use aya::programs::loaded_programs;
use nix::{
    sys::{
        signal::{Signal, kill},
        socket::{setsockopt, sockopt::Linger},
    },
    unistd::Pid,
};
use serde_json::Value;
use tailcomb_tests::{
    agent::Agent,
    case::{Case, Need},
    child::ServerProcess,
    http::{Server, now_ns, read_until},
};

use crate::traffic::{CHUNKED, ENDLESS, QUICK, Scrape, connect, load, script, send, until};

pub(crate) const CASES: &[Case] = &[
    Case { name: "whole_killed_servers_and_resets_are_aborts", needs: &[Need::Kernel], run: aborts },
    Case { name: "whole_clients_that_hang_up_are_aborts", needs: &[Need::Kernel], run: hang_ups },
    Case { name: "whole_a_full_ring_loses_what_it_counts", needs: &[Need::Kernel], run: full_ring },
    Case { name: "whole_sigterm_answers_detaches_and_ends", needs: &[Need::Kernel], run: sigterm },
];

const COUNT: &str = "http_server_request_duration_seconds_count";

fn aborts() -> Result<()> {
    let begun = Instant::now();
    let mut server = ServerProcess::start(0)?;
    let agent = Agent::start(&["--target", &format!("pid:{}", server.id())])?;
    let open = || -> Result<TcpStream> {
        let mut client = connect(server.port)?;
        send(&mut client, ENDLESS)?;
        read_until(&mut client, b"data: 1\n\n\r\n")?;
        Ok(client)
    };
    let open: Vec<TcpStream> = (0..5).map(|_| open()).collect::<Result<_>>()?;
    let mut killed_with = Vec::new();
    for (number, client) in open.into_iter().enumerate() {
        if number < 2 {
            setsockopt(&client, Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
        } else {
            killed_with.push(client);
        }
    }
    let aborted = |scrape: &Scrape| scrape.sum(COUNT, &[("tailcomb_outcome", "aborted"), ("http_route", ENDLESS)]);
    until(&agent, Duration::from_secs(3), "two resets", |scrape| aborted(scrape) == Some(2.0))?;
    // Long enough that a time from the connection's or the machine's start would show.
    thread::sleep(Duration::from_millis(500));
    server.kill()?;
    let (scrape, _) = until(&agent, Duration::from_secs(3), "three more with the server", |scrape| aborted(scrape) == Some(5.0))?;
    let wall = begun.elapsed();
    thread::sleep(Duration::from_millis(1_200));
    let later = Scrape::of(&agent)?;
    ensure!(aborted(&later) == Some(5.0) && later.sum(COUNT, &[]) == Some(5.0), "nothing comes twice:\n{}", later.shown());
    for text in [&scrape.0, &later.0] {
        let generation = text.lines().find(|line| line.starts_with("gen_ai_"));
        ensure!(generation.is_none(), "an abort is no generation: {generation:?}");
    }
    let sum = later.sum("http_server_request_duration_seconds_sum", &[]).context("a sum")?;
    ensure!((0.5 * 3.0..5.0 * wall.as_secs_f64()).contains(&sum), "5 requests within {wall:?} lasted {sum} s together");

    let (_, text) = agent.get("/api/v1/requests")?;
    let answer: Value = serde_json::from_str(&text)?;
    let requests = answer["requests"].as_array().context("requests")?;
    ensure!(requests.len() == 5, "{text}");
    for request in requests {
        let marks = request.as_object().context("an object")?.iter().filter(|(name, _)| name.ends_with("_seconds"));
        for (name, seconds) in marks {
            let Some(seconds) = seconds.as_f64() else { continue };
            ensure!((0.0..wall.as_secs_f64()).contains(&seconds), "{name} within {wall:?}: {request}");
        }
        ensure!(request["outcome"] == "aborted" && request["mode"] == "stream" && request["pid"] == server.id(), "{request}");
    }
    Ok(())
}

/// Clients that close without a reset of their own, as one that gives up waiting does: their kernel resets what is written next, and on
/// one machine within that very write, so that the reset is older than the write's marks.
fn hang_ups() -> Result<()> {
    const CLIENTS: usize = 6;
    let server = Server::start(script)?;
    let agent = Agent::start(&["--target", &format!("port:{}", server.port)])?;
    for _ in 0..CLIENTS {
        let mut stream = connect(server.port)?;
        send(&mut stream, ENDLESS)?;
        read_until(&mut stream, b"data: 1\n\n\r\n")?;
        drop(stream);
        // Its answer comes in two writes, after this client has gone.
        send(&mut connect(server.port)?, CHUNKED)?;
    }
    let aborted = |scrape: &Scrape, route| scrape.sum(COUNT, &[("tailcomb_outcome", "aborted"), ("http_route", route)]);
    let all = Some(CLIENTS as f64);
    let (scrape, _) = until(&agent, Duration::from_secs(5), "all of them aborted", |scrape| {
        aborted(scrape, ENDLESS) == all && aborted(scrape, CHUNKED) == all
    })?;
    let lost = |scrape: &Scrape| scrape.sum("tailcomb_lost_total", &[("stage", "decode")]);
    ensure!(lost(&scrape) == Some(0.0), "{:?} lost", lost(&scrape));
    // Resets at any moment: before the request is read, between its read and the answer, after the answer.
    for wait in 0..200 {
        let mut stream = connect(server.port)?;
        setsockopt(&stream, Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
        send(&mut stream, QUICK)?;
        thread::sleep(Duration::from_micros(wait * 4));
        drop(stream);
    }
    let quick = |scrape: &Scrape| scrape.sum(COUNT, &[("http_route", QUICK)]).unwrap_or(0.0);
    let (scrape, _) = until(&agent, Duration::from_secs(5), "the resets are counted", |scrape| {
        quick(scrape) > 100.0 || lost(scrape) > Some(0.0)
    })?;
    thread::sleep(Duration::from_millis(1_200));
    let later = Scrape::of(&agent)?;
    let early = later.sum(COUNT, &[("http_route", QUICK), ("tailcomb_outcome", "aborted")]).unwrap_or(0.0);
    ensure!(lost(&later) == Some(0.0) && early > 0.0, "{early} aborted, {:?} lost:\n{}", lost(&later), scrape.shown());
    Ok(())
}

/// Lets the process go on, come what may.
struct Stopped(Pid);

impl Stopped {
    fn stop(pid: u32) -> Result<Self> {
        let pid = Pid::from_raw(pid.cast_signed());
        kill(pid, Signal::SIGSTOP)?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may be dead; then there is nobody to go on.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

fn full_ring() -> Result<()> {
    const BEFORE: usize = 100;
    const MEANWHILE: usize = 4 * 1_200;
    const AFTER: usize = 50;
    // What 1 MiB holds of records of 344 bytes, each with 8 bytes before it.
    const FITS: RangeInclusive<f64> = 2_970.0..=2_978.0;
    // In a process of its own: a target's children are targets, and the agent is a child of this process.
    let server = ServerProcess::start(0)?;
    let agent = Agent::start(&["--target", &format!("pid:{}", server.id()), "--ring-buffer-mib", "1"])?;
    let counted = |scrape: &Scrape| scrape.sum(COUNT, &[("http_route", QUICK), ("tailcomb_outcome", "complete")]).unwrap_or(0.0);
    let lost = |scrape: &Scrape| scrape.sum("tailcomb_lost_total", &[("stage", "socket"), ("reason", "ring_full")]);
    load(server.port, QUICK, 1, BEFORE)?;
    let (scrape, _) = until(&agent, Duration::from_secs(3), "those before", |scrape| counted(scrape) >= BEFORE as f64)?;
    ensure!(lost(&scrape) == Some(0.0), "nothing is lost yet: {:?}", lost(&scrape));
    {
        let _stopped = Stopped::stop(agent.pid())?;
        load(server.port, QUICK, 4, MEANWHILE / 4)?;
    }
    let sent = |count: usize| move |scrape: &Scrape| counted(scrape) + lost(scrape).unwrap_or(0.0) >= count as f64;
    until(&agent, Duration::from_secs(5), "all that was sent meanwhile", sent(BEFORE + MEANWHILE))?;
    load(server.port, QUICK, 1, AFTER)?;
    until(&agent, Duration::from_secs(3), "those after", sent(BEFORE + MEANWHILE + AFTER))?;
    thread::sleep(Duration::from_millis(1_200));
    let later = Scrape::of(&agent)?;
    let (counted, lost) = (counted(&later), lost(&later).context("a counter from the start on")?);
    let all = (BEFORE + MEANWHILE + AFTER) as f64;
    ensure!((counted + lost - all).abs() < 1e-9, "{counted} counted and {lost} lost of {all}");
    let kept = counted - (BEFORE + AFTER) as f64;
    ensure!(FITS.contains(&kept), "{kept} were kept meanwhile, where {FITS:?} fit");
    let every_reason = later.series("tailcomb_lost_total", &[("stage", "socket")]);
    ensure!((every_reason.values().sum::<f64>() - lost).abs() < 1e-9, "lost for another reason: {every_reason:?}");
    Ok(())
}

/// Ids of the eBPF programs that a process holds, by itself or through a link.
fn programs_of(pid: u32) -> Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A file descriptor may be closed meanwhile.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        ids.extend(text.lines().filter_map(|line| line.strip_prefix("prog_id:")?.trim().parse::<u32>().ok()));
    }
    Ok(ids)
}

/// When a scrape had been sent, and whether it was answered.
struct Asked {
    sent_ns: u64,
    answered: Result<()>,
}

/// Scrapes on new connections until told to end.
fn scrape_until(end: &AtomicBool, port: u16) -> Vec<Asked> {
    let mut asked = Vec::new();
    while !end.load(Ordering::Acquire) {
        let scrape = || -> Result<(u64, TcpStream)> {
            let mut client = connect(port)?;
            client.write_all(b"GET /metrics HTTP/1.0\r\nHost: agent\r\n\r\n")?;
            Ok((now_ns()?, client))
        };
        let Ok((sent_ns, mut client)) = scrape() else { break };
        let mut answer = || -> Result<()> {
            let mut answer = String::new();
            client.read_to_string(&mut answer)?;
            let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
            ensure!(head.starts_with("HTTP/1.0 200"), "{head}");
            let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
            ensure!(length == Some(body.len()) && body.contains(COUNT), "{length:?} and {} bytes:\n{head}", body.len());
            Ok(())
        };
        asked.push(Asked { sent_ns, answered: answer() });
    }
    asked
}

fn sigterm() -> Result<()> {
    let server = Server::start(script)?;
    for _ in 0..3 {
        let agent = Agent::start(&["--target", &format!("port:{}", server.port)])?;
        let programs = programs_of(agent.pid())?;
        ensure!(programs.len() >= 8, "the agent holds programs {programs:?}");
        load(server.port, QUICK, 2, 100)?;
        until(&agent, Duration::from_secs(3), "the requests", |scrape| scrape.sum(COUNT, &[]).is_some())?;
        let end = Arc::new(AtomicBool::new(false));
        let scrapers: Vec<_> = (0..4)
            .map(|_| {
                let (end, port) = (Arc::clone(&end), agent.port);
                thread::spawn(move || scrape_until(&end, port))
            })
            .collect();
        thread::sleep(Duration::from_millis(300));
        let signalled_ns = now_ns()?;
        let (status, took) = agent.stop()?;
        end.store(true, Ordering::Release);
        ensure!(status.success() && took < Duration::from_secs(2), "{status} after {took:?}");
        let (mut before, mut answered) = (0, 0);
        for scraper in scrapers {
            let asked = scraper.join().map_err(|_| anyhow::anyhow!("a scraper panicked"))?;
            let under_way = asked.last().context("a scrape")?;
            before += u32::from(under_way.sent_ns < signalled_ns);
            for Asked { sent_ns, answered: answer } in asked {
                answered += u32::from(answer.is_ok());
                if sent_ns < signalled_ns {
                    answer.with_context(|| format!("asked {} µs before SIGTERM", (signalled_ns - sent_ns) / 1_000))?;
                }
            }
        }
        ensure!(answered > 20, "{answered} scrapes were answered, {before} of the last ones were under way");
        // The kernel frees programs a moment after their last holder has gone.
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let left: BTreeSet<u32> =
                loaded_programs().flatten().map(|info| info.id()).filter(|id| programs.contains(id)).collect();
            if left.is_empty() {
                break;
            }
            ensure!(Instant::now() < deadline, "left in the kernel: {left:?} of {programs:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}
