//! The demo's processes from the inside.
//!
//! A role is started as `tailcomb demo --role NAME`, reads its setup as one line of JSON from standard input, and writes what it
//! sees as lines of JSON to standard output. It ends when standard input does: also when its parent is killed.

use std::{
    fs,
    io::{self, BufRead, Write},
    path::PathBuf,
    process::ExitCode,
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    flusher::Flusher,
    index::Index,
    load,
    server::{self, Model},
    timing::Timing,
    truth::{FlushSeen, RequestSeen},
};

/// Most disk reads that the server has under way at once.
const READ_THREADS: usize = 32;

/// A process of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Load,
    Metrics,
}

impl Role {
    /// The process' name, and the argument that chooses the role.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Server => "demo-server",
            Self::Load => "demo-load",
            Self::Metrics => "demo-metrics",
        }
    }
}

/// What a role must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) folder: PathBuf,
    pub(super) port: u16,
    pub(super) seed: u64,
    pub(super) rate: f64,
    pub(super) period: Duration,
}

/// What a role says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// It can begin: the server's port, or the bytes of a flush.
    Ready(u64),
    Request(RequestSeen),
    RequestFailed {
        reason: String,
    },
    NotSent,
    Flush(FlushSeen),
    /// It can't go on.
    Broken {
        reason: String,
    },
}

/// The way to the parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Say;

impl Say {
    /// Writes one line. A parent that no longer listens has also closed standard input, which ends the role.
    pub(super) fn message(self, message: &Message) {
        if let Ok(line) = serde_json::to_string(message) {
            let _ = writeln!(io::stdout().lock(), "{line}");
        }
    }
}

/// Runs a role if the arguments of this process ask for one: `demo --role NAME`. To be called first in `main`.
#[must_use]
pub fn dispatch() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).take(3).collect();
    let [demo, flag, name] = arguments.as_slice() else { return None };
    if demo != "demo" || flag != "--role" {
        return None;
    }
    let role = [Role::Server, Role::Load, Role::Metrics].into_iter().find(|role| role.name() == name)?;
    // The name by which workloads are told apart. Where it can't be set, the program's own stands.
    let _ = fs::write("/proc/self/comm", role.name());
    Some(match play(role) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            Say.message(&Message::Broken { reason: format!("{}: {error}", role.name()) });
            ExitCode::FAILURE
        }
    })
}

fn play(role: Role) -> io::Result<()> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let setup: Setup = serde_json::from_str(&line)?;
    match role {
        Role::Metrics => {
            let mut flusher = Flusher::create(&setup.folder, setup.period)?;
            Say.message(&Message::Ready(flusher.calibrate()?));
            let orders = orders();
            // Any line begins it; none means that there will be no flush.
            match orders.recv() {
                Ok(_) => flusher.run(setup.period, &orders, |flush| Say.message(&Message::Flush(flush))),
                Err(_) => Ok(()),
            }
        }
        Role::Server => {
            let model = Model { index: Index::create(&setup.folder)?, timing: Timing::new(setup.seed) };
            runtime(|stopped| server::serve(model, |port| Say.message(&Message::Ready(port.into())), stopped))?
        }
        Role::Load => runtime(|stopped| load::run(setup.port, setup.rate, setup.seed, Say, stopped)),
    }
}

/// Lines of standard input; the channel closes with it.
fn orders() -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Runs a task on a runtime of one thread; it gets a future that ends with standard input.
fn runtime<F, T>(task: impl FnOnce(StdinClosed) -> F) -> io::Result<T>
where
    F: Future<Output = T>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(READ_THREADS).build()?;
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let orders = orders();
    thread::spawn(move || {
        while orders.recv().is_ok() {}
        drop(sender);
    });
    let result = runtime.block_on(task(StdinClosed(receiver)));
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(result)
}

/// Ends when standard input is closed.
struct StdinClosed(tokio::sync::oneshot::Receiver<()>);

impl Future for StdinClosed {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        std::pin::Pin::new(&mut self.0).poll(context).map(drop)
    }
}
