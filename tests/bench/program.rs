//! Run time of the loaded programs, from the kernel's account (`bpf_stats`).

use std::{collections::BTreeMap, fmt::Write, os::fd::OwnedFd, time::Duration};

use anyhow::{Context, Result};
use aya::{programs::loaded_programs, sys::Stats};
use tailcomb::probes::table::PROBES;

/// The account is on while this lives; it adds about 30 ns to each run.
pub(crate) struct Account {
    _switch: OwnedFd,
    before: BTreeMap<String, (Duration, u64)>,
}

/// What one probe's programs did meanwhile.
pub(crate) struct Usage {
    /// By program: time and runs.
    pub programs: BTreeMap<String, (Duration, u64)>,
}

impl Account {
    /// Switches the account on.
    pub(crate) fn open() -> Result<Self> {
        let switch = aya::sys::enable_stats(Stats::RunTime).context("switching bpf_stats on")?;
        Ok(Self { _switch: switch, before: read() })
    }

    /// What the programs of `probe` did since it was switched on.
    pub(crate) fn usage(&self, probe: &str) -> Usage {
        let names: Vec<&str> =
            PROBES.iter().filter(|row| row.name == probe).flat_map(|row| row.programs).map(|program| program.name).collect();
        let programs = read()
            .into_iter()
            .filter(|(name, _)| names.iter().any(|known| known.len() >= name.len() && known.starts_with(name.as_str())))
            .map(|(name, (time, runs))| {
                let (time_before, runs_before) = self.before.get(&name).copied().unwrap_or_default();
                (name, (time.saturating_sub(time_before), runs - runs_before.min(runs)))
            })
            .filter(|(_, (_, runs))| *runs > 0)
            .collect();
        Usage { programs }
    }
}

impl Usage {
    /// Sum over programs.
    pub(crate) fn total(&self) -> (Duration, u64) {
        self.programs.values().fold((Duration::ZERO, 0), |(time, runs), (more, count)| (time + *more, runs + count))
    }

    /// A table: program, runs an operation, ns a run.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(crate) fn table(&self, operations: u64, what: &str) -> String {
        let mut text = format!("| program | runs a {what} | ns a run |\n|---|---:|---:|\n");
        for (name, (time, runs)) in &self.programs {
            let _ = writeln!(
                text,
                "| `{name}` | {:.2} | {:.0} |",
                *runs as f64 / operations as f64,
                time.as_nanos() as f64 / *runs as f64
            );
        }
        let (time, runs) = self.total();
        let ns = time.as_nanos() as f64 / operations as f64;
        let runs = runs as f64 / operations as f64;
        let _ = writeln!(
            text,
            "| **all** | {runs:.2} | **{ns:.0} ns a {what}**, of which about {:.0} are the account's own |",
            runs * 31.0
        );
        text
    }
}

/// Time and runs of every program in the kernel, by name, several of one name added up.
fn read() -> BTreeMap<String, (Duration, u64)> {
    let mut programs: BTreeMap<String, (Duration, u64)> = BTreeMap::new();
    for info in loaded_programs().flatten() {
        let Some(name) = info.name_as_str() else { continue };
        let entry = programs.entry(name.to_owned()).or_default();
        entry.0 += info.run_time();
        entry.1 += info.run_count();
    }
    programs
}
