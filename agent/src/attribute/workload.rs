//! The labels W of the contract: `namespace, pod, container, workload`.

use std::{collections::HashMap, sync::Arc};

use serde::Serialize;

use super::{
    cgroup::Cgroups,
    engine::Engine,
    node::{Node, ProcFs},
    process::ProcessId,
};
use crate::clock;

/// Who answered a request or owns an I/O.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Workload {
    /// Kubernetes namespace; empty outside.
    pub namespace: String,
    /// Pod; empty outside Kubernetes.
    pub pod: String,
    /// Container; empty outside Kubernetes.
    pub container: String,
    /// `namespace/pod/container`, else the systemd unit, else the process name.
    pub workload: String,
}

/// Label `workload` of a process that was gone before it could be looked at.
pub const UNKNOWN: &str = "unknown";

impl Workload {
    /// Of a process outside Kubernetes.
    #[must_use]
    pub fn of_host(cgroups: &Cgroups, name: &str) -> Self {
        Self { workload: cgroups.unit().unwrap_or(name).to_owned(), ..Self::default() }
    }

    /// Of a process of which nothing is known.
    #[must_use]
    pub fn unknown() -> Self {
        Self { workload: UNKNOWN.to_owned(), ..Self::default() }
    }
}

/// A process and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Which process.
    pub id: ProcessId,
    /// Its name: that of its first thread.
    pub name: String,
    /// Its cgroup's path, see [`Cgroups::path`].
    pub cgroup: Option<String>,
    /// The id of its cgroup of v2, where that is to be seen.
    pub cgroup_id: Option<u64>,
    /// Whose it is.
    pub workload: Workload,
}

/// How long a look at `/proc` is good for: names change with `exec`, groups when a process is moved.
const FRESH_NS: u64 = 1_000_000_000;
/// Most processes that are kept.
pub const CAPACITY: usize = 4_096;

/// Processes by tgid, so that `/proc` is read once a second and process at most, and the dead are still known.
///
/// Memory: [`CAPACITY`] processes and one predecessor each; about 400 bytes a process, so under 4 MB.
#[derive(Debug, Default)]
pub struct Workloads {
    known: HashMap<u32, Entry>,
    /// What the measured processes of a name have in common, with the time at which there last was one.
    names: HashMap<NameAndGroup, (Kin, u64)>,
}

/// How long the measured processes of a name are remembered after the last one was seen.
const NAMES_NS: u64 = 300 * 1_000_000_000;
/// Most names that are remembered.
const NAMES: usize = 1_024;

/// A process's name, and the id of its cgroup where that is to be seen.
type NameAndGroup = (String, Option<u64>);

/// What the measured processes of one name in one cgroup have in common; `None` where they differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kin {
    /// Whose they are.
    pub workload: Option<Workload>,
    /// Which server they run.
    pub engine: Option<Engine>,
}

#[derive(Debug)]
struct Entry {
    /// Who has this tgid, or had it last.
    process: Arc<Process>,
    /// Who had it before.
    before: Option<Arc<Process>>,
    looked_ns: u64,
    used_ns: u64,
}

impl Workloads {
    /// The process that had `tgid` at the time `at_ns`; `now_ns` is the present, both CLOCK_MONOTONIC.
    ///
    /// `None`: it was gone before it could be looked at; who has the number now is not taken for it.
    pub fn resolve(&mut self, tgid: u32, at_ns: u64, now_ns: u64) -> Option<Arc<Process>> {
        self.resolve_with(tgid, at_ns, now_ns, |tgid| look(&ProcFs, tgid))
    }

