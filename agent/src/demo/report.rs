//! What the command says at the end of a run, from measured figures alone.

use std::{collections::BTreeMap, fmt::Write};

use tailcomb_analysis::scale::{SLOTS, Scale};

use super::truth::{Counters, Endpoint};
use crate::{
    export::page,
    render::{Chart, Mark, Panel, Style, render},
    store::heatmap::Matrix,
};

/// A value is slow that is above all but this share of its kind in quiet seconds.
const SLOW_SHARE: f64 = 0.01;
/// With fewer quiet values there is no telling what is usual.
const QUIET_LEAST: u64 = 100;

/// Counts of one signal by second and slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seconds {
    columns: Vec<Vec<u64>>,
}

impl Seconds {
    /// No counts, for so many seconds.
    #[must_use]
    pub fn new(seconds: usize) -> Self {
        Self { columns: vec![vec![0; SLOTS]; seconds] }
    }

    /// Adds a heatmap of columns of one second; second 0 here is `start` there. What lies outside is left out.
    pub fn add(&mut self, matrix: &Matrix, start: u64) {
        for (time, counts) in matrix.times.iter().zip(&matrix.counts) {
            let column = time.checked_sub(start).and_then(|second| self.columns.get_mut(usize::try_from(second).ok()?));
            let Some(column) = column else { continue };
            for (slot, count) in (matrix.first_slot..SLOTS).zip(counts) {
                column[slot] += count;
            }
        }
    }

    /// Adds all of another signal.
    fn add_all(&mut self, other: &Self) {
        for (column, counts) in self.columns.iter_mut().zip(&other.columns) {
            column.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// All values.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.columns.iter().flatten().sum()
    }

    fn panel(&self, title: String, unit: &'static str) -> Panel {
        let bounds = (0..SLOTS).map(|slot| Scale::Seconds.upper_bound(slot)).collect();
        Panel { title, unit, bounds, columns: self.columns.clone() }
    }
}

/// Slow values among all, in seconds with a flush and in the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// Values in seconds with a flush.
    pub flush: u64,
    /// The slow ones of them.
    pub flush_slow: u64,
    /// Values in the other seconds.
    pub quiet: u64,
    /// The slow ones of them: a hundredth or less, by definition.
    pub quiet_slow: u64,
}

impl Slow {
    /// Counts what lies above the lowest bucket bound that at most a hundredth of the quiet values exceed. `None` where too few
    /// were seen in quiet seconds to say what is usual.
    #[must_use]
    pub fn of(signal: &Seconds, is_flush: impl Fn(usize) -> bool) -> Option<Self> {
        let sum = |flush: bool| {
            let mut slots = vec![0u64; SLOTS];
            for (_, column) in signal.columns.iter().enumerate().filter(|(second, _)| is_flush(*second) == flush) {
                slots.iter_mut().zip(column).for_each(|(sum, count)| *sum += count);
            }
            slots
        };
        let (quiet_slots, flush_slots) = (sum(false), sum(true));
        let quiet: u64 = quiet_slots.iter().sum();
        if quiet < QUIET_LEAST {
            return None;
        }
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let allowed = (quiet as f64 * SLOW_SHARE) as u64;
        let mut quiet_slow = 0;
        let mut first_slow = SLOTS;
        for slot in (0..SLOTS).rev() {
            if quiet_slow + quiet_slots[slot] > allowed {
                break;
            }
            quiet_slow += quiet_slots[slot];
            first_slow = slot;
        }
        let flush_slow = flush_slots[first_slow..].iter().sum();
        Some(Self { flush: flush_slots.iter().sum(), flush_slow, quiet, quiet_slow })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            flush: self.flush + other.flush,
            flush_slow: self.flush_slow + other.flush_slow,
            quiet: self.quiet + other.quiet,
            quiet_slow: self.quiet_slow + other.quiet_slow,
        }
    }
}

