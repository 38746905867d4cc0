//! Finds the processes and ports that the targets mean, and what changed since the last scan.
//!
//! Cost: a process is looked at when it is new, a few times while it is young (it may still `exec`), and every
//! [`ROUNDS`] scans after that; targets are checked each time. Listening sockets are read once a network namespace, and who
//! holds them is looked up when one is new. `docs/targets.md` has figures.

mod ports;
mod processes;
#[cfg(test)]
mod tests;
mod thread;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt, io,
};

use serde::Serialize;
pub use thread::{Found, Known, ScanThread};

use super::{
    engine::Engine,
    node::{Node, ProcFs},
    process::ProcessId,
    targets::Target,
};

/// In this many scans, one after another, a new process is looked at each time.
pub const YOUNG: u32 = 5;
/// After that it is looked at once in this many scans: the longest that an `exec` into a server goes unseen.
pub const ROUNDS: u32 = 8;
/// In this many looks after a change of its name or arguments the command line is read: a title may be set after the name.
const SETTLED: u32 = 3;
/// Who holds the listening sockets is looked up anew in this many scans: a socket may be handed to another process.
const REFRESH: u32 = 32;

/// Why targets can't be scanned for.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// A unix socket as a target.
    #[error(
        "target `{target}`: requests over unix sockets are not measured yet; name the server by comm:, pid: or cgroup:, and let it listen on TCP"
    )]
    UnixNotMeasured {
        /// The target.
        target: Target,
    },
    /// No list of processes.
    #[error("the processes can't be listed ({0}); is /proc mounted? In a container: hostPID, and no hidepid")]
    NoProcesses(#[source] io::Error),
}

/// What the maps of the kernel half hold, read before a scan: it adds children of targets, and ports on which they begin to
/// listen, by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InKernel {
    /// Processes.
    pub processes: BTreeSet<u32>,
    /// Ports.
    pub ports: BTreeSet<u16>,
}

/// What the maps of the kernel half must be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Processes to add.
    pub added_processes: Vec<u32>,
    /// Processes to take out: they ended.
    pub removed_processes: Vec<u32>,
    /// Ports to add.
    pub added_ports: Vec<Port>,
    /// Ports to take out: nobody listens there any more.
    pub removed_ports: Vec<u16>,
}

impl Changes {
    /// Is there nothing to do?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A port of a server that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// Local TCP port.
    pub port: u16,
    /// A `port:` target: whoever begins to listen on it is a target by that.
    pub claims: bool,
}

/// Why a process is a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// It matches this target.
    Matches(Target),
    /// It listens on the port of a `port:` target.
    Listens(u16),
    /// It descends from this process, which is one.
    Descends(u32),
    /// The kernel half found it first: by `fork`, or by its beginning to listen on a `port:` target.
    Kernel,
}

impl fmt::Display for Reason {
    /// As the log and the API have it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Matches(target) => write!(out, "{target}"),
            Self::Listens(port) => write!(out, "port:{port}"),
            Self::Descends(parent) => write!(out, "child of process {parent}"),
            Self::Kernel => out.write_str("seen in the kernel"),
        }
    }
}

/// A process that is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which process.
    pub id: ProcessId,
    /// Its name.
    pub name: String,
    /// Why it is measured.
    pub reason: Reason,
    /// Which server it runs, or the process it descends from, if a known one.
    pub engine: Option<Engine>,
    /// The TCP ports it is measured on.
    pub ports: BTreeSet<u16>,
    /// Are all its ports measured, or only those of `port:` targets?
    pub every_port: bool,
    /// Listening sockets it holds; `None`: to be looked up.
    sockets: Option<HashSet<u64>>,
}

/// A process that was looked at.
#[derive(Clone, Copy, Debug)]
struct Seen {
    id: ProcessId,
    parent: u32,
    is_kernel: bool,
    looks: u32,
    /// Name and place of the arguments, as one number: another one after an `exec` or a new title.
    image: u64,
    /// Looks since that number changed.
    unchanged: u32,
    namespace: Option<u64>,
}

/// The listening sockets of a network namespace.
#[derive(Clone, Debug, Default)]
struct Table {
    /// Number → port.
    sockets: HashMap<u64, u16>,
    /// Are there some that the last scan did not have?
    news: bool,
    /// How often the holders of a socket on the port of a `port:` target were searched for.
    searches: HashMap<u64, u32>,
}

