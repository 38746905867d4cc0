//! The kernel's clock, and what it says in wall-clock time.
//!
//! Every duration is taken from CLOCK_MONOTONIC, which nobody sets. Wall-clock time is only for showing: it is worked out from
//! an [`Anchor`] at the moment of showing, so that a step of NTP moves what is shown and no duration. Renew the anchor once a
//! second: what drifts in that time (500 ppm at most) is under a millisecond.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC, as `bpf_ktime_get_ns` gives them.
///
/// # Panics
/// Never on Linux: the kernel has this clock always.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Nanoseconds of CLOCK_BOOTTIME: the same with the time of sleep; start times of processes are in it.
#[must_use]
pub fn boottime_ns() -> u64 {
    read(ClockId::CLOCK_BOOTTIME)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("Linux has this clock always");
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(time.tv_sec()) * 1_000_000_000 + part(time.tv_nsec())
}

/// One moment in both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    monotonic_ns: u64,
    wall: SystemTime,
}

impl Anchor {
    /// This moment. Of a few tries the tightest is taken, so that a pause between the two readings does no harm.
    #[must_use]
    pub fn now() -> Self {
        let mut best: Option<(u64, Self)> = None;
        for _ in 0..3 {
            let before = monotonic_ns();
            let wall = SystemTime::now();
            let width = monotonic_ns() - before;
            if best.is_none_or(|(narrowest, _)| width < narrowest) {
                best = Some((width, Self::at(before + width / 2, wall)));
            }
        }
        best.map_or_else(|| Self::at(monotonic_ns(), SystemTime::now()), |(_, anchor)| anchor)
    }

    /// A given moment in both clocks.
    #[must_use]
    pub const fn at(monotonic_ns: u64, wall: SystemTime) -> Self {
        Self { monotonic_ns, wall }
    }

    /// This anchor's moment, ns of CLOCK_MONOTONIC.
    #[must_use]
    pub const fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns
    }

    /// Wall-clock time of a moment, before or after the anchor. Times that the clock can't hold are its ends.
    #[must_use]
    pub fn wall(&self, monotonic_ns: u64) -> SystemTime {
        let distance = Duration::from_nanos(monotonic_ns.abs_diff(self.monotonic_ns));
        let wall =
            if monotonic_ns < self.monotonic_ns { self.wall.checked_sub(distance) } else { self.wall.checked_add(distance) };
        wall.unwrap_or(if monotonic_ns < self.monotonic_ns { UNIX_EPOCH } else { self.wall })
    }

    /// Seconds since 1970 of a moment; negative before.
    #[must_use]
    pub fn unix_seconds(&self, monotonic_ns: u64) -> f64 {
        match self.wall(monotonic_ns).duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_secs_f64(),
            Err(before) => -before.duration().as_secs_f64(),
        }
    }

    /// How far the wall clock was stepped between `self` and a later anchor, seconds; positive = set forward.
    #[must_use]
    pub fn step_seconds(&self, later: &Self) -> f64 {
        let expected = self.wall(later.monotonic_ns);
        match later.wall.duration_since(expected) {
            Ok(forward) => forward.as_secs_f64(),
            Err(back) => -back.duration().as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn wall(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn the_clock_goes_on_while_it_is_slept() {
        let before = monotonic_ns();
        std::thread::sleep(Duration::from_millis(20));
        let passed = monotonic_ns() - before;
        assert!((20_000_000..5 * SECOND).contains(&passed), "{passed} ns");
        assert!(boottime_ns() >= before, "time asleep is counted in");
    }

    #[test]
    fn moments_before_and_after_the_anchor() {
        let anchor = Anchor::at(100 * SECOND, wall(1_000));
        assert_eq!(anchor.wall(100 * SECOND), wall(1_000));
        assert_eq!(anchor.wall(90 * SECOND), wall(990));
        assert_eq!(anchor.wall(101 * SECOND + 1), wall(1_001) + Duration::from_nanos(1));
        assert!((anchor.unix_seconds(99 * SECOND + SECOND / 2) - 999.5).abs() < 1e-6);
    }

    #[test]
    fn a_step_of_ntp_moves_the_wall_and_no_difference() {
        let before = Anchor::at(100 * SECOND, wall(1_000));
        let after = Anchor::at(101 * SECOND, wall(4_601));
        assert!((before.step_seconds(&after) - 3_600.0).abs() < 1e-9);
        assert!((Anchor::at(100 * SECOND, wall(9_000)).step_seconds(&after) + 4_400.0).abs() < 1e-9);
        // An event before the step is shown where the corrected clock would have had it.
        assert_eq!(after.wall(99 * SECOND), wall(4_599));
        assert_eq!(after.wall(103 * SECOND).duration_since(after.wall(99 * SECOND)).ok(), Some(Duration::from_secs(4)));
    }

    #[test]
    fn now_is_now() {
        let anchor = Anchor::now();
        let shown = anchor.wall(monotonic_ns());
        let error = SystemTime::now().duration_since(shown).unwrap_or_else(|early| early.duration());
        assert!(error < Duration::from_secs(1), "{error:?}");
        assert!(anchor.step_seconds(&Anchor::now()).abs() < 1.0);
    }

    #[test]
    fn absurd_moments_give_a_time_and_no_panic() {
        let anchor = Anchor::at(100 * SECOND, wall(1_000));
        for moment in [0, 1, u64::MAX] {
            let _ = anchor.unix_seconds(moment);
        }
        assert!(anchor.unix_seconds(0) >= 0.0);
    }
}
