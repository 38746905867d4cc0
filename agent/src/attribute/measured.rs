//! Who is measured, for people: what the log says when that changes, and what the API lists.

use std::collections::{HashMap, HashSet};

use super::{engine::Engine, process::ProcessId, scan::Reason, workload::Workload};

/// Most lines that one scan adds to the log.
pub const MOST_LINES: usize = 20;

/// A measured process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Which process.
    pub id: ProcessId,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub workload: Workload,
    /// Which server it runs, if a known one.
    pub engine: Option<Engine>,
    /// The TCP ports it is measured on, rising; `None`: not to be seen (CAP_SYS_PTRACE).
    pub ports: Option<Vec<u16>>,
    /// Why it is measured.
    pub reason: Reason,
    /// Does its parent belong to the measured too?
    pub child: bool,
}

impl Measured {
    /// `python3[4711]`.
    #[must_use]
    pub fn process(&self) -> String {
        format!("{}[{}]", self.name, self.id.tgid)
    }
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// This process is measured, or listens on more ports than before.
    Measuring(Measured),
    /// This one, as `python3[4711]`, has ended.
    Ended(String),
    /// So many more lines were left out.
    More(usize),
}

impl News {
    /// Writes it to the log.
    pub fn log(&self) {
        match self {
            Self::Measuring(measured) => {
                let ports = measured.ports.as_ref().map(tracing::field::debug);
                let (process, why) = (measured.process(), measured.reason.to_string());
                let (workload, engine) = (&measured.workload.workload, measured.engine.map(Engine::name));
                // Not `target`: JSON lines have a field of that name already.
                tracing::info!(process, workload, engine, ports, why, "measuring");
            }
            Self::Ended(process) => tracing::info!(process, "no longer measuring: it ended"),
            Self::More(number) => tracing::info!(number, "more changes of what is measured; see /api/v1/status"),
        }
    }
}

/// Which processes the log has told of.
///
/// Of the descendants of a server only those are told that listen where nobody told of does: a server may start a process for each
/// connection. Memory: 100 bytes a process told of; those that ended go with the scan that misses them.
#[derive(Debug, Default)]
pub struct Roster {
    told: HashMap<ProcessId, Told>,
}

#[derive(Debug)]
struct Told {
    /// As it was named.
    process: String,
    ports: Vec<u16>,
}

impl Roster {
    /// Takes who is measured now and returns what is to be logged: at most [`MOST_LINES`], and one with the number of the others.
    pub fn update(&mut self, now: &[Measured]) -> Vec<News> {
        let alive: HashSet<ProcessId> = now.iter().map(|measured| measured.id).collect();
        let mut news = Vec::new();
        self.told.retain(|id, told| {
            let lives = alive.contains(id);
            news.extend((!lives).then(|| News::Ended(std::mem::take(&mut told.process))));
            lives
        });
        // Parents first: their ports are theirs, not their children's.
        for child in [false, true] {
            for measured in now.iter().filter(|measured| measured.child == child) {
                news.extend(self.is_news(measured).then(|| News::Measuring(measured.clone())));
            }
        }
        let more = news.len().saturating_sub(MOST_LINES);
        if more > 0 {
            news.truncate(MOST_LINES);
            news.push(News::More(more));
        }
        news
    }

    /// Is it to be told of: as a new one, or again, with ports that it did not listen on before?
    fn is_news(&mut self, measured: &Measured) -> bool {
        let ports = measured.ports.as_deref().unwrap_or_default();
        let before = self.told.get(&measured.id);
        let news = match before {
            Some(told) => ports.iter().any(|port| !told.ports.contains(port)),
            None => !measured.child || ports.iter().any(|port| !self.told.values().any(|told| told.ports.contains(port))),
        };
        if news || before.is_some() {
            self.told.insert(measured.id, Told { process: measured.process(), ports: ports.to_vec() });
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::targets::Target;

    fn measured(tgid: u32, ports: &[u16], child: bool) -> Measured {
        Measured {
            id: ProcessId { tgid, start: 1 },
            name: "python3".to_owned(),
            workload: Workload { workload: "vllm.service".to_owned(), ..Workload::default() },
            engine: Some(Engine::Vllm),
            ports: Some(ports.to_vec()),
            reason: if child { Reason::Descends(7) } else { Reason::Matches(Target::Auto) },
            child,
        }
    }

    #[test]
    fn a_server_is_told_once_and_again_when_it_listens_and_when_it_ends() {
        let mut roster = Roster::default();
        let (silent, listening) = (measured(7, &[], false), measured(7, &[8000], false));
        let hidden = Measured { ports: None, ..silent.clone() };
        let mut told = |now: &[&Measured]| roster.update(&now.iter().copied().cloned().collect::<Vec<_>>());
        assert_eq!(told(&[&silent]), [News::Measuring(silent.clone())]);
        assert_eq!(told(&[&silent]), []);
        assert_eq!(told(&[&listening]), [News::Measuring(listening.clone())]);
        assert_eq!(told(&[&listening]), []);
        assert_eq!(told(&[]), [News::Ended("python3[7]".to_owned())]);
        assert_eq!(told(&[&hidden]), [News::Measuring(hidden.clone())]);
    }

    #[test]
    fn who_has_the_number_next_is_another() {
        let mut roster = Roster::default();
        roster.update(&[measured(7, &[8000], false)]);
        let next = Measured { id: ProcessId { tgid: 7, start: 2 }, ..measured(7, &[8000], false) };
        assert_eq!(roster.update(std::slice::from_ref(&next)), [News::Ended("python3[7]".to_owned()), News::Measuring(next)]);
    }

    #[test]
    fn children_are_told_where_they_listen_alone() {
        let mut roster = Roster::default();
        let parent = measured(7, &[8000], false);
        let now = [measured(8, &[8000], true), measured(9, &[], true), parent.clone()];
        assert_eq!(roster.update(&now), [News::Measuring(parent.clone())]);
        let child = measured(8, &[8000, 8001], true);
        assert_eq!(roster.update(&[child.clone(), parent]), [News::Measuring(child)]);
    }

    #[test]
    fn one_scan_fills_no_log() {
        let mut roster = Roster::default();
        let many: Vec<Measured> = (1..101).map(|tgid| measured(tgid, &[], false)).collect();
        for news in [roster.update(&many), roster.update(&[])] {
            assert_eq!(news.len(), MOST_LINES + 1);
            assert_eq!(news[MOST_LINES], News::More(80));
        }
        assert!(roster.told.is_empty());
    }
}
