//! Run time of the programs, from the kernel's own account.
//!
//! The account (`bpf_stats`) costs about 30 ns a run, for every eBPF program on the machine, so it is switched on for
//! [`WINDOW`] in every [`PERIOD`] only. What is seen in a window stands for the whole period: totals are estimates, scaled by
//! the time between two windows over the time of one.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use aya::{Ebpf, programs::ProgramInfo, sys::Stats};

use super::table::PROBES;

/// How long the account is on.
pub const WINDOW: Duration = Duration::from_secs(1);
/// How often it is switched on.
pub const PERIOD: Duration = Duration::from_secs(10);

/// Estimated totals of one probe since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunTime {
    /// CPU seconds, on all CPUs.
    pub seconds: f64,
    /// Runs of its programs.
    pub runs: f64,
}

/// Run time of the probes over one period.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its length.
    pub period: Duration,
    /// CPU seconds by probe, scaled to the whole period.
    pub seconds: BTreeMap<&'static str, f64>,
}

/// What the account said at one moment, by probe: (ns, runs).
type Account = BTreeMap<&'static str, (u64, u64)>;

/// Samples the account.
pub struct RunTimes {
    totals: BTreeMap<&'static str, RunTime>,
    open: Option<Open>,
    last_end: Instant,
}

/// A window that is on.
struct Open {
    _switch: OwnedFd,
    begun: Instant,
    before: Account,
}

impl RunTimes {
    /// Nothing sampled yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { totals: BTreeMap::new(), open: None, last_end: now }
    }

    /// Totals by probe; empty before the first window has ended.
    #[must_use]
    pub const fn totals(&self) -> &BTreeMap<&'static str, RunTime> {
        &self.totals
    }

    /// Opens or closes a window when it is time. After a window: the period behind it.
    ///
    /// # Errors
    /// When the kernel does not let the account be switched on (before 5.8, or without CAP_SYS_ADMIN).
    pub fn tick(&mut self, ebpf: &Ebpf, now: Instant) -> Result<Option<Sample>, aya::sys::SyscallError> {
        match self.open.take() {
            None if now.duration_since(self.last_end) + WINDOW >= PERIOD => {
                let switch = aya::sys::enable_stats(Stats::RunTime)?;
                self.open = Some(Open { _switch: switch, begun: now, before: account(ebpf) });
                Ok(None)
            }
            None => Ok(None),
            Some(open) if now.duration_since(open.begun) < WINDOW => {
                self.open = Some(open);
                Ok(None)
            }
            Some(open) => {
                let period = now.duration_since(self.last_end);
                let scale = period.as_secs_f64() / now.duration_since(open.begun).as_secs_f64();
                self.last_end = now;
                Ok(Some(Sample { period, seconds: self.add(&open.before, &account(ebpf), scale) }))
            }
        }
    }

    fn add(&mut self, before: &Account, after: &Account, scale: f64) -> BTreeMap<&'static str, f64> {
        let mut seconds_by_probe = BTreeMap::new();
        for (probe, (ns, runs)) in after {
            let (ns_before, runs_before) = before.get(probe).copied().unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "an estimate; 2^52 ns are 52 days within one second's window")]
            let (ns, runs) = (ns.saturating_sub(ns_before) as f64, runs.saturating_sub(runs_before) as f64);
            let total = self.totals.entry(probe).or_default();
            total.seconds += ns / 1e9 * scale;
            total.runs += runs * scale;
            seconds_by_probe.insert(*probe, ns / 1e9 * scale);
        }
        seconds_by_probe
    }
}

/// Reads the account of every attached program.
fn account(ebpf: &Ebpf) -> Account {
    let mut account = Account::new();
    for probe in PROBES {
        for program in probe.programs {
            let Some(info) = ebpf.program(program.name).and_then(|program| program.info().ok()) else { continue };
            let (ns, runs) = account.entry(probe.name).or_default();
            *ns += u64::try_from(ProgramInfo::run_time(&info).as_nanos()).unwrap_or(u64::MAX);
            *runs += ProgramInfo::run_count(&info);
        }
    }
    account
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_stands_for_its_period() {
        let mut times = RunTimes::new(Instant::now());
        let before = Account::from([("block", (1_000, 10))]);
        let after = Account::from([("block", (2_001_000, 110)), ("socket", (500_000, 5))]);
        let seconds = times.add(&before, &after, 10.0);
        assert!((seconds["block"] - 0.02).abs() < 1e-12);
        assert!((times.totals()["block"].runs - 1000.0).abs() < 1e-9);
        assert!((times.totals()["socket"].seconds - 0.005).abs() < 1e-12);
    }
}
