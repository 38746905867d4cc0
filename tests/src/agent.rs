//! The agent as a process: started from its binary, asked over HTTP, stopped by signal.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use procfs::process::Process;

/// How long it may take to be ready.
const READY: Duration = Duration::from_secs(30);

/// The binary: `TAILCOMB_BIN`, else the one built beside this test.
///
/// # Errors
/// When there is none.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("TAILCOMB_BIN") {
        return Ok(path.into());
    }
    let this = std::env::current_exe()?;
    let beside = this.ancestors().skip(1).take(2).map(|folder| folder.join("tailcomb")).find(|path| path.is_file());
    beside.context(
        "no binary `tailcomb` beside this test: build it with the same profile (cargo build -p tailcomb), or set TAILCOMB_BIN",
    )
}

/// GET with an Accept header from any server on this machine: status and body.
///
/// # Errors
/// When the connection fails or the answer is no HTTP.
pub fn get_from(address: SocketAddr, path: &str, accept: &str) -> Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nAccept: {accept}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let split = answer.windows(4).position(|four| four == b"\r\n\r\n").context("the answer has no head")?;
    let head = String::from_utf8_lossy(&answer[..split]);
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("the answer has no status")?;
    Ok((status, answer.split_off(split + 4)))
}

/// A running `tailcomb run`.
pub struct Agent {
    child: Child,
    /// Where its HTTP server listens.
    pub port: u16,
    _state: tempfile::TempDir,
}

impl Agent {
    /// Starts `tailcomb run` with these flags on a free port and waits until it is ready.
    ///
    /// # Errors
    /// When it ends or is not ready within 30 s.
    pub fn start(flags: &[&str]) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let state =
            tempfile::tempdir_in(std::env::var_os("TAILCOMB_TEST_DISK").map_or_else(|| PathBuf::from("."), PathBuf::from))?;
        let mut command = Command::new(binary()?);
        // The variables of tests, and a developer's own, are none of this agent's.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TAILCOMB_")) {
            command.env_remove(name);
        }
        let child = command
            .args(["run", "--listen", &format!("127.0.0.1:{port}"), "--log-level", "warn", "--state-dir"])
            .arg(state.path())
            .args(flags)
            .stdin(Stdio::null())
            .spawn()
            .context("starting the agent")?;
        let mut agent = Self { child, port, _state: state };
        let end = Instant::now() + READY;
        loop {
            if let Some(status) = agent.child.try_wait()? {
                bail!("the agent ended with {status} before it was ready");
            }
            match agent.get("/readyz") {
                Ok((200, _)) => return Ok(agent),
                answer => ensure!(Instant::now() < end, "the agent is not ready after {READY:?}: {answer:?}"),
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// GET: status and body.
    ///
    /// # Errors
    /// When the connection fails or the answer is no HTTP.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        self.get_as(path, "*/*").map(|(status, body)| (status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// GET with an Accept header: status and body.
    ///
    /// # Errors
    /// When the connection fails or the answer is no HTTP.
    pub fn get_as(&self, path: &str, accept: &str) -> Result<(u16, Vec<u8>)> {
        get_from(([127, 0, 0, 1], self.port).into(), path, accept)
    }

    /// Sum over all series of one sample name in `/metrics`.
    ///
    /// # Errors
    /// When it can't be asked.
    pub fn counted(&self, name: &str) -> Result<f64> {
        let (_, text) = self.get("/metrics")?;
        let samples = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' ')));
        Ok(samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// CPU time it has used.
    ///
    /// # Errors
    /// When procfs does not tell.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = Process::new(self.pid().cast_signed())?.stat()?;
        #[expect(clippy::cast_precision_loss, reason = "clock ticks of a short life")]
        Ok(Duration::from_secs_f64((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64))
    }

    /// Its resident memory in bytes.
    ///
    /// # Errors
    /// When procfs does not tell.
    pub fn resident_bytes(&self) -> Result<u64> {
        Ok(Process::new(self.pid().cast_signed())?.statm()?.resident * procfs::page_size())
    }

    /// Sends SIGTERM and waits for the end: the exit status and how long it took.
    ///
    /// # Errors
    /// When it does not end within 10 s.
    pub fn stop(mut self) -> Result<(ExitStatus, Duration)> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM)?;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok((status, begun.elapsed()));
            }
            ensure!(begun.elapsed() < Duration::from_secs(10), "the agent did not end within 10 s of SIGTERM");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // After `stop` it is gone already; a test that failed half-way must not leave it behind.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
