//! Which ports the members listen on, and who listens on the ports of `port:` targets.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{REFRESH, ROUNDS, Reason, Scanner, Table, YOUNG};
use crate::attribute::{engine::Engine, node::Node, targets::Target};

/// How many processes of a network namespace are asked for its sockets, in case the first ones end meanwhile.
const TRIES: usize = 3;
/// How many scans search for the holder of a new socket: it may be a process that this scan's list does not have yet.
const SEARCHES: u32 = 3;

impl<N: Node> Scanner<N> {
    /// Must the listening sockets of every namespace be known, or those of members alone?
    pub(super) fn every_namespace(&self) -> bool {
        self.targets.iter().any(|target| matches!(target, Target::Port(_) | Target::All))
    }

    /// The network namespaces to look into, each with its processes.
    fn namespaces(&mut self) -> BTreeMap<u64, Vec<u32>> {
        let mut namespaces: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        if self.every_namespace() {
            for seen in self.seen.values() {
                if let Some(namespace) = seen.namespace {
                    namespaces.entry(namespace).or_default().push(seen.id.tgid);
                }
            }
            return namespaces;
        }
        for tgid in self.members.keys() {
            let Some(seen) = self.seen.get_mut(tgid) else { continue };
            // Asked again while it is young: a container's first process enters its namespace only after its start.
            if seen.namespace.is_none() || seen.looks < YOUNG || tgid.wrapping_add(self.round).is_multiple_of(ROUNDS) {
                seen.namespace = self.node.net_namespace(*tgid).ok().or(seen.namespace);
            }
            if let Some(namespace) = seen.namespace {
                namespaces.entry(namespace).or_default().push(*tgid);
            }
        }
        namespaces
    }

    /// Reads the listening sockets of each namespace, once.
    pub(super) fn read_tables(&mut self) {
        let mut tables = HashMap::new();
        for (namespace, processes) in self.namespaces() {
            let mut table = self.tables.remove(&namespace).unwrap_or_default();
            // If all of them ended just now, what was there is still the best that is known.
            if let Some(listeners) = processes.iter().take(TRIES).find_map(|tgid| self.node.listeners(*tgid).ok()) {
                let sockets: HashMap<u64, u16> = listeners.into_iter().map(|listener| (listener.inode, listener.port)).collect();
                table.news = sockets.keys().any(|inode| !table.sockets.contains_key(inode));
                table.searches.retain(|inode, _| sockets.contains_key(inode));
                table.sockets = sockets;
            }
            tables.insert(namespace, table);
        }
        self.tables = tables;
    }

    /// Finds who listens on the ports of `port:` targets.
    pub(super) fn find_port_owners(&mut self) {
        let wanted = self.port_targets();
        let retry = self.round.is_multiple_of(REFRESH);
        let mut found = Vec::new();
        for (namespace, table) in &mut self.tables {
            let mut open = HashMap::new();
            for (inode, port) in table.sockets.iter().filter(|(_, port)| wanted.contains(port)) {
                let searches = table.searches.entry(*inode).or_insert(0);
                if *searches < SEARCHES || retry {
                    *searches += 1;
                    open.insert(*inode, *port);
                }
            }
            if open.is_empty() {
                continue;
            }
            for seen in self.seen.values().filter(|seen| seen.namespace == Some(*namespace) && !seen.is_kernel) {
                if self.members.contains_key(&seen.id.tgid) {
                    continue;
                }
                let held = self.node.sockets(seen.id.tgid).unwrap_or_default();
                found.extend(held.iter().find_map(|inode| open.get(inode)).map(|port| (seen.id, *port)));
            }
        }
        for (id, port) in found {
            if let Ok(stat) = self.node.stat(id.tgid)
                && stat.id == id
            {
                let engine = self.node.command_line(id.tgid).ok().and_then(|words| Engine::of(&words));
                self.join(&stat, Reason::Listens(port), engine, false);
            }
        }
    }

    /// Finds which listening sockets each member holds.
    pub(super) fn find_ports(&mut self) {
        let refresh = self.round.is_multiple_of(REFRESH);
        let wanted = self.port_targets();
        for member in self.members.values_mut() {
            let namespace = self.seen.get(&member.id.tgid).and_then(|seen| seen.namespace);
            let Some(table) = namespace.and_then(|namespace| self.tables.get(&namespace)) else { continue };
            if member.sockets.is_none() || table.news || refresh {
                // Not to be seen (any more): what was known of it stays.
                if let Ok(held) = self.node.sockets(member.id.tgid) {
                    member.sockets = Some(held.into_iter().filter(|inode| table.sockets.contains_key(inode)).collect());
                }
            }
            let held = member.sockets.iter().flatten().filter_map(|inode| table.sockets.get(inode));
            member.ports = held.filter(|port| member.every_port || wanted.contains(port)).copied().collect();
        }
    }

    /// Every port that the kernel half should know, and whether it claims.
    pub(super) fn wanted_ports(&self) -> BTreeMap<u16, bool> {
        let mut ports: BTreeMap<u16, bool> = self.port_targets().into_iter().map(|port| (port, true)).collect();
        let everyones = self.tables.values().flat_map(|table: &Table| table.sockets.values()).filter(|_| self.all());
        for port in everyones.chain(self.members.values().flat_map(|member| &member.ports)) {
            ports.entry(*port).or_insert(false);
        }
        ports
    }

    /// Is it certain that no member listens there? Where sockets of a member can't be seen, nobody else may listen either.
    pub(super) fn is_idle(&self, port: u16) -> bool {
        self.members.values().all(|member| member.sockets.is_some())
            || !self.tables.values().any(|table| table.sockets.values().any(|other| *other == port))
    }

    fn port_targets(&self) -> HashSet<u16> {
        let port = |target: &Target| if let Target::Port(port) = target { Some(*port) } else { None };
        self.targets.iter().filter_map(port).collect()
    }
}
