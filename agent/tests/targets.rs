//! Target discovery with real processes: this test's own program, started under the name of a known server.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use tailcomb::attribute::{
    engine::Engine,
    scan::{InKernel, ROUNDS, Reason, Scanner, YOUNG},
    targets::Target,
};

/// Set in the environment of the program when it is to be the server.
const SERVE: &str = "TAILCOMB_TEST_SERVE";

/// A server of this test; it ends with this value.
struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.env(SERVE, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.context("no output")?);
        Ok(Self { child, input: input.context("no input")?, output })
    }

    /// The port it says that it listens on.
    fn port(&mut self) -> Result<u16> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            if let Some(port) = line.trim().rsplit_once("listening on ").map(|(_, port)| port.parse()) {
                return Ok(port?);
            }
            line.clear();
        }
        anyhow::bail!("the server ended without a word")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test but the server: nothing unless it is started as one.
#[test]
fn serve() -> Result<()> {
    if std::env::var_os(SERVE).is_none() {
        return Ok(());
    }
    let listener = TcpListener::bind("0.0.0.0:0")?;
    println!("\nlistening on {}", listener.local_addr()?.port());
    // Until the other side of the pipe is gone.
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

/// This program under another name.
fn named(folder: &Path, name: &str) -> Result<std::path::PathBuf> {
    let path = folder.join(name);
    std::os::unix::fs::symlink(std::env::current_exe()?, &path)?;
    Ok(path)
}

const ARGUMENTS: [&str; 3] = ["--exact", "serve", "--nocapture"];

#[test]
fn auto_finds_a_server_by_its_program_and_forgets_it_at_its_end() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut server = Server::start(Command::new(named(folder.path(), "llama-server")?).args(ARGUMENTS))?;
    // Mentions a server only.
    let mut other = Server::start(Command::new(named(folder.path(), "grep")?).args(ARGUMENTS).arg("llama-server"))?;
    let (port, _) = (server.port()?, other.port()?);
    let mut scanner = Scanner::new(vec![Target::Auto])?;
    let changes = scanner.scan(&InKernel::default())?;
    let pid = server.child.id();
    ensure!(changes.added_processes.contains(&pid), "{pid} is not in {changes:?}");
    ensure!(!changes.added_processes.contains(&other.child.id()), "a mention is no server: {changes:?}");
    ensure!(changes.added_ports.iter().any(|added| added.port == port && !added.claims), "{port} is not in {changes:?}");
    let member = scanner.member(pid).context("no member")?;
    ensure!(member.engine == Some(Engine::LlamaCpp) && member.ports.contains(&port), "{member:?}");
    drop(server);
    let kernel = InKernel { processes: [pid].into(), ports: [port].into() };
    let changes = scanner.scan(&kernel)?;
    ensure!(changes.removed_processes == [pid] && changes.removed_ports == [port], "{changes:?}");
    Ok(())
}

#[test]
fn an_exec_into_a_server_is_seen_late_and_early() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = named(folder.path(), "tritonserver")?;
    for (age, within) in [(1, 1), (YOUNG + 1, ROUNDS)] {
        let mut server = Server::start(Command::new("sh").arg("-c").arg(format!(
            "read go; exec {} {}",
            program.display(),
            ARGUMENTS.join(" ")
        )))?;
        let pid = server.child.id();
        let mut scanner = Scanner::new(vec![Target::Auto])?;
        for _ in 0..age {
            ensure!(!scanner.scan(&InKernel::default())?.added_processes.contains(&pid), "a shell is no server");
        }
        writeln!(server.input, "go")?;
        let port = server.port()?;
        let found = (0..within)
            .find_map(|_| scanner.scan(&InKernel::default()).ok().filter(|changes| changes.added_processes.contains(&pid)));
        let changes = found.with_context(|| format!("not found in {within} scans"))?;
        ensure!(changes.added_ports.iter().any(|added| added.port == port), "{port} is not in {changes:?}");
    }
    Ok(())
}

#[test]
fn a_child_that_was_there_before_the_agent_is_found_by_its_parent() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = named(folder.path(), "worker")?;
    let script = format!("{} {}; true", program.display(), ARGUMENTS.join(" "));
    let mut server = Server::start(Command::new("sh").args(["-c", &script]))?;
    let port = server.port()?;
    let parent = server.child.id();
    let mut scanner = Scanner::new(vec![Target::Pid(parent)])?;
    let changes = scanner.scan(&InKernel::default())?;
    let child = scanner.members().find(|member| member.reason == Reason::Descends(parent)).context("no child")?;
    ensure!(child.ports.contains(&port) && changes.added_ports.iter().any(|added| added.port == port), "{child:?} {changes:?}");
    // `sh` alone is killed at the end: the child goes when its input does.
    Ok(())
}