    fn resolve_with(&mut self, tgid: u32, at_ns: u64, now_ns: u64, look: fn(u32) -> Option<Process>) -> Option<Arc<Process>> {
        if self.known.get(&tgid).is_none_or(|entry| now_ns.saturating_sub(entry.looked_ns) >= FRESH_NS) {
            match (look(tgid), self.known.get_mut(&tgid)) {
                (Some(found), Some(entry)) => entry.renew(found, now_ns),
                (Some(found), None) => self.insert(tgid, found, now_ns),
                // Gone: what was seen of it stays.
                (None, Some(entry)) => entry.looked_ns = now_ns,
                (None, None) => return None,
            }
        }
        let entry = self.known.get_mut(&tgid)?;
        entry.used_ns = now_ns;
        let had_it = |process: &&Arc<Process>| start_ns(process.id.start) <= at_ns;
        Some(&entry.process).into_iter().chain(&entry.before).find(had_it).cloned()
    }

    /// Takes what a scan saw of a process: it is known from now on, also when it has died before its first request is read.
    pub fn learn(&mut self, process: Process, now_ns: u64) {
        let tgid = process.id.tgid;
        match self.known.get_mut(&tgid) {
            Some(entry) => entry.renew(process, now_ns),
            None => self.insert(tgid, process, now_ns),
        }
    }

    /// Takes which processes are measured now, and which server each runs, if a known one.
    pub fn learn_names(&mut self, members: impl IntoIterator<Item = (ProcessId, Option<Engine>)>, now_ns: u64) {
        let mut now: HashMap<NameAndGroup, Kin> = HashMap::new();
        for (id, engine) in members {
            let Some(process) = self.known.get(&id.tgid).map(|entry| &entry.process).filter(|process| process.id == id) else {
                continue;
            };
            let kin = now
                .entry((process.name.clone(), process.cgroup_id))
                .or_insert_with(|| Kin { workload: Some(process.workload.clone()), engine });
            kin.workload = kin.workload.take().filter(|workload| *workload == process.workload);
            kin.engine = kin.engine.filter(|other| Some(*other) == engine);
        }
        for (name, kin) in now {
            if self.names.len() < NAMES || self.names.contains_key(&name) {
                self.names.insert(name, (kin, now_ns));
            }
        }
        self.names.retain(|_, (_, seen_ns)| now_ns.saturating_sub(*seen_ns) < NAMES_NS);
    }

    /// What measured processes of this name and this cgroup have in common, seen within the last five minutes: for one that was gone
    /// before it could be looked at, as the child that a server forks for a connection is. Where cgroups are not to be seen, the name
    /// alone counts.
    #[must_use]
    pub fn kin(&self, name: &str, cgroup_id: u64) -> Option<&Kin> {
        let of = |group| self.names.get(&(name.to_owned(), group)).map(|(kin, _)| kin);
        of(Some(cgroup_id)).or_else(|| of(None))
    }

    /// How many processes are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Is none kept?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn insert(&mut self, tgid: u32, process: Process, now_ns: u64) {
        if self.known.len() >= CAPACITY {
            // An eighth at once, so that the search is paid for rarely.
            let mut by_use: Vec<(u64, u32)> = self.known.iter().map(|(tgid, entry)| (entry.used_ns, *tgid)).collect();
            by_use.sort_unstable();
            for (_, unused) in by_use.into_iter().take(CAPACITY / 8) {
                self.known.remove(&unused);
            }
        }
        let entry = Entry { process: Arc::new(process), before: None, looked_ns: now_ns, used_ns: now_ns };
        self.known.insert(tgid, entry);
    }
}

impl Entry {
    fn renew(&mut self, found: Process, now_ns: u64) {
        self.looked_ns = now_ns;
        if *self.process != found {
            let new_process = self.process.id != found.id;
            let old = std::mem::replace(&mut self.process, Arc::new(found));
            if new_process {
                self.before = Some(old);
            }
        }
    }
}

