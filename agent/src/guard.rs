//! The overhead guard: tailcomb must never be the slow thing on a node.
//!
//! Fed with the probes' own run time, it says when they have been above the limit for [`PATIENCE`] and which probe to give up:
//! the costliest optional one. Where no optional probe is attached it can only say so. Pure: the caller brings time and figures.

use std::time::Duration;

/// How long the limit must be exceeded without a break.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Run time of one probe over one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Its stem.
    pub probe: &'static str,
    /// May it be given up?
    pub optional: bool,
    /// CPU seconds its programs ran, on all CPUs.
    pub run_seconds: f64,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Advice {
    /// Below the limit, or not above it for long enough.
    Carry,
    /// Detach this probe.
    Detach {
        /// Its stem.
        probe: &'static str,
        /// Share of the machine's CPU time that all probes took.
        share: f64,
    },
    /// Above the limit, and only required probes are left: tell the people.
    Warn {
        /// Share of the machine's CPU time that all probes took.
        share: f64,
    },
}

/// Watches the share of CPU time.
#[derive(Clone, Debug)]
pub struct Guard {
    limit: f64,
    cpus: f64,
    above: Duration,
    share: f64,
}

impl Guard {
    /// `limit` is a share of the machine's CPU time (0.02 = 2 %), `cpus` how many it has.
    #[must_use]
    pub fn new(limit: f64, cpus: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "no machine has 2^52 CPUs")]
        Self { limit, cpus: cpus.max(1) as f64, above: Duration::ZERO, share: 0.0 }
    }

    /// The share at the last observation.
    #[must_use]
    pub const fn share(&self) -> f64 {
        self.share
    }

    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> f64 {
        self.limit
    }

    /// Takes the usage of the last `interval`.
    pub fn observe(&mut self, interval: Duration, usage: &[Usage]) -> Advice {
        if interval.is_zero() {
            return Advice::Carry;
        }
        self.share = usage.iter().map(|usage| usage.run_seconds).sum::<f64>() / (interval.as_secs_f64() * self.cpus);
        if self.share <= self.limit {
            self.above = Duration::ZERO;
            return Advice::Carry;
        }
        self.above += interval;
        if self.above < PATIENCE {
            return Advice::Carry;
        }
        self.above = Duration::ZERO;
        let costliest = usage.iter().filter(|usage| usage.optional).max_by(|a, b| a.run_seconds.total_cmp(&b.run_seconds));
        match costliest {
            Some(usage) => Advice::Detach { probe: usage.probe, share: self.share },
            None => Advice::Warn { share: self.share },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    fn usage(required: f64, cheap: f64, dear: f64) -> [Usage; 3] {
        [
            Usage { probe: "socket", optional: false, run_seconds: required },
            Usage { probe: "cheap", optional: true, run_seconds: cheap },
            Usage { probe: "dear", optional: true, run_seconds: dear },
        ]
    }

    #[test]
    fn thirty_seconds_above_the_limit_cost_the_dearest_optional_probe() {
        let mut guard = Guard::new(0.02, 2);
        // 0.5 s of 20 CPU seconds are 2.5 %.
        assert_eq!(guard.observe(TEN, &usage(0.3, 0.05, 0.15)), Advice::Carry);
        assert_eq!(guard.observe(TEN, &usage(0.3, 0.05, 0.15)), Advice::Carry);
        let Advice::Detach { probe, share } = guard.observe(TEN, &usage(0.3, 0.05, 0.15)) else { panic!("no advice") };
        assert_eq!(probe, "dear");
        assert!((share - 0.025).abs() < 1e-9);
        // After advice it counts anew.
        assert_eq!(guard.observe(TEN, &usage(0.5, 0.0, 0.0)), Advice::Carry);
    }

    #[test]
    fn a_break_below_the_limit_starts_the_count_again() {
        let mut guard = Guard::new(0.02, 2);
        guard.observe(TEN, &usage(0.5, 0.0, 0.0));
        guard.observe(TEN, &usage(0.5, 0.0, 0.0));
        assert_eq!(guard.observe(TEN, &usage(0.1, 0.0, 0.0)), Advice::Carry);
        assert_eq!(guard.observe(TEN, &usage(0.5, 0.0, 0.0)), Advice::Carry);
    }

    #[test]
    fn required_probes_are_never_given_up() {
        let mut guard = Guard::new(0.02, 2);
        let alone = [Usage { probe: "socket", optional: false, run_seconds: 1.0 }];
        assert_eq!(guard.observe(TEN, &alone), Advice::Carry);
        assert_eq!(guard.observe(TEN, &alone), Advice::Carry);
        assert!(matches!(guard.observe(TEN, &alone), Advice::Warn { .. }));
    }
}
