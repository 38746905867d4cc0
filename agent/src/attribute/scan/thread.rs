//! Scans on a thread of their own: `/proc` may be slow, and the ring buffer does not wait for it.
//!
//! One scan at a time. Nobody waits for the thread at the end: it changes nothing but its own memory, and ends with the process, or when
//! the scan that runs is over.

use std::{
    collections::HashMap,
    io,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use super::{Changes, InKernel, Member, Reason, ScanError, Scanner};
use crate::attribute::{
    engine::Engine,
    measured::Measured,
    node::Node,
    process::ProcessId,
    targets::Target,
    workload::{self, Process, Workload},
};

/// What is to be known of a process that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Which process.
    pub id: ProcessId,
    /// Which server it runs, if a known one.
    pub engine: Option<Engine>,
    /// Are all its ports measured, or only those of `port:` targets?
    pub every_port: bool,
}

/// What one scan found.
#[derive(Debug)]
pub struct Found {
    /// What the kernel half must be told.
    pub changes: Changes,
    /// All processes that are measured.
    pub members: HashMap<u32, Known>,
    /// The same for people, by tgid.
    pub measured: Vec<Measured>,
    /// Those of them that the scan before did not have, or under another name, and whose they are.
    pub new: Vec<Process>,
    /// Targets that mean no process now.
    pub unmatched: Vec<Target>,
}

/// The thread, and the scan that runs on it.
#[derive(Debug)]
pub struct ScanThread {
    ask: SyncSender<InKernel>,
    answers: Receiver<Result<Found, ScanError>>,
    running: bool,
}

impl ScanThread {
    /// Starts the thread. It ends when this is dropped, after the scan that runs.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start<N: Node + Send + 'static>(scanner: Scanner<N>) -> io::Result<Self> {
        let (ask, asked) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        thread::Builder::new().name("scan".to_owned()).spawn(move || serve(scanner, &asked, &answer))?;
        Ok(Self { ask, answers, running: false })
    }

    /// Begins a scan; `in_kernel` is what the kernel half has now. False, and nothing begins, while one runs.
    pub fn begin(&mut self, in_kernel: InKernel) -> bool {
        if self.running {
            return false;
        }
        self.running = self.ask.try_send(in_kernel).is_ok();
        self.running
    }

    /// What the scan that was begun has found, once it is over. Never waits.
    pub fn poll(&mut self) -> Option<Result<Found, ScanError>> {
        let found = self.answers.try_recv().ok()?;
        self.running = false;
        Some(found)
    }

    /// The same, after waiting for it at most this long.
    pub fn wait(&mut self, longest: Duration) -> Option<Result<Found, ScanError>> {
        let found = self.answers.recv_timeout(longest).ok()?;
        self.running = false;
        Some(found)
    }
}

fn serve<N: Node>(mut scanner: Scanner<N>, asked: &Receiver<InKernel>, answer: &SyncSender<Result<Found, ScanError>>) {
    let mut before: HashMap<u32, Measured> = HashMap::new();
    while let Ok(in_kernel) = asked.recv() {
        let found = scanner.scan(&in_kernel).map(|changes| {
            let known = |member: &Member| Known { id: member.id, engine: member.engine, every_port: member.every_port };
            let members: HashMap<u32, Known> = scanner.members().map(|member| (member.id.tgid, known(member))).collect();
            let mut new = Vec::new();
            let measured: Vec<Measured> =
                scanner.members().map(|member| measured(&scanner, member, &mut before, &mut new)).collect();
            before = measured.iter().map(|measured| (measured.id.tgid, measured.clone())).collect();
            Found { changes, members, measured, new, unmatched: scanner.unmatched().cloned().collect() }
        });
        if answer.send(found).is_err() {
            return;
        }
    }
}

