//! The scanner against a node made of data, and against this machine.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
    net::TcpListener,
    process::Command,
};

use super::*;
use crate::attribute::{cgroup::Cgroups, node::Listener, process::ProcessStat};

#[derive(Clone, Debug, Default)]
struct Fake {
    start: u64,
    parent: u32,
    name: String,
    words: Vec<String>,
    cgroup: String,
    namespace: u64,
    sockets: Vec<u64>,
    is_kernel: bool,
    arguments: Option<u64>,
}

/// A node of data, and how often it was asked.
#[derive(Debug, Default)]
struct FakeNode {
    processes: BTreeMap<u32, Fake>,
    listeners: BTreeMap<u64, Vec<Listener>>,
    unlisted: bool,
    /// Sockets of processes can't be seen.
    blind: bool,
    asked: RefCell<BTreeMap<&'static str, u32>>,
}

impl FakeNode {
    fn get(&self, tgid: u32, what: &'static str) -> io::Result<&Fake> {
        *self.asked.borrow_mut().entry(what).or_default() += 1;
        self.processes.get(&tgid).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn asked(&self, what: &str) -> u32 {
        self.asked.borrow().get(what).copied().unwrap_or_default()
    }
}

impl Node for &RefCell<FakeNode> {
    fn processes(&self) -> io::Result<Vec<u32>> {
        let node = self.borrow();
        if node.unlisted { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(node.processes.keys().copied().collect()) }
    }

    fn stat(&self, tgid: u32) -> io::Result<ProcessStat> {
        self.borrow().get(tgid, "stat").map(|fake| ProcessStat {
            id: ProcessId { tgid, start: fake.start },
            parent: fake.parent,
            name: fake.name.clone(),
            is_kernel: fake.is_kernel,
            arguments: fake.arguments,
        })
    }

    fn command_line(&self, tgid: u32) -> io::Result<Vec<String>> {
        self.borrow().get(tgid, "command_line").map(|fake| fake.words.clone())
    }

    fn cgroups(&self, tgid: u32) -> io::Result<Cgroups> {
        self.borrow().get(tgid, "cgroups").map(|fake| Cgroups::parse(&format!("0::{}\n", fake.cgroup)))
    }

    fn net_namespace(&self, tgid: u32) -> io::Result<u64> {
        self.borrow().get(tgid, "net_namespace").map(|fake| fake.namespace)
    }

    fn listeners(&self, tgid: u32) -> io::Result<Vec<Listener>> {
        let node = self.borrow();
        let namespace = node.get(tgid, "listeners")?.namespace;
        Ok(node.listeners.get(&namespace).cloned().unwrap_or_default())
    }