/// Keeps what is known between scans. One scan a second is meant.
///
/// Memory: 100 bytes a process of the node, and what its targets hold.
#[derive(Debug)]
pub struct Scanner<N = ProcFs> {
    node: N,
    targets: Vec<Target>,
    round: u32,
    seen: HashMap<u32, Seen>,
    members: BTreeMap<u32, Member>,
    /// Numbers of members that ended and were given again within this scan.
    replaced: HashSet<u32>,
    /// The first process that each `pid:` target meant.
    pinned: HashMap<u32, ProcessId>,
    /// Listening sockets by network namespace.
    tables: HashMap<u64, Table>,
}

impl Scanner {
    /// For this machine.
    ///
    /// # Errors
    /// [`ScanError::UnixNotMeasured`].
    pub fn new(targets: Vec<Target>) -> Result<Self, ScanError> {
        Self::of(ProcFs, targets)
    }
}

impl<N: Node> Scanner<N> {
    /// For any node.
    ///
    /// # Errors
    /// [`ScanError::UnixNotMeasured`].
    pub fn of(node: N, targets: Vec<Target>) -> Result<Self, ScanError> {
        if let Some(target) = targets.iter().find(|target| matches!(target, Target::Unix(_))) {
            return Err(ScanError::UnixNotMeasured { target: target.clone() });
        }
        Ok(Self {
            node,
            targets,
            round: 0,
            seen: HashMap::new(),
            members: BTreeMap::new(),
            replaced: HashSet::new(),
            pinned: HashMap::new(),
            tables: HashMap::new(),
        })
    }

    /// Is every process a target? The kernel half has a global for that; [`Scanner::scan`] yields ports alone then.
    #[must_use]
    pub fn all(&self) -> bool {
        self.targets.contains(&Target::All)
    }

    /// The node.
    fn node(&self) -> &N {
        &self.node
    }

    /// The targets.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// The processes that are measured, by tgid; none where [`Scanner::all`].
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The process of this tgid, if it is measured.
    #[must_use]
    pub fn member(&self, tgid: u32) -> Option<&Member> {
        self.members.get(&tgid)
    }

    /// Targets that mean no process now, for a user who wonders.
    pub fn unmatched(&self) -> impl Iterator<Item = &Target> {
        let met = |target: &Target| {
            *target == Target::All
                || self.members.values().any(|member| match (&member.reason, target) {
                    (Reason::Matches(by), target) => by == target,
                    (Reason::Listens(by), Target::Port(port)) => by == port,
                    _ => false,
                })
        };
        self.targets.iter().filter(move |target| !met(target))
    }

    /// Looks at the node. `in_kernel` is what the kernel half has now.
    ///
    /// # Errors
    /// [`ScanError::NoProcesses`]; nothing is changed then.
    pub fn scan(&mut self, in_kernel: &InKernel) -> Result<Changes, ScanError> {
        let alive: BTreeSet<u32> = self.node.processes().map_err(ScanError::NoProcesses)?.into_iter().collect();
        self.round = self.round.wrapping_add(1);
        self.replaced.clear();
        self.bury(&alive);
        for tgid in &alive {
            self.visit(*tgid);
        }
        let every_namespace = self.every_namespace();
        if every_namespace {
            self.read_tables();
            self.find_port_owners();
        }
        self.adopt(&in_kernel.processes);
        self.descend();
        if !every_namespace {
            self.read_tables();
        }
        self.find_ports();
        Ok(self.changes(in_kernel))
    }
}

impl<N: Node> Scanner<N> {
    /// What the kernel half lacks, and what it has too much.
    fn changes(&self, in_kernel: &InKernel) -> Changes {
        let ports = self.wanted_ports();
        let InKernel { processes, ports: kernel_ports } = in_kernel;
        let surplus = processes.iter().filter(|tgid| !self.members.contains_key(tgid) && !self.all());
        let added = ports.iter().filter(|(port, _)| !kernel_ports.contains(port));
        Changes {
            added_processes: self.members.keys().filter(|tgid| !processes.contains(tgid)).copied().collect(),
            removed_processes: surplus.copied().collect(),
            added_ports: added.map(|(port, claims)| Port { port: *port, claims: *claims }).collect(),
            removed_ports: kernel_ports
                .iter()
                .filter(|port| !ports.contains_key(port) && self.is_idle(**port))
                .copied()
                .collect(),
        }
    }
}