/// What is to be said of a member. Whose it is is looked up where the scan before did not have it under this name; that goes to `new`.
fn measured<N: Node>(
    scanner: &Scanner<N>,
    member: &Member,
    before: &mut HashMap<u32, Measured>,
    new: &mut Vec<Process>,
) -> Measured {
    let known = before.remove(&member.id.tgid).filter(|before| before.id == member.id && before.name == member.name);
    let workload = known.map(|before| before.workload).unwrap_or_else(|| {
        let found = workload::look(scanner.node(), member.id.tgid);
        let own_name = || Workload { workload: member.name.clone(), ..Workload::default() };
        let workload = found.as_ref().map_or_else(own_name, |found| found.workload.clone());
        new.extend(found);
        workload
    });
    let parent = scanner.seen.get(&member.id.tgid).map(|seen| seen.parent).filter(|parent| scanner.member(*parent).is_some());
    Measured {
        id: member.id,
        name: member.name.clone(),
        workload,
        engine: member.engine,
        ports: member.sockets.is_some().then(|| member.ports.iter().copied().collect()),
        reason: match (&member.reason, parent) {
            (Reason::Kernel, Some(parent)) => Reason::Descends(parent),
            (reason, _) => reason.clone(),
        },
        child: parent.is_some() || matches!(member.reason, Reason::Descends(_)),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::Sender, time::Instant};

    use super::*;
    use crate::attribute::{cgroup::Cgroups, node::Listener, process::ProcessStat};

    /// A node whose list of processes comes only when the test lets it.
    struct Slow {
        let_go: Receiver<()>,
        scans: Sender<()>,
    }

    impl Node for Slow {
        fn processes(&self) -> io::Result<Vec<u32>> {
            // A test that ended does not wait.
            let _ = self.scans.send(());
            let _ = self.let_go.recv();
            Ok(vec![7])
        }

        fn stat(&self, tgid: u32) -> io::Result<ProcessStat> {
            let id = ProcessId { tgid, start: 1 };
            Ok(ProcessStat { id, parent: 1, name: "server".to_owned(), is_kernel: false, arguments: Some(1) })
        }

        fn command_line(&self, _: u32) -> io::Result<Vec<String>> {
            Ok(Vec::new())
        }

        fn cgroups(&self, _: u32) -> io::Result<Cgroups> {
            Ok(Cgroups::parse("0::/system.slice/vllm.service\n"))
        }

        fn net_namespace(&self, _: u32) -> io::Result<u64> {
            Ok(1)
        }

        fn listeners(&self, _: u32) -> io::Result<Vec<Listener>> {
            Ok(Vec::new())
        }

        fn sockets(&self, _: u32) -> io::Result<Vec<u64>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn a_slow_proc_keeps_nobody_and_only_one_scan_runs() {
        let (go, let_go) = std::sync::mpsc::channel();
        let (scans, scanned) = std::sync::mpsc::channel();
        let scanner = Scanner::of(Slow { let_go, scans }, vec![Target::Comm("server".to_owned())]).expect("a scanner");
        let mut thread = ScanThread::start(scanner).expect("a thread");
        let patience = Duration::from_secs(10);
        assert!(thread.begin(InKernel::default()));
        scanned.recv_timeout(patience).expect("a scan");
        let begun = Instant::now();
        assert!(!thread.begin(InKernel::default()) && thread.poll().is_none());
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        go.send(()).expect("the scan goes on");
        let found = thread.wait(patience).expect("an answer").expect("a scan");
        assert_eq!(found.changes.added_processes, [7]);
        assert_eq!(found.new.iter().map(|process| process.workload.workload.as_str()).collect::<Vec<_>>(), ["vllm.service"]);
        let [measured] = &found.measured[..] else { panic!("{:?}", found.measured) };
        let said = (measured.process(), measured.workload.workload.as_str(), measured.reason.to_string());
        assert_eq!(said, ("server[7]".to_owned(), "vllm.service", "comm:server".to_owned()));
        assert!(scanned.try_recv().is_err(), "the second was begun too");
        assert!(thread.begin(InKernel::default()));
        go.send(()).expect("the scan goes on");
        let again = thread.wait(patience).expect("an answer").expect("a scan");
        assert!(again.new.is_empty() && again.members.contains_key(&7));
        // One that hangs is not waited for.
        assert!(thread.begin(InKernel::default()));
        let begun = Instant::now();
        drop(thread);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}