/// A run as the probes saw it, and what clients and writer said of it.
#[derive(Clone, Debug)]
pub struct Run {
    /// Seconds measured.
    pub seconds: usize,
    /// Requests by route, health checks apart.
    pub routes: BTreeMap<&'static str, Seconds>,
    /// All requests but health checks, those too that ended after the last of the seconds.
    pub requests: u64,
    /// Health checks.
    pub health: u64,
    /// I/Os of the disk below the demo's files: everybody's.
    pub disk: Seconds,
    /// Its name.
    pub disk_name: String,
    /// Flushes, in seconds after the start.
    pub flushes: Vec<Mark>,
    /// What the clients and the writer saw.
    pub seen: Counters,
    /// Losses that happened: stage, reason, count.
    pub lost: Vec<(&'static str, &'static str, u64)>,
    /// Connections not decoded.
    pub undecoded: u64,
    /// Where the metrics were.
    pub address: String,
}

impl Run {
    fn is_flush(&self, second: usize) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "at most some thousand seconds")]
        let (from, to) = (second as f64, second as f64 + 1.0);
        self.flushes.iter().any(|flush| flush.from < to && flush.to >= from)
    }

    /// The two heatmaps and what was counted.
    #[must_use]
    pub fn text(&self, style: &Style) -> String {
        let mut requests = Seconds::new(self.seconds);
        self.routes.values().for_each(|route| requests.add_all(route));
        let chart = Chart {
            step: 1.0,
            panels: vec![
                requests.panel("Requests, arrival to end".to_owned(), "requests"),
                self.disk.panel(format!("Disk {}, submitted to complete", self.disk_name), "I/Os"),
            ],
            marks_title: "flushes",
            marks: self.flushes.clone(),
        };
        let mut text = render(&chart, style);
        text.push('\n');
        self.counts(&mut text);
        let requests =
            self.routes.values().filter_map(|route| Slow::of(route, |second| self.is_flush(second))).reduce(Slow::plus);
        sentence(&mut text, requests, "requests", "of their route");
        sentence(&mut text, Slow::of(&self.disk, |second| self.is_flush(second)), "I/Os", "of the disk");
        let _ = writeln!(text, "Metrics were at {} while it ran.", self.address);
        text.push_str("Next, on your own server: tailcomb run --target port:8000, and then tailcomb slow\n");
        text
    }

    fn counts(&self, text: &mut String) {
        let seen = &self.seen;
        let health = seen.answered.get(&Endpoint::Health).copied().unwrap_or(0);
        let _ = writeln!(
            text,
            "Requests   {} and {} health checks seen by the probes; the clients had {} and {} answers, {} failures, {} not sent",
            self.requests,
            self.health,
            seen.answered_in_all() - health,
            health,
            seen.failed_in_all(),
            seen.not_sent
        );
        for (reason, count) in &seen.failed {
            let _ = writeln!(text, "           {count} failed: {reason}");
        }
        let _ = writeln!(text, "Disk I/Os  {} on {}, of all processes", self.disk.total(), self.disk_name);
        let bytes: u64 = seen.flushes.iter().map(|flush| flush.bytes).sum();
        let mut times: Vec<u64> = seen.flushes.iter().map(|flush| (flush.end_ns - flush.start_ns) / 1_000_000).collect();
        times.sort_unstable();
        if let (Some(least), Some(most)) = (times.first(), times.last()) {
            let _ = writeln!(text, "Flushes    {} of {} MiB together, {least} to {most} ms each", times.len(), bytes >> 20);
        } else {
            text.push_str("Flushes    none: the run was shorter than --period\n");
        }
        let _ = writeln!(text, "Lost       {}", self.lost.iter().map(|(_, _, count)| count).sum::<u64>());
        for (stage, reason, count) in &self.lost {
            let meaning = page::meaning_of_loss(stage, reason).unwrap_or("not explained");
            let _ = writeln!(text, "           {count} in {stage}: {reason}: {meaning}");
        }
        if self.undecoded > 0 {
            let _ = writeln!(text, "           {} connections were not decoded", self.undecoded);
        }
        text.push('\n');
    }
}

