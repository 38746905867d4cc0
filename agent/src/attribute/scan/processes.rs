//! Which processes the targets mean.

use std::{
    cell::OnceCell,
    collections::{BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use super::{Member, ROUNDS, Reason, SETTLED, Scanner, Seen, YOUNG};
use crate::attribute::{engine::Engine, node::Node, process::ProcessStat, targets::Target};

impl<N: Node> Scanner<N> {
    /// Forgets who is gone.
    pub(super) fn bury(&mut self, alive: &BTreeSet<u32>) {
        let gone: HashSet<u32> = self.seen.keys().filter(|tgid| !alive.contains(tgid)).copied().collect();
        if gone.is_empty() {
            return;
        }
        self.seen.retain(|tgid, _| !gone.contains(tgid));
        for seen in self.seen.values_mut().filter(|seen| gone.contains(&seen.parent)) {
            // An orphan: who gets its parent's number next is not its parent.
            seen.parent = 0;
        }
        self.members.retain(|tgid, _| !gone.contains(tgid));
    }

    /// Looks at one process, if it is due.
    pub(super) fn visit(&mut self, tgid: u32) {
        let due = self
            .seen
            .get(&tgid)
            .is_none_or(|seen| !seen.is_kernel && (seen.looks < YOUNG || tgid.wrapping_add(self.round).is_multiple_of(ROUNDS)));
        if !due && !self.members.contains_key(&tgid) {
            return;
        }
        let Ok(stat) = self.node.stat(tgid) else {
            // It ended since the list was made; the next list is without it.
            self.forget(tgid);
            return;
        };
        let reused = self.seen.get(&tgid).is_some_and(|seen| seen.id != stat.id);
        if reused {
            if self.members.contains_key(&tgid) {
                self.replaced.insert(tgid);
            }
            self.forget(tgid);
        }
        if let Some(member) = self.members.get_mut(&tgid) {
            member.name.clone_from(&stat.name);
        }
        if due || reused {
            self.look_at(&stat);
        }
    }

    fn look_at(&mut self, stat: &ProcessStat) {
        self.note(stat);
        if self.all() || stat.is_kernel {
            return;
        }
        // Its own match counts for more than its parent's, and an `exec` may have brought it.
        let matched = self.members.get(&stat.id.tgid).is_some_and(|member| matches!(member.reason, Reason::Matches(_)));
        if !matched && let Some((target, engine)) = self.matches(stat) {
            if let Target::Pid(pid) = target {
                self.pinned.entry(pid).or_insert(stat.id);
            }
            self.join(stat, Reason::Matches(target), engine, true);
        }
    }

    fn forget(&mut self, tgid: u32) {
        self.seen.remove(&tgid);
        self.members.remove(&tgid);
        for seen in self.seen.values_mut().filter(|seen| seen.parent == tgid) {
            seen.parent = 0;
        }
    }

    fn note(&mut self, stat: &ProcessStat) {
        let wanted = self.every_namespace() && !stat.is_kernel;
        let namespace = if wanted { self.node.net_namespace(stat.id.tgid).ok() } else { None };
        let (id, parent, is_kernel) = (stat.id, stat.parent, stat.is_kernel);
        let mut hasher = DefaultHasher::new();
        (&stat.name, stat.arguments).hash(&mut hasher);
        let image = hasher.finish();
        let new = Seen { id, parent, is_kernel, looks: 0, image, unchanged: 0, namespace: None };
        let seen = self.seen.entry(id.tgid).or_insert(new);
        seen.looks = seen.looks.saturating_add(1);
        // Without the arguments' place an `exec` to the same name can't be told.
        let same = seen.image == image && stat.arguments.is_some();
        seen.unchanged = if same { seen.unchanged.saturating_add(1) } else { 0 };
        seen.image = image;
        seen.namespace = namespace.or(seen.namespace);
    }

    /// The first target that the process matches by itself, and the server that it runs.
    fn matches(&self, stat: &ProcessStat) -> Option<(Target, Option<Engine>)> {
        let tgid = stat.id.tgid;
        let news = self.seen.get(&tgid).is_none_or(|seen| seen.unchanged <= SETTLED);
        let engine = OnceCell::new();
        let engine = || *engine.get_or_init(|| Engine::of(&self.node.command_line(tgid).ok()?));
        let cgroups = OnceCell::new();
        let matched = self.targets.iter().find(|target| match target {
            // Reading it takes the lock of the process's memory, behind which a stalled disk may be: only where there is news.
            Target::Auto => news && engine().is_some(),
            Target::Comm(name) => *name == stat.name,
            Target::Pid(pid) => *pid == tgid && self.pinned.get(pid).is_none_or(|pinned| *pinned == stat.id),
            Target::Cgroup(path) => cgroups.get_or_init(|| self.node.cgroups(tgid).unwrap_or_default()).is_within(path),
            Target::Port(_) | Target::Unix(_) | Target::All => false,
        })?;
        Some((matched.clone(), engine()))
    }

    /// Makes a process a member, or says better why it is one.
    pub(super) fn join(&mut self, stat: &ProcessStat, reason: Reason, engine: Option<Engine>, every_port: bool) {
        self.members.insert(
            stat.id.tgid,
            Member { id: stat.id, name: stat.name.clone(), reason, engine, ports: BTreeSet::new(), every_port, sockets: None },
        );
    }

    /// Keeps what the kernel half found by itself, while it lives; not what has the number of a member that ended.
    pub(super) fn adopt(&mut self, in_kernel: &BTreeSet<u32>) {
        if self.all() {
            return;
        }
        let ports_only = self.targets.iter().all(|target| matches!(target, Target::Port(_)));
        for tgid in in_kernel {
            let known = self.seen.get(tgid).filter(|seen| !seen.is_kernel);
            if known.is_none() || self.members.contains_key(tgid) || self.replaced.contains(tgid) {
                continue;
            }
            if let Ok(stat) = self.node.stat(*tgid) {
                self.join(&stat, Reason::Kernel, None, !ports_only);
            }
        }
    }

    /// Children of members are members, of whatever depth: workers that were there before the agent.
    pub(super) fn descend(&mut self) {
        loop {
            let heirs: Vec<(u32, u32)> = self
                .seen
                .values()
                .filter(|seen| !seen.is_kernel && self.inherits(seen))
                .map(|seen| (seen.id.tgid, seen.parent))
                .collect();
            if heirs.is_empty() {
                return;
            }
            for (tgid, parent) in heirs {
                let Some((engine, every_port)) = self.members.get(&parent).map(|member| (member.engine, member.every_port))
                else {
                    continue;
                };
                match self.node.stat(tgid) {
                    Ok(stat) => self.join(&stat, Reason::Descends(parent), engine, every_port),
                    Err(_) => self.forget(tgid),
                }
            }
        }
    }

    /// Is its parent a member, and itself none for a reason of more than the kernel half's word?
    fn inherits(&self, seen: &Seen) -> bool {
        let open = self.members.get(&seen.id.tgid).is_none_or(|member| member.reason == Reason::Kernel);
        open && self.members.get(&seen.parent).is_some_and(|parent| parent.id.start <= seen.id.start)
    }
}
