//! Run time of one agent's programs, from the kernel's account (`bpf_stats`): whatever else is loaded does not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    os::fd::OwnedFd,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use aya::{programs::loaded_programs, sys::Stats};
use tailcomb::probes::table::PROBES;

/// The account is on while this lives; it adds about 30 ns to each run.
pub(crate) struct Account {
    _switch: OwnedFd,
    own: BTreeSet<u32>,
    before: Runs,
}

/// Time and runs of programs, by name.
pub(crate) type Runs = BTreeMap<String, (Duration, u64)>;

/// What one probe's programs did meanwhile.
pub(crate) struct Usage {
    /// By program: time and runs.
    pub programs: Runs,
}

impl Account {
    /// Switches it on, for the programs of the agent with this process number.
    pub(crate) fn open(agent: u32) -> Result<Self> {
        let switch = aya::sys::enable_stats(Stats::RunTime).context("switching bpf_stats on")?;
        let own = held_by(agent)?;
        let before = runs(&own);
        Ok(Self { _switch: switch, own, before })
    }

    /// What the programs of `probe` did since it was switched on.
    pub(crate) fn usage(&self, probe: &str) -> Usage {
        let names: Vec<&str> =
            PROBES.iter().filter(|row| row.name == probe).flat_map(|row| row.programs).map(|program| program.name).collect();
        let programs = runs(&self.own)
            .into_iter()
            .filter(|(name, _)| names.contains(&name.as_str()))
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

/// The programs that a process has open, by their numbers.
fn held_by(process: u32) -> Result<BTreeSet<u32>> {
    let mut held = BTreeSet::new();
    for file in fs::read_dir(format!("/proc/{process}/fdinfo"))? {
        let Ok(text) = fs::read_to_string(file?.path()) else { continue };
        held.extend(text.lines().filter_map(|line| line.strip_prefix("prog_id:")?.trim().parse::<u32>().ok()));
    }
    ensure!(!held.is_empty(), "process {process} has no programs open");
    Ok(held)
}

/// Time and runs of these programs since they were loaded.
pub(crate) fn runs(own: &BTreeSet<u32>) -> Runs {
    let mut runs = Runs::new();
    for info in loaded_programs().flatten().filter(|info| own.contains(&info.id())) {
        // The kernel keeps the first 15 characters.
        let Some(short) = info.name_as_str() else { continue };
        let mut full = PROBES.iter().flat_map(|probe| probe.programs).map(|program| program.name);
        let name = full.find(|name| name.get(..short.len()) == Some(short)).unwrap_or(short);
        runs.insert(name.to_owned(), (info.run_time(), info.run_count()));
    }
    runs
}