fn sentence(text: &mut String, slow: Option<Slow>, unit: &str, whose: &str) {
    let Some(slow) = slow.filter(|slow| slow.flush > 0) else {
        let _ = writeln!(text, "Too few {unit} were seen to compare seconds with a flush with the others.");
        return;
    };
    #[expect(clippy::cast_precision_loss, reason = "counts")]
    let percent = slow.flush_slow as f64 * 100.0 / slow.flush as f64;
    let _ = writeln!(
        text,
        "In seconds with a flush {percent:.1} % of the {unit} ({} of {}) were slower than 99 % of those {whose} in the other seconds, \
         {percent:.0} times as many as there.",
        slow.flush_slow, slow.flush
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{demo::truth::FlushSeen, render::Colour};

    /// 12 s of 100 values at slot `low`, and in second 5 also 20 at slot `high`.
    fn signal(low: usize, high: usize) -> Seconds {
        let counts = (0..12)
            .map(|second| {
                let mut counts = vec![0; high - low + 1];
                counts[0] = 100;
                counts[high - low] += if second == 5 { 20 } else { 0 };
                counts
            })
            .collect();
        let matrix = Matrix { times: (1_000..1_012).collect(), first_slot: low, counts, rows: 1, ..Matrix::default() };
        let mut seconds = Seconds::new(12);
        seconds.add(&matrix, 1_000);
        seconds
    }

    fn run() -> Run {
        let flushes = vec![Mark { from: 5.2, to: 5.6 }];
        let seen = Counters {
            flushes: vec![FlushSeen { start_ns: 0, end_ns: 400_000_000, bytes: 64 << 20 }],
            failed: BTreeMap::from([("status 500".to_owned(), 2)]),
            answered: BTreeMap::from([(Endpoint::Chat, 7), (Endpoint::Health, 5)]),
            ..Counters::default()
        };
        Run {
            seconds: 12,
            routes: BTreeMap::from([("/v1/embeddings", signal(110, 170)), ("/v1/completions", signal(130, 130))]),
            requests: 2_441,
            health: 6,
            disk: signal(70, 140),
            disk_name: "sda".to_owned(),
            flushes,
            seen,
            lost: vec![("socket", "ring_full", 3)],
            undecoded: 0,
            address: "http://127.0.0.1:9809/metrics".to_owned(),
        }
    }

    #[test]
    fn slow_is_what_is_rare_when_it_is_quiet() {
        let slow = Slow::of(&signal(110, 170), |second| second == 5).expect("enough values");
        assert_eq!(slow, Slow { flush: 120, flush_slow: 20, quiet: 1_100, quiet_slow: 0 });
        // A flush that was elsewhere: the 20 are 1.7 % of the quiet values, so usual, and nothing is slow.
        let slow = Slow::of(&signal(110, 170), |second| second == 3).expect("enough values");
        assert_eq!((slow.flush_slow, slow.quiet_slow), (0, 0));
        assert_eq!(Slow::of(&Seconds::new(12), |_| false), None);
    }

    #[test]
    fn seconds_outside_the_run_are_left_out() {
        let mut seconds = Seconds::new(2);
        let matrix = Matrix { times: vec![9, 10, 11, 12], first_slot: 5, counts: vec![vec![1]; 4], rows: 1, ..Matrix::default() };
        seconds.add(&matrix, 10);
        assert_eq!(seconds.total(), 2);
    }

    #[test]
    fn the_report_says_what_was_measured() {
        let text = run().text(&Style { width: 80, rows: 14, colour: Colour::None });
        for expected in [
            "Requests, arrival to end (2440 requests)",
            "Disk sda, submitted to complete (1220 I/Os)",
            "2441 and 6 health checks seen by the probes; the clients had 7 and 5 answers",
            "2 failed: status 500",
            "1 of 64 MiB together, 400 to 400 ms each",
            "Lost       3\n           3 in socket: ring_full: a finished request",
            "8.3 % of the requests (20 of 240) were slower",
            "16.7 % of the I/Os (20 of 120) were slower",
            "Metrics were at http://127.0.0.1:9809/metrics",
        ] {
            assert!(text.contains(expected), "{expected} is missing:\n{text}");
        }
    }

    #[test]
    fn nothing_is_claimed_where_nothing_was_flushed() {
        let mut run = run();
        run.flushes.clear();
        run.seen.flushes.clear();
        let text = run.text(&Style { width: 80, rows: 14, colour: Colour::None });
        assert!(text.contains("Too few requests") && text.contains("Flushes    none"), "{text}");
        assert!(!text.contains("slower than"), "{text}");
    }
}