/// Reads a process; `None` where it is gone.
#[must_use]
pub fn look(node: &impl Node, tgid: u32) -> Option<Process> {
    let stat = node.stat(tgid).ok()?;
    let cgroups = node.cgroups(tgid).ok()?;
    // The number may have gone to another process in between.
    if node.stat(tgid).ok()?.id != stat.id {
        return None;
    }
    let workload = Workload::of_host(&cgroups, &stat.name);
    let cgroup_id = cgroups.unified().and_then(|path| node.cgroup_id(path));
    Some(Process { id: stat.id, name: stat.name, cgroup: cgroups.path().map(str::to_owned), cgroup_id, workload })
}

/// A start time in ns of CLOCK_MONOTONIC, rounded down, so that it is never after the real start.
fn start_ns(start_ticks: u64) -> u64 {
    let boottime = u128::from(start_ticks) * 1_000_000_000 / u128::from(procfs::ticks_per_second().max(1));
    let asleep = clock::boottime_ns().saturating_sub(clock::monotonic_ns());
    u64::try_from(boottime).unwrap_or(u64::MAX).saturating_sub(asleep)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const LATE: u64 = 1 << 62;

    fn process(tgid: u32, start: u64, name: &str) -> Process {
        let workload = Workload { workload: name.to_owned(), ..Workload::default() };
        Process { id: ProcessId { tgid, start }, name: name.to_owned(), cgroup: None, cgroup_id: None, workload }
    }

    fn name(process: Option<Arc<Process>>) -> Option<String> {
        process.map(|process| process.name.clone())
    }

    #[test]
    fn a_unit_names_the_workload_and_a_process_without_one_itself() {
        let in_unit = Cgroups::parse("0::/system.slice/vllm@1.service\n");
        assert_eq!(Workload::of_host(&in_unit, "python3").workload, "vllm@1.service");
        let outside = Workload::of_host(&Cgroups::parse("0::/user.slice/session-3.scope\n"), "python3");
        assert_eq!(outside, Workload { workload: "python3".to_owned(), ..Workload::default() });
    }

    #[test]
    fn a_process_that_died_is_still_known() {
        let mut workloads = Workloads::default();
        assert_eq!(name(workloads.resolve_with(7, LATE, 0, |tgid| Some(process(tgid, 1, "nginx")))).as_deref(), Some("nginx"));
        assert_eq!(name(workloads.resolve_with(7, LATE, 9 * SECOND, |_| None)).as_deref(), Some("nginx"));
        assert_eq!(name(workloads.resolve_with(8, LATE, 9 * SECOND, |_| None)), None, "never seen");
    }

    #[test]
    fn proc_is_looked_at_once_a_second() {
        let mut workloads = Workloads::default();
        assert!(workloads.resolve_with(7, LATE, 0, |tgid| Some(process(tgid, 1, "bash"))).is_some());
        let exec = |tgid| Some(process(tgid, 1, "vllm"));
        assert_eq!(name(workloads.resolve_with(7, LATE, SECOND - 1, exec)).as_deref(), Some("bash"));
        assert_eq!(name(workloads.resolve_with(7, LATE, SECOND, exec)).as_deref(), Some("vllm"), "the name changed by exec");
    }

    #[test]
    fn a_number_given_again_is_another_process() {
        let mut workloads = Workloads::default();
        let later = start_ns(1_000_000_000);
        assert!(workloads.resolve_with(7, 2 * SECOND, 0, |tgid| Some(process(tgid, 1, "old"))).is_some());
        let reused = |tgid| Some(process(tgid, 1_000_000_000, "new"));
        assert_eq!(name(workloads.resolve_with(7, later + SECOND, 2 * SECOND, reused)).as_deref(), Some("new"));
        assert_eq!(name(workloads.resolve_with(7, later - SECOND, 2 * SECOND, reused)).as_deref(), Some("old"));
    }

    #[test]
    fn who_has_the_number_now_is_not_taken_for_who_had_it() {
        let mut workloads = Workloads::default();
        let young = |tgid| Some(process(tgid, 1_000_000_000, "young"));
        assert_eq!(name(workloads.resolve_with(7, start_ns(1_000_000_000) - 1, 0, young)), None);
    }

    #[test]
    fn kin_is_what_processes_of_a_name_share() {
        let mut workloads = Workloads::default();
        let of = |tgid, name: &str, unit: &str| {
            let workload = Workload { workload: unit.to_owned(), ..Workload::default() };
            Process { workload, ..process(tgid, 1, name) }
        };
        let id = |tgid| ProcessId { tgid, start: 1 };
        for found in
            [of(1, "vllm", "a.service"), of(2, "vllm", "a.service"), of(3, "python3", "a.service"), of(4, "python3", "b.service")]
        {
            workloads.learn(found, 0);
        }
        let members = || (1..5).map(|tgid| (id(tgid), (tgid < 3).then_some(Engine::Vllm)));
        workloads.learn_names(members(), 0);
        let unit =
            |workloads: &Workloads, name| workloads.kin(name, 7).and_then(|kin| kin.workload.clone()).map(|it| it.workload);
        assert_eq!(unit(&workloads, "vllm").as_deref(), Some("a.service"));
        assert_eq!(workloads.kin("vllm", 7).and_then(|kin| kin.engine), Some(Engine::Vllm));
        assert_eq!((unit(&workloads, "python3"), unit(&workloads, "nginx")), (None, None));
        // Remembered for a while after the last one, and who has their numbers now is not taken for them.
        workloads.learn_names((1..5).map(|tgid| (ProcessId { tgid, start: 9 }, None)), NAMES_NS - 1);
        assert_eq!(unit(&workloads, "vllm").as_deref(), Some("a.service"));
        workloads.learn_names([], NAMES_NS);
        assert_eq!(unit(&workloads, "vllm"), None);
    }

    #[test]
    fn who_stands_in_another_cgroup_is_no_kin() {
        let mut workloads = Workloads::default();
        for (tgid, group) in [(1, 7), (2, 8)] {
            let workload = Workload { workload: format!("{group}.service"), ..Workload::default() };
            workloads.learn(Process { workload, cgroup_id: Some(group), ..process(tgid, 1, "python3") }, 0);
        }
        workloads.learn_names((1..3).map(|tgid| (ProcessId { tgid, start: 1 }, None)), 0);
        let unit = |group| workloads.kin("python3", group).and_then(|kin| kin.workload.clone()).map(|it| it.workload);
        assert_eq!((unit(7).as_deref(), unit(8).as_deref(), unit(9)), (Some("7.service"), Some("8.service"), None));
    }

    #[test]
    fn names_are_bounded() {
        let mut workloads = Workloads::default();
        for tgid in 0..3_000 {
            workloads.learn(process(tgid, 1, &format!("p{tgid}")), 0);
        }
        workloads.learn_names((0..3_000).map(|tgid| (ProcessId { tgid, start: 1 }, None)), 0);
        assert_eq!(workloads.names.len(), NAMES);
    }

    #[test]
    fn memory_is_bounded_and_the_used_stay() {
        let mut workloads = Workloads::default();
        let look = |tgid| Some(process(tgid, 1, "p"));
        for tgid in 0..3 * 4_096 {
            assert!(workloads.resolve_with(tgid, LATE, u64::from(tgid) + 1, look).is_some());
            assert!(workloads.resolve_with(0, LATE, u64::from(tgid) + 1, |_| None).is_some(), "0 is used all the time");
            assert!(workloads.len() <= CAPACITY);
        }
        assert!(!workloads.is_empty());
    }

    #[test]
    fn this_process_is_named_by_its_first_thread() {
        let tgid = std::process::id();
        let expected = std::fs::read_to_string(crate::attribute::process::path(tgid, "comm")).expect("procfs");
        let now = clock::monotonic_ns();
        let found = Workloads::default().resolve(tgid, now, now).expect("this process");
        assert_eq!(found.name, expected.trim_end());
        assert!(found.cgroup.as_deref().is_some_and(|path| path.starts_with('/')));
        assert!(start_ns(found.id.start) <= now);
    }
}
