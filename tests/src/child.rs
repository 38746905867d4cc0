//! A scripted server in a process of its own: one that can be a target by its process id, and be killed.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, Result};

use crate::http::{Server, Step, now_ns};

/// Tells a test's binary to be the server; the port it is to listen on.
const SERVE: &str = "TAILCOMB_TEST_SERVE_HTTP";

/// Is this process meant to be a server? Then it serves until it is killed. The first thing in the `main` of a test that
/// starts a [`ServerProcess`].
///
/// # Errors
/// When it can't serve.
pub fn serve_if_told(script: impl Fn(&str) -> Vec<Step> + Send + Sync + 'static) -> Result<()> {
    let Some(port) = env::var_os(SERVE) else { return Ok(()) };
    let server = Server::on(port.to_string_lossy().parse()?, script)?;
    println!("{}", server.port);
    std::io::stdout().flush()?;
    loop {
        thread::park();
    }
}

/// A server in a process of its own: this binary once more. Killed when dropped.
pub struct ServerProcess {
    child: Child,
    /// Its port on 127.0.0.1.
    pub port: u16,
}

impl ServerProcess {
    /// Starts it on a port; 0 = any. It follows the script that [`serve_if_told`] was given.
    ///
    /// # Errors
    /// When it does not say its port.
    pub fn start(port: u16) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?).env(SERVE, port.to_string()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
        Ok(Self { child, port: line.trim().parse().with_context(|| format!("its port: {line:?}"))? })
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, and returns when that began and when it was dead, in ns of CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// When it can't be killed.
    pub fn kill(&mut self) -> Result<(u64, u64)> {
        let begin = now_ns()?;
        self.child.kill()?;
        self.child.wait()?;
        Ok((begin, now_ns()?))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Dead already is as good.
        let _ = self.kill();
    }
}