    fn sockets(&self, tgid: u32) -> io::Result<Vec<u64>> {
        if self.borrow().blind {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.borrow().get(tgid, "sockets").map(|fake| fake.sockets.clone())
    }
}

fn words(command_line: &str) -> Vec<String> {
    command_line.split(' ').map(str::to_owned).collect()
}

fn process(parent: u32, command_line: &str) -> Fake {
    let words = words(command_line);
    let name = words[0].chars().take(15).collect();
    let arguments = Some(0x7ffc_0000 + command_line.len() as u64);
    Fake { start: 100, parent, name, words, cgroup: "/".to_owned(), namespace: 1, arguments, ..Fake::default() }
}

fn listening(mut fake: Fake, inode: u64) -> Fake {
    fake.sockets.push(inode);
    fake
}

fn targets(texts: &[&str]) -> Vec<Target> {
    crate::attribute::targets::parse_all(texts).expect("good targets")
}

/// One scan after which the kernel half has what it was told.
fn scan(scanner: &mut Scanner<&RefCell<FakeNode>>, kernel: &mut InKernel) -> Changes {
    let changes = scanner.scan(kernel).expect("a list of processes");
    kernel.processes.extend(&changes.added_processes);
    kernel.processes.retain(|tgid| !changes.removed_processes.contains(tgid));
    kernel.ports.extend(changes.added_ports.iter().map(|port| port.port));
    kernel.ports.retain(|port| !changes.removed_ports.contains(port));
    changes
}

fn port(port: u16, claims: bool) -> Port {
    Port { port, claims }
}

#[test]
fn auto_finds_servers_their_children_and_their_ports() {
    let node = RefCell::new(FakeNode::default());
    {
        let mut node = node.borrow_mut();
        node.processes.insert(1, process(0, "init"));
        node.processes.insert(20, process(1, "grep vllm"));
        // A child with a smaller number than its parent, and a grandchild with a smaller one still.
        node.processes.insert(9, process(8, "worker"));
        node.processes.insert(8, process(30, "worker"));
        node.processes.insert(30, listening(process(1, "vllm serve m"), 4_711));
        node.processes.insert(40, listening(process(1, "nginx"), 4_712));
        node.listeners.insert(1, vec![Listener { port: 8_000, inode: 4_711 }, Listener { port: 80, inode: 4_712 }]);
    }
    let mut scanner = Scanner::of(&node, targets(&["auto"])).expect("targets");
    let mut kernel = InKernel::default();
    let changes = scan(&mut scanner, &mut kernel);
    assert_eq!(changes.added_processes, [8, 9, 30]);
    assert_eq!(changes.added_ports, [port(8_000, false)]);
    assert_eq!(
        scanner.member(9).map(|member| (member.reason.clone(), member.engine)),
        Some((Reason::Descends(8), Some(Engine::Vllm)))
    );
    assert_eq!(scanner.unmatched().count(), 0);
    assert!(scan(&mut scanner, &mut kernel).is_empty(), "nothing changed");
    // It ends; its orphans live on.
    node.borrow_mut().processes.remove(&30);
    node.borrow_mut().listeners.clear();
    let changes = scan(&mut scanner, &mut kernel);
    assert_eq!((changes.removed_processes, changes.removed_ports), (vec![30], vec![8_000]));
    assert_eq!(kernel.processes, BTreeSet::from([8, 9]));
    assert_eq!(scanner.unmatched().collect::<Vec<_>>(), [&Target::Auto]);
}

#[test]
fn children_that_the_kernel_half_added_stay_while_they_live() {
    let node = RefCell::new(FakeNode::default());
    node.borrow_mut().processes.insert(30, process(1, "vllm serve m"));
    let mut scanner = Scanner::of(&node, targets(&["auto"])).expect("targets");
    let mut kernel = InKernel::default();
    scan(&mut scanner, &mut kernel);
    // A child, and a grandchild whose parent is gone already.
    node.borrow_mut().processes.insert(31, process(30, "worker"));
    node.borrow_mut().processes.insert(32, process(1, "orphan"));
    kernel.processes.extend([31, 32, 33]);
    let changes = scan(&mut scanner, &mut kernel);
    assert_eq!(changes.removed_processes, [33], "33 ended before the scan");
    assert_eq!(kernel.processes, BTreeSet::from([30, 31, 32]));
    assert_eq!(scanner.member(31).map(|member| &member.reason), Some(&Reason::Descends(30)));
    assert_eq!(scanner.member(32).map(|member| &member.reason), Some(&Reason::Kernel));
    node.borrow_mut().processes.remove(&32);
    assert_eq!(scan(&mut scanner, &mut kernel).removed_processes, [32]);
}

#[test]
fn what_the_kernel_half_lost_is_given_again() {
    let node = RefCell::new(FakeNode::default());
    node.borrow_mut().processes.insert(30, process(1, "vllm serve m"));
    let mut scanner = Scanner::of(&node, targets(&["auto"])).expect("targets");
    for _ in 0..2 {
        assert_eq!(scanner.scan(&InKernel::default()).expect("a list").added_processes, [30]);
    }
}

#[test]
fn a_port_target_claims_and_finds_who_listens_in_any_namespace() {
    let node = RefCell::new(FakeNode::default());
    {
        let mut node = node.borrow_mut();
        let mut pod = listening(listening(process(1, "uvicorn"), 7), 8);
        pod.namespace = 2;
        node.processes.insert(50, pod);
        node.processes.insert(51, Fake { namespace: 2, ..process(50, "worker") });
        node.processes.insert(60, listening(process(1, "nginx"), 9));
        node.listeners.insert(1, vec![Listener { port: 80, inode: 9 }]);
        node.listeners.insert(2, vec![Listener { port: 8_000, inode: 7 }, Listener { port: 9_090, inode: 8 }]);
    }
    let mut scanner = Scanner::of(&node, targets(&["port:8000"])).expect("targets");
    let mut kernel = InKernel::default();
    let changes = scan(&mut scanner, &mut kernel);
    assert_eq!(changes.added_processes, [50, 51]);
    assert_eq!(changes.added_ports, [port(8_000, true)], "9090 of the same process was not asked for");
    assert_eq!(scanner.member(50).map(|member| &member.reason), Some(&Reason::Listens(8_000)));
    assert_eq!(scanner.unmatched().count(), 0);
}

#[test]
fn ports_that_the_kernel_half_added_stay_while_a_target_listens_there() {
    let node = RefCell::new(FakeNode::default());
    node.borrow_mut().processes.insert(30, listening(process(1, "vllm serve m"), 7));
    node.borrow_mut().listeners.insert(1, vec![Listener { port: 8_000, inode: 7 }, Listener { port: 22, inode: 6 }]);
    let mut scanner = Scanner::of(&node, targets(&["auto"])).expect("targets");
    // 8000 is there, 9000 was closed again before this scan, 22 is somebody else's.
    let mut kernel = InKernel { ports: BTreeSet::from([22, 8_000, 9_000]), ..InKernel::default() };
    let changes = scan(&mut scanner, &mut kernel);
    assert_eq!((changes.added_ports, changes.removed_ports), (vec![], vec![22, 9_000]));
}

#[test]
fn a_port_of_a_target_whose_sockets_can_not_be_seen_is_left_to_the_kernel_half() {
    let node = RefCell::new(FakeNode { blind: true, ..FakeNode::default() });
    node.borrow_mut().processes.insert(30, listening(process(1, "vllm serve m"), 7));
    node.borrow_mut().listeners.insert(1, vec![Listener { port: 8_000, inode: 7 }]);
    let mut scanner = Scanner::of(&node, targets(&["auto"])).expect("targets");
    let mut kernel = InKernel { ports: BTreeSet::from([8_000, 9_000]), ..InKernel::default() };
    let changes = scan(&mut scanner, &mut kernel);
    assert_eq!((changes.added_ports, changes.removed_ports), (vec![], vec![9_000]));
}

#[test]
fn a_port_target_waits_for_its_server() {
    let node = RefCell::new(FakeNode::default());
    node.borrow_mut().processes.insert(60, process(1, "server"));
    let mut scanner = Scanner::of(&node, targets(&["port:8000"])).expect("targets");
    let mut kernel = InKernel::default();
    assert_eq!(scan(&mut scanner, &mut kernel).added_ports, [port(8_000, true)]);
    assert_eq!(scanner.unmatched().count(), 1);
    // The socket is there one scan before its holder shows it.
    node.borrow_mut().listeners.insert(1, vec![Listener { port: 8_000, inode: 7 }]);
    assert!(scan(&mut scanner, &mut kernel).is_empty());
    node.borrow_mut().processes.insert(60, listening(process(1, "server"), 7));
    assert_eq!(scan(&mut scanner, &mut kernel).added_processes, [60]);
    // Closed: the port stays claimed, the process stays while it lives.
    node.borrow_mut().listeners.clear();
    assert!(scan(&mut scanner, &mut kernel).is_empty());
}

#[test]
fn targets_add_up_and_a_match_counts_for_more_than_a_port() {
    let node = RefCell::new(FakeNode::default());
    {
        let mut node = node.borrow_mut();
        node.processes.insert(50, listening(listening(process(1, "server"), 7), 8));
        node.processes.insert(51, Fake { cgroup: "/pod/a".to_owned(), ..process(1, "other") });
        node.processes.insert(52, Fake { cgroup: "/podium".to_owned(), ..process(1, "third") });
        node.listeners.insert(1, vec![Listener { port: 8_000, inode: 7 }, Listener { port: 9_090, inode: 8 }]);
    }
    let mut scanner = Scanner::of(&node, targets(&["port:8000", "comm:server", "cgroup:/pod", "pid:999"])).expect("targets");
    let changes = scanner.scan(&InKernel::default()).expect("a list");
    assert_eq!(changes.added_processes, [50, 51]);
    assert_eq!(changes.added_ports, [port(8_000, true), port(9_090, false)]);
    let unmatched: Vec<String> = scanner.unmatched().map(ToString::to_string).collect();
    assert_eq!(unmatched, ["port:8000", "pid:999"]);
}

#[test]
fn a_pid_target_is_that_process_and_not_who_gets_its_number() {
    let node = RefCell::new(FakeNode::default());
    node.borrow_mut().processes.insert(50, process(1, "server"));
    let mut scanner = Scanner::of(&node, targets(&["pid:50"])).expect("targets");
    let mut kernel = InKernel::default();
    assert_eq!(scan(&mut scanner, &mut kernel).added_processes, [50]);
    node.borrow_mut().processes.insert(50, Fake { start: 200, ..process(1, "another") });
    assert_eq!(scan(&mut scanner, &mut kernel).removed_processes, [50]);
    assert!(scan(&mut scanner, &mut kernel).is_empty());
}

#[test]
fn an_orphan_is_no_child_of_who_gets_its_parents_number() {
    let node = RefCell::new(FakeNode::default());
    node.borrow_mut().processes.insert(30, process(1, "sh"));
    node.borrow_mut().processes.insert(31, process(30, "sleep"));
    let mut scanner = Scanner::of(&node, targets(&["auto"])).expect("targets");
    let mut kernel = InKernel::default();
    assert!(scan(&mut scanner, &mut kernel).is_empty());
    node.borrow_mut().processes.remove(&30);
    assert!(scan(&mut scanner, &mut kernel).is_empty());
    node.borrow_mut().processes.insert(30, Fake { start: 300, ..process(1, "vllm serve m") });
    assert_eq!(scan(&mut scanner, &mut kernel).added_processes, [30]);
}

#[test]
fn an_exec_is_seen_at_once_while_young_and_within_the_rounds_later() {
    for age in [1, 40] {
        let node = RefCell::new(FakeNode::default());
        node.borrow_mut().processes.insert(30, process(1, "sh -c run"));
        let mut scanner = Scanner::of(&node, targets(&["auto"])).expect("targets");
        let mut kernel = InKernel::default();
        for _ in 0..age {
            assert!(scan(&mut scanner, &mut kernel).is_empty());
        }
        node.borrow_mut().processes.insert(30, process(1, "llama-server -m x"));
        let within = if age == 1 { 1 } else { ROUNDS };
        let scans = (1..=within).find(|_| !scan(&mut scanner, &mut kernel).is_empty());
        assert!(scans.is_some(), "not seen in {within} scans at the age of {age}");
    }
}

#[test]
fn a_title_set_after_the_name_and_an_exec_that_can_not_be_told_are_seen() {
    for arguments in [Some(7), None] {
        let node = RefCell::new(FakeNode::default());
        node.borrow_mut().processes.insert(30, Fake { arguments, ..process(1, "python3 default_worker.py") });
        let mut scanner = Scanner::of(&node, targets(&["auto"])).expect("targets");
        for _ in 0..5 * ROUNDS {
            assert!(scanner.scan(&InKernel::default()).expect("a list").is_empty());
        }
        let mut titled = Fake { arguments, ..process(1, "ray::ProxyActor") };
        let words = std::mem::replace(&mut titled.words, vec!["python3".to_owned()]);
        if arguments.is_none() {
            titled.name = "python3".to_owned();
        }
        node.borrow_mut().processes.insert(30, titled.clone());
        for _ in 0..ROUNDS {
            assert!(scanner.scan(&InKernel::default()).expect("a list").is_empty());
        }
        node.borrow_mut().processes.insert(30, Fake { words, ..titled });
        let found = (0..ROUNDS).any(|_| !scanner.scan(&InKernel::default()).expect("a list").is_empty());
        assert!(found, "{arguments:?}");
    }
}

#[test]
fn threads_of_the_kernel_are_not_looked_at_again() {
    let node = RefCell::new(FakeNode::default());
    for tgid in 2..102 {
        node.borrow_mut().processes.insert(tgid, Fake { is_kernel: true, words: Vec::new(), ..process(0, "kworker") });
    }
    let mut scanner = Scanner::of(&node, targets(&["auto", "comm:kworker", "cgroup:/"])).expect("targets");
    for _ in 0..3 * ROUNDS {
        assert!(scanner.scan(&InKernel::default()).expect("a list").is_empty());
    }
    assert_eq!((node.borrow().asked("stat"), node.borrow().asked("command_line")), (100, 0));
}

#[test]
fn a_scan_without_news_asks_little() {
    let node = RefCell::new(FakeNode::default());
    for tgid in 100..2_100 {
        node.borrow_mut().processes.insert(tgid, listening(process(1, "app"), u64::from(tgid)));
    }
    node.borrow_mut().processes.insert(30, listening(process(1, "vllm serve m"), 7));
    node.borrow_mut().listeners.insert(1, vec![Listener { port: 8_000, inode: 7 }]);
    let mut scanner = Scanner::of(&node, targets(&["auto"])).expect("targets");
    let mut kernel = InKernel::default();
    for _ in 0..=YOUNG {
        scan(&mut scanner, &mut kernel);
    }
    node.borrow().asked.borrow_mut().clear();
    scan(&mut scanner, &mut kernel);
    let node = node.borrow();
    assert!(node.asked("stat") <= 2_000 / ROUNDS + 2, "{:?}", node.asked);
    assert_eq!((node.asked("listeners"), node.asked("sockets"), node.asked("command_line")), (1, 0, 0), "{:?}", node.asked);
}

#[test]
fn all_yields_every_port_and_no_process() {
    let node = RefCell::new(FakeNode::default());
    node.borrow_mut().processes.insert(50, listening(process(1, "a"), 7));
    node.borrow_mut().processes.insert(51, Fake { namespace: 2, ..process(1, "b") });
    node.borrow_mut().listeners.insert(1, vec![Listener { port: 80, inode: 7 }]);
    node.borrow_mut().listeners.insert(2, vec![Listener { port: 81, inode: 8 }]);
    let mut scanner = Scanner::of(&node, targets(&["all", "comm:a"])).expect("targets");
    let changes = scanner.scan(&InKernel { processes: BTreeSet::from([4]), ports: BTreeSet::from([80, 82]) }).expect("a list");
    assert!(scanner.all());
    let expected = Changes { added_ports: vec![port(81, false)], removed_ports: vec![82], ..Changes::default() };
    assert_eq!(changes, expected);
}

#[test]
fn without_a_list_nothing_is_taken_out() {
    let node = RefCell::new(FakeNode::default());
    node.borrow_mut().processes.insert(30, process(1, "vllm serve m"));
    let mut scanner = Scanner::of(&node, targets(&["auto"])).expect("targets");
    let mut kernel = InKernel::default();
    scan(&mut scanner, &mut kernel);
    node.borrow_mut().unlisted = true;
    let error = scanner.scan(&kernel).expect_err("no list");
    assert!(error.to_string().contains("is /proc mounted?"), "{error}");
    node.borrow_mut().unlisted = false;
    assert!(scan(&mut scanner, &mut kernel).is_empty());
}

#[test]
fn a_unix_target_is_refused_with_what_to_do() {
    let error = Scanner::new(targets(&["comm:a", "unix:/run/a.sock"])).expect_err("not measured yet").to_string();
    assert!(error.contains("`unix:/run/a.sock`") && error.contains("not measured yet") && error.contains("pid:"), "{error}");
}

/// On this machine: a listener of this process, and of a child, by each kind of target.
#[test]
fn real_listeners_are_found() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let number = listener.local_addr().expect("bound").port();
    let this = std::process::id();
    let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
    let by_port = Scanner::new(vec![Target::Port(number)]).map(|mut scanner| (scanner.scan(&InKernel::default()), scanner));
    let by_pid = Scanner::new(vec![Target::Pid(this)]).map(|mut scanner| (scanner.scan(&InKernel::default()), scanner));
    let _ = child.kill();
    let _ = child.wait();
    for (claims, result) in [(true, by_port), (false, by_pid)] {
        let (changes, scanner) = result.expect("targets");
        let changes = changes.expect("procfs");
        assert!(changes.added_processes.contains(&this) && changes.added_processes.contains(&child.id()), "{changes:?}");
        assert!(changes.added_ports.contains(&port(number, claims)), "{changes:?}");
        assert!(scanner.member(this).is_some_and(|member| member.ports.contains(&number)));
    }
}
