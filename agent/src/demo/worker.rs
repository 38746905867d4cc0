//! The demo's processes from the outside.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    role::{Message, Role, Setup},
    truth::Counters,
    workload::DemoError,
};

/// How long a process may take to end by itself.
const END_WAIT: Duration = Duration::from_secs(5);
/// How long it may take to be ready: the index is written, the disk's speed is measured.
const READY_WAIT: Duration = Duration::from_secs(60);

/// What all processes say, collected.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) counters: Counters,
    /// Why one of them could not go on.
    pub(super) broken: Option<String>,
}

/// One process.
#[derive(Debug)]
pub(super) struct Worker {
    role: Role,
    child: Child,
    stdin: Option<ChildStdin>,
    listener: Option<JoinHandle<()>>,
    ready: Receiver<u64>,
}

impl Worker {
    pub(super) fn start(program: &Path, role: Role, setup: &Setup, seen: &Arc<Mutex<Seen>>) -> Result<Self, DemoError> {
        let failed = |source| DemoError::Start { role: role.name(), source };
        let mut child = Command::new(program)
            .args(["demo", "--role", role.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C at the terminal is the parent's to act on: it ends its children in order.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (sender, ready) = mpsc::channel();
        let seen = Arc::clone(seen);
        let listener = child.stdout.take().map(|stdout| thread::spawn(move || listen(BufReader::new(stdout), &seen, &sender)));
        let stdin = child.stdin.take();
        let mut worker = Self { role, child, stdin, listener, ready };
        let setup = serde_json::to_string(setup).map_err(std::io::Error::other).map_err(failed)?;
        worker.order(&setup).map_err(failed)?;
        Ok(worker)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says that it can begin.
    pub(super) fn ready(&self, seen: &Mutex<Seen>) -> Result<u64, DemoError> {
        self.ready.recv_timeout(READY_WAIT).map_err(|_| {
            let broken = seen.lock().unwrap_or_else(PoisonError::into_inner).broken.clone();
            DemoError::NotReady { role: self.role.name(), reason: broken.unwrap_or_else(|| "it gave no reason".to_owned()) }
        })
    }

    /// Writes one line to it.
    pub(super) fn order(&mut self, line: &str) -> std::io::Result<()> {
        self.stdin.as_mut().map_or(Ok(()), |stdin| writeln!(stdin, "{line}"))
    }

    /// Did it end before it was told to?
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Tells it to end, waits, and reads what it still had to say; one that does not end is killed.
    pub(super) fn stop(&mut self) {
        drop(self.stdin.take());
        let deadline = Instant::now() + END_WAIT;
        while !self.has_ended() {
            if Instant::now() > deadline {
                // Fails only if it has ended meanwhile.
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

fn listen(lines: impl BufRead, seen: &Mutex<Seen>, ready: &Sender<u64>) {
    for line in lines.lines().map_while(Result::ok) {
        let message = serde_json::from_str::<Message>(&line);
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        match message {
            // Nobody waits a second time.
            Ok(Message::Ready(value)) => drop(ready.send(value)),
            Ok(Message::Request(request)) => seen.counters.count(request),
            Ok(Message::RequestFailed { reason }) => *seen.counters.failed.entry(reason).or_default() += 1,
            Ok(Message::NotSent) => seen.counters.not_sent += 1,
            Ok(Message::Flush(flush)) => seen.counters.flushes.push(flush),
            Ok(Message::Broken { reason }) => seen.broken = Some(reason),
            Err(error) => seen.broken = Some(format!("a line that is no message ({error}): {line}")),
        }
    }
}
