//! Targets in other network namespaces, as containers are.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use tailcomb::attribute::{
    scan::{InKernel, Port, Scanner},
    targets::Target,
};
use tailcomb_tests::case::{Case, Need};

/// Set in the environment of this program when it is to be a server.
const SERVE: &str = "TAILCOMB_TEST_SERVE";
/// In a namespace of its own every port is free.
const PORT: u16 = 8_000;

/// The cases of this file.
pub(crate) const CASES: &[Case] = &[
    Case { name: "targets_by_port_in_another_network_namespace", needs: NEEDS, run: by_port },
    Case { name: "targets_by_program_in_another_network_namespace", needs: NEEDS, run: by_program },
];

/// busybox has it too, in the guests.
const NEEDS: &[Need] = &[Need::Kernel, Need::Tool("unshare")];

/// Is a server and returns true, if this program was started as one; until its input ends.
pub(crate) fn serve_if_told() -> bool {
    if std::env::var_os(SERVE).is_none() {
        return false;
    }
    match TcpListener::bind(("0.0.0.0", PORT)) {
        Ok(_listening) => {
            println!("listening");
            std::io::stdin().lines().for_each(drop);
        }
        Err(error) => println!("{error}"),
    }
    true
}

/// Ended with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server under the name of a known one in a network namespace of its own.
fn start(folder: &std::path::Path) -> Result<Server> {
    let program = folder.join("llama-server");
    std::os::unix::fs::symlink(std::env::current_exe()?, &program)?;
    let mut command = Command::new("unshare");
    command.arg("-n").arg(&program).env(SERVE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = Server(command.spawn().context("starting unshare")?);
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().context("no output")?).read_line(&mut line)?;
    ensure!(line.trim() == "listening", "the server says {line:?}");
    Ok(server)
}

fn by_port() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let mut scanner = Scanner::new(vec![Target::Port(PORT)])?;
    let changes = scanner.scan(&InKernel::default())?;
    ensure!(changes.added_processes.contains(&server.0.id()), "{changes:?}");
    ensure!(changes.added_ports == [Port { port: PORT, claims: true }], "{changes:?}");
    Ok(())
}

fn by_program() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let mut scanner = Scanner::new(vec![Target::Auto])?;
    scanner.scan(&InKernel::default())?;
    let member = scanner.member(server.0.id()).context("not found")?;
    ensure!(member.ports == BTreeSet::from([PORT]), "{member:?}");
    Ok(())
}
