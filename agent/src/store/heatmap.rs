//! The last half hour of each latency signal, second by second.

use std::{collections::HashMap, sync::Arc};

use tailcomb_analysis::window::Window;
use tailcomb_common::block;

use super::{
    block::{BlockLabels, Grown},
    labels::{Labels, Pairs, RouteLabels, outcome_name},
    series::Fold,
    unix_ns,
};
use crate::{
    attribute::workload::Workload,
    clock::Anchor,
    decode::request::{Outcome, Request},
    probes::block::Operation,
};

/// Seconds kept, unless the memory budget ends before.
pub const SECONDS: u64 = 1_800;
/// Most rows of requests; further ones are folded into `other`.
const REQUEST_ROWS: usize = 256;
/// Most rows of disks; further ones are lost, and counted.
const BLOCK_ROWS: usize = 1_024;
/// What is given up at once, in seconds, when memory ends.
const GIVE_UP: u64 = 60;

const SECOND_NS: u64 = 1_000_000_000;

/// What can be shown as a heatmap; each has the name of the metric that counts the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    /// Arrive → end of each request.
    RequestDuration,
    /// Arrive → first event of each complete stream on a generation route.
    TimeToFirstToken,
    /// A phase of each disk request, as in [`tailcomb_common::block`].
    Block(usize),
    /// Each flush of a disk.
    BlockFlush,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::RequestDuration,
        Self::TimeToFirstToken,
        Self::Block(block::SUBMIT_WAIT),
        Self::Block(block::QUEUE),
        Self::Block(block::DEVICE),
        Self::Block(block::TOTAL),
        Self::BlockFlush,
    ];

    /// The metric's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RequestDuration => "http_server_request_duration_seconds",
            Self::TimeToFirstToken => "gen_ai_server_time_to_first_token_seconds",
            Self::Block(block::SUBMIT_WAIT) => "tailcomb_block_submit_wait_seconds",
            Self::Block(block::QUEUE) => "tailcomb_block_queue_seconds",
            Self::Block(block::DEVICE) => "tailcomb_block_device_seconds",
            Self::Block(_) => "tailcomb_block_total_seconds",
            Self::BlockFlush => "tailcomb_block_flush_seconds",
        }
    }

    /// The labels by which its rows are told apart.
    #[must_use]
    pub const fn labels(self) -> &'static [&'static str] {
        match self {
            Self::RequestDuration | Self::TimeToFirstToken => {
                &["http_route", "tailcomb_mode", "namespace", "pod", "container", "workload", "tailcomb_outcome"]
            }
            Self::Block(_) => &["device", "layer", "operation"],
            Self::BlockFlush => &["device", "layer"],
        }
    }

    /// Does it come from the disk?
    #[must_use]
    pub const fn is_block(self) -> bool {
        matches!(self, Self::Block(_) | Self::BlockFlush)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RequestRow {
    signal: Signal,
    labels: RouteLabels,
    outcome: Outcome,
}

impl RequestRow {
    fn pairs(&self) -> Pairs<'_> {
        let mut pairs = self.labels.pairs();
        pairs.push(("tailcomb_outcome", outcome_name(self.outcome).into()));
        pairs
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BlockRow {
    signal: Signal,
    labels: BlockLabels,
}

/// Which columns are asked for, all in unix seconds.
#[derive(Clone, Debug)]
pub struct Query {
    /// Which signal.
    pub signal: Signal,
    /// First second; `None`: all that is kept.
    pub from: Option<u64>,
    /// The second behind the last; `None`: the last whole one.
    pub to: Option<u64>,
    /// Seconds in one column.
    pub step: u64,
    /// Rows must have these labels.
    pub filters: Vec<(String, String)>,
}

/// A heatmap: counts by time and slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    /// Unix second at which each column begins; the columns follow each other without gaps.
    pub times: Vec<u64>,
    /// Lowest slot of the rows of `counts`.
    pub first_slot: usize,
    /// By column, by slot from `first_slot` on. All columns are as high; a 0 says that nothing of that height was seen then.
    pub counts: Vec<Vec<u64>>,
    /// How many rows were added up.
    pub rows: usize,
    /// First unix second that is in it, which may lie within the first column.
    pub from: u64,
    /// The unix second behind the last one in it, which may lie within the last column.
    pub to: u64,
    /// Did the query ask for seconds before those that are kept?
    pub cut: bool,
}

/// The windows of all signals.
///
/// Memory: `budget` bytes for columns and cells (checked at each tick; what one tick brings comes on top), and at most
/// [`REQUEST_ROWS`] + [`BLOCK_ROWS`] rows of about 300 bytes. When the budget is used up, the oldest minute of all rows goes.
pub struct Heatmaps {
    requests: HashMap<RequestRow, Window>,
    blocks: HashMap<BlockRow, Window>,
    budget: usize,
    start: Anchor,
    latest: Anchor,
    /// First column that is kept.
    from: u64,
}

impl Heatmaps {
    /// Empty, from `start` on.
    #[must_use]
    pub fn new(budget: usize, start: Anchor) -> Self {
        let mut heatmaps = Self { requests: HashMap::new(), blocks: HashMap::new(), budget, start, latest: start, from: 0 };
        heatmaps.from = heatmaps.column(start.monotonic_ns());
        heatmaps
    }

    /// Counts a request in the second of its end. Returns how many values found no place.
    pub(super) fn request(&mut self, request: &Request, first_token: Option<u64>, workload: &Arc<Workload>) -> u64 {
        use tailcomb_analysis::scale::Scale::Seconds;
        let at = self.column(request.marks.end);
        let values = [(Signal::RequestDuration, Some(request.duration_ns())), (Signal::TimeToFirstToken, first_token)];
        let mut lost = 0;
        for (signal, value) in values {
            let Some(value) = value else { continue };
            let labels = RouteLabels { route: request.route, mode: request.mode, workload: Arc::clone(workload) };
            let mut row = RequestRow { signal, labels, outcome: request.outcome };
            if self.requests.len() >= REQUEST_ROWS && !self.requests.contains_key(&row) {
                row.labels = row.labels.fold();
            }
            let window = self.requests.entry(row).or_insert_with(Self::window);
            lost += u64::from(at < self.from || !window.record(at, Seconds.slot(value), 1));
        }
        lost
    }

    /// Counts what a disk did between two snapshots, in the second of their middle. Returns how many values found no place.
    pub(super) fn block(&mut self, grown: &Grown, before_ns: u64, now_ns: u64) -> u64 {
        let at = self.column(before_ns / 2 + now_ns / 2);
        let total = grown.slots.iter().map(|(_, count)| count).sum();
        let signal =
            if grown.labels.operation == Operation::DeviceWide { Signal::BlockFlush } else { Signal::Block(grown.phase) };
        let row = BlockRow { signal, labels: grown.labels.clone() };
        if at < self.from || self.blocks.len() >= BLOCK_ROWS && !self.blocks.contains_key(&row) {
            return total;
        }
        let window = self.blocks.entry(row).or_insert_with(Self::window);
        grown.slots.iter().filter(|(slot, count)| !window.record(at, *slot, *count)).map(|(_, count)| count).sum()
    }

    /// Forgets what is too old, and more of it where memory ends.
    pub(super) fn tick(&mut self, now: Anchor) {
        self.latest = now;
        self.forget_before(self.column(now.monotonic_ns()).saturating_sub(SECONDS));
        while self.bytes() > self.budget {
            let Some(oldest) = self.windows().filter_map(Window::oldest).min() else { break };
            if oldest >= self.column(now.monotonic_ns()) {
                break;
            }
            self.forget_before(oldest + GIVE_UP);
        }
        self.requests.retain(|_, window| !window.is_empty());
        self.blocks.retain(|_, window| !window.is_empty());
    }

    /// Bytes in columns and cells.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.windows().map(Window::bytes).sum()
    }

    /// Unix second of the first column that is kept.
    #[must_use]
    pub fn kept_from(&self) -> u64 {
        self.from.saturating_add_signed(self.step_of_the_clock())
    }

    /// Adds up the rows that the query asks for.
    #[must_use]
    pub fn query(&self, query: &Query) -> Matrix {
        let moved = self.step_of_the_clock();
        let step = query.step.max(1);
        let kept = self.kept_from();
        let to = query.to.unwrap_or_else(|| self.column(self.latest.monotonic_ns()).saturating_add_signed(moved));
        let asked = query.from.unwrap_or(kept);
        let cut = asked < kept;
        // Whole columns, as far as they are kept.
        let begin = asked.max(kept);
        let begin = begin - begin % step;
        let from = begin.max(kept);
        let rows: Vec<&Window> = self.matching(query).collect();
        let mut columns: HashMap<u64, Vec<(usize, u64)>> = HashMap::new();
        for window in &rows {
            // One base step at a time: the clock may have moved since the columns were made.
            for found in window.steps(from.saturating_add_signed(-moved), to.saturating_add_signed(-moved), 1) {
                let at = found.at.saturating_add_signed(moved);
                columns.entry(at - at % step).or_default().extend(found.slots);
            }
        }
        if rows.is_empty() || columns.is_empty() {
            return Matrix { rows: rows.len(), from, to, cut, ..Matrix::default() };
        }
        let used = || columns.values().flatten().map(|(slot, _)| *slot);
        let (first_slot, last_slot) = (used().min().unwrap_or(0), used().max().unwrap_or(0));
        let times: Vec<u64> = (begin..to).step_by(usize::try_from(step).unwrap_or(usize::MAX)).collect();
        let counts = times
            .iter()
            .map(|time| {
                let mut counts = vec![0; last_slot - first_slot + 1];
                for (slot, count) in columns.get(time).into_iter().flatten() {
                    counts[slot - first_slot] += count;
                }
                counts
            })
            .collect();
        Matrix { times, first_slot, counts, rows: rows.len(), from, to, cut }
    }

    fn matching<'a>(&'a self, query: &'a Query) -> impl Iterator<Item = &'a Window> {
        let matches =
            |pairs: Pairs<'_>| query.filters.iter().all(|(name, value)| pairs.iter().any(|(n, v)| n == name && v == value));
        let requests = self
            .requests
            .iter()
            .filter(move |(row, _)| row.signal == query.signal && matches(row.pairs()))
            .map(|(_, window)| window);
        let blocks = self
            .blocks
            .iter()
            .filter(move |(row, _)| row.signal == query.signal && matches(row.labels.pairs()))
            .map(|(_, window)| window);
        requests.chain(blocks)
    }

    /// The column of a monotonic time: unix seconds by the wall clock at the start, whatever that clock does later.
    fn column(&self, monotonic_ns: u64) -> u64 {
        unix_ns(&self.start, monotonic_ns) / SECOND_NS
    }

    /// Whole seconds by which the wall clock was moved since the start.
    fn step_of_the_clock(&self) -> i64 {
        #[expect(clippy::cast_possible_truncation, reason = "whole seconds of a clock")]
        let seconds = self.start.step_seconds(&self.latest).round() as i64;
        seconds
    }

    fn forget_before(&mut self, at: u64) {
        self.from = self.from.max(at);
        let from = self.from;
        self.requests.values_mut().chain(self.blocks.values_mut()).for_each(|window| window.forget_before(from));
    }

    fn windows(&self) -> impl Iterator<Item = &Window> {
        self.requests.values().chain(self.blocks.values())
    }

    /// One row may use all of what the budget allows.
    fn window() -> Window {
        #[expect(clippy::cast_possible_truncation, reason = "1 801")]
        Window::new(SECONDS as usize + 1, usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::{super::tests::request, *};
    use crate::decode::request::{Marks, Mode};

    const START_NS: u64 = 1_000 * SECOND_NS;

    fn start() -> Anchor {
        later_by_a_clock_moved(0, Duration::ZERO)
    }

    fn later(seconds: u64) -> Anchor {
        later_by_a_clock_moved(seconds, Duration::ZERO)
    }

    fn later_by_a_clock_moved(seconds: u64, by: Duration) -> Anchor {
        let wall = UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds) + by;
        Anchor::at(START_NS + seconds * SECOND_NS, wall)
    }

    fn ask(heatmaps: &Heatmaps, step: u64) -> Matrix {
        heatmaps.query(&Query { signal: Signal::RequestDuration, from: None, to: None, step, filters: Vec::new() })
    }

    fn add(heatmaps: &mut Heatmaps, seconds: u64, duration: u64) -> u64 {
        let mut request = request("/v1/chat/completions", Mode::Unary);
        let end = later(seconds).monotonic_ns() + 1;
        request.marks = Marks { arrive: end - duration, end, ..Marks::default() };
        heatmaps.request(&request, None, &Arc::new(Workload::default()))
    }

    #[test]
    fn columns_are_unix_seconds_and_zeros_stand_between() {
        let mut heatmaps = Heatmaps::new(1 << 20, start());
        assert_eq!(add(&mut heatmaps, 1, 20_000_000), 0);
        assert_eq!(add(&mut heatmaps, 1, 20_000_000), 0);
        assert_eq!(add(&mut heatmaps, 3, 21_000_000), 0);
        heatmaps.tick(later(5));
        let matrix = ask(&heatmaps, 1);
        assert_eq!(matrix.times, [1_700_000_000, 1_700_000_001, 1_700_000_002, 1_700_000_003, 1_700_000_004]);
        assert_eq!(matrix.counts, [[0, 0], [2, 0], [0, 0], [0, 1], [0, 0]]);
        assert_eq!(ask(&heatmaps, 5).counts, [[2, 1]]);
    }

    #[test]
    fn a_step_of_the_wall_clock_moves_the_times_and_loses_nothing() {
        let mut heatmaps = Heatmaps::new(1 << 20, start());
        add(&mut heatmaps, 1, 20_000_000);
        heatmaps.tick(later_by_a_clock_moved(5, Duration::from_millis(3_600_001)));
        add(&mut heatmaps, 5, 20_000_000);
        heatmaps.tick(later_by_a_clock_moved(7, Duration::from_secs(3_600)));
        let matrix = ask(&heatmaps, 1);
        assert_eq!(matrix.times.first(), Some(&1_700_003_600));
        assert_eq!(matrix.counts.iter().flatten().sum::<u64>(), 2);
        assert_eq!(matrix.counts[1], [1]);
        assert_eq!(matrix.counts[5], [1]);
    }

    #[test]
    fn half_an_hour_is_kept_and_earlier_is_said_to_be_unknown() {
        let mut heatmaps = Heatmaps::new(1 << 20, start());
        add(&mut heatmaps, 1, 5);
        heatmaps.tick(later(SECONDS + 100));
        assert_eq!(heatmaps.bytes(), 0);
        assert_eq!(add(&mut heatmaps, 1, 5), 1, "a forgotten second takes nothing, and that is counted");
        let query = Query { signal: Signal::RequestDuration, from: Some(1_700_000_000), to: None, step: 1, filters: Vec::new() };
        let matrix = heatmaps.query(&query);
        assert_eq!((matrix.from, matrix.cut), (1_700_000_100, true));
    }

    #[test]
    fn memory_ends_the_window_early() {
        let budget = 64 << 10;
        let mut heatmaps = Heatmaps::new(budget, start());
        for second in 0..1_500 {
            for octave in 10..40 {
                add(&mut heatmaps, second, 1 << octave);
            }
            heatmaps.tick(later(second));
            assert!(heatmaps.bytes() <= budget, "{}", heatmaps.bytes());
        }
        assert!(heatmaps.kept_from() > 1_700_001_000, "{}", heatmaps.kept_from());
        assert!(ask(&heatmaps, 1).times.len() > 60);
    }
}
