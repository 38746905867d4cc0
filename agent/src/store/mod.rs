//! Everything the agent knows, bounded: counters and histograms by label set, the last half hour, the slowest requests.
//!
//! The pipeline writes, `export` reads. No clock and no I/O here: each call brings its time.
//!
//! **Memory** (test `ten_thousand_label_sets_do_not_grow_it`): with the default budget of 2 000 label sets at most 800 × 2.6 KiB
//! for request durations, 500 × 5 KiB for generation, 500 × 7.5 KiB for waits and sizes, 100 counters each of undecoded connections and incomplete requests,
//! together under 10 MiB; 16 MiB of heatmaps; 0.5 MiB of slowest requests; disks by their number, which the kernel side bounds
//! (32 devices × 17 histograms × 2.3 KiB, twice: 2.5 MiB); [`MOST_MEASURED`] processes of about 300 bytes.

pub mod block;
pub mod buckets;
pub mod heatmap;
pub mod labels;
pub mod lost;
pub mod series;
pub mod slowest;

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::UNIX_EPOCH,
};

use self::{
    block::BlockStore,
    buckets::{BucketSets, Distribution},
    heatmap::Heatmaps,
    labels::{GenAiLabels, HttpLabels, RouteLabels, Status, UNKNOWN, UndecodedLabels, WorkloadLabels, Workloads},
    lost::Lost,
    series::SeriesMap,
    slowest::Slowest,
};
use crate::{
    attribute::{device::Device, measured::Measured, targets::Target, workload::Workload},
    clock::Anchor,
    decode::request::{Outcome, Request},
    probes::{block::BlockSnapshot, verdict::ProbeVerdict},
};

/// No pause of the agent is that long; a time further ahead would push all that is kept out of the heatmaps.
const DAY_NS: u64 = 86_400 * 1_000_000_000;
/// Above what heatmap rows (256) and slow requests (31 × 50) can hold of workloads.
const SWEEP_SLACK: usize = 2_048;
/// Most measured processes that are kept for the API.
pub const MOST_MEASURED: usize = 100;

/// What may be set.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most label sets kept at once, over all request families.
    pub series_budget: usize,
    /// Bytes for heatmaps.
    pub heatmap_bytes: usize,
    /// Classic boundaries.
    pub buckets: BucketSets,
}

impl Default for Options {
    fn default() -> Self {
        Self { series_budget: 2_000, heatmap_bytes: 16 << 20, buckets: BucketSets::default() }
    }
}

/// Values of the `gen_ai_server_*` families under one label set.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Arrive → end.
    pub duration: Distribution,
    /// Arrive → first event; `None` before the first stream.
    pub time_to_first_token: Option<Distribution>,
}

/// Values of the families by route and mode under one label set; each `None` before its first sample.
#[derive(Clone, Debug, Default)]
pub struct Transfer {
    /// Arrive → first read.
    pub receive_wait: Option<Distribution>,
    /// Longest time between two chunks of a stream that carried events; of streams with at least two.
    pub largest_gap: Option<Distribution>,
    /// Body bytes received by complete requests.
    pub request_bytes: Option<Distribution>,
    /// Body bytes sent by complete requests.
    pub response_bytes: Option<Distribution>,
}

/// Run time of one probe's programs, as the kernel accounts it (or an estimate from samples of that account).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeRun {
    /// The probe's stem.
    pub probe: &'static str,
    /// CPU seconds since the start.
    pub seconds: f64,
    /// Runs since the start.
    pub runs: f64,
}

/// The store.
pub struct Store {
    options: Options,
    started: Anchor,
    latest: Anchor,
    ticks: u64,
    /// See [`Store::changes`].
    changes: u64,
    workloads: Workloads,
    /// By label set of `http_server_request_duration_seconds`.
    pub(crate) http: SeriesMap<HttpLabels, Distribution>,
    /// By label set of the `gen_ai_server_*` families.
    pub(crate) generation: SeriesMap<GenAiLabels, Generation>,
    /// By route and mode.
    pub(crate) transfer: SeriesMap<RouteLabels, Transfer>,
    /// Connections not decoded.
    pub(crate) undecoded: SeriesMap<UndecodedLabels, u64>,
    /// Requests whose head was never completed.
    pub(crate) incomplete: SeriesMap<WorkloadLabels, u64>,
    /// Disks.
    pub(crate) block: BlockStore,
    /// The last half hour.
    pub(crate) heatmaps: Heatmaps,
    /// The slowest requests.
    pub(crate) slowest: Slowest,
    /// Losses.
    pub(crate) lost: Lost,
    probes: Vec<ProbeVerdict>,
    probe_runs: Vec<ProbeRun>,
    targets: Vec<Target>,
    measured: Vec<Measured>,
    measured_count: usize,
}

impl Store {
    /// An empty one; `started` is the agent's start.
    #[must_use]
    pub fn new(options: Options, started: Anchor) -> Self {
        let budget = options.series_budget;
        Self {
            started,
            latest: started,
            ticks: 0,
            changes: 0,
            workloads: Workloads::default(),
            http: SeriesMap::new(budget * 4 / 10),
            generation: SeriesMap::new(budget / 4),
            transfer: SeriesMap::new(budget / 4),
            undecoded: SeriesMap::new(budget / 20),
            incomplete: SeriesMap::new(budget / 20),
            block: BlockStore::default(),
            heatmaps: Heatmaps::new(options.heatmap_bytes, started),
            slowest: Slowest::default(),
            lost: Lost::default(),
            probes: Vec::new(),
            probe_runs: Vec::new(),
            targets: Vec::new(),
            measured: Vec::new(),
            measured_count: 0,
            options,
        }
    }

    /// Counts one request of `workload`; `provider` is the engine that answered it, where that is known (`vllm`, `sglang`, …).
    pub fn request(&mut self, request: &Request, workload: &Workload, provider: Option<&'static str>) {
        let at = request.marks.end;
        if at.saturating_sub(self.latest.monotonic_ns()) > DAY_NS {
            self.lost.add(lost::FUTURE, 1);
            return;
        }
        let workload = self.workloads.share(workload);
        let mut folded = u64::from(self.count_http(request, &workload));
        let mut first_token = None;
        if let Some(operation) = request.route.operation().filter(|_| request.outcome == Outcome::Complete) {
            let labels = GenAiLabels {
                operation,
                provider: provider.unwrap_or(UNKNOWN),
                route: request.route,
                error_type: request.error_type(OPERATION_ERRORS),
                workload: Arc::clone(&workload),
            };
            first_token =
                request.time_to_first_token_ns().filter(|_| request.route.is_generation() && labels.error_type.is_empty());
            let buckets = &self.options.buckets;
            let new = || Generation { duration: Distribution::new(&buckets.gen_ai_duration), time_to_first_token: None };
            let (values, fold) = self.generation.get_or_insert(labels, at, new);
            values.duration.observe(request.duration_ns());
            if let Some(ns) = first_token {
                observe(&mut values.time_to_first_token, &buckets.time_to_first_token, ns);
            }
            folded += u64::from(fold);
        }
        folded += u64::from(self.count_transfer(request, &workload));
        self.lost.add(lost::SERIES_BUDGET, folded);
        let unplaced = self.heatmaps.request(request, first_token, &workload);
        self.lost.add(lost::HEATMAP, unplaced);
        self.slowest.offer(request, &workload);
        if let Some(unseen) = request.unseen {
            self.undecoded(unseen.reason(), 1, &workload);
        }
        // Label sets, heatmaps and slow requests can't hold as many: each sweep makes room for many new ones.
        if self.workloads.len() > 2 * self.options.series_budget + SWEEP_SLACK {
            self.workloads.sweep();
        }
    }

    fn count_http(&mut self, request: &Request, workload: &Arc<Workload>) -> bool {
        let labels = HttpLabels {
            method: request.method,
            status: Status::of(request.status),
            route: request.route,
            error_type: request.error_type(SERVER_ERRORS),
            mode: request.mode,
            outcome: request.outcome,
            workload: Arc::clone(workload),
        };
        let buckets = &self.options.buckets.http_duration;
        let (values, folded) = self.http.get_or_insert(labels, request.marks.end, || Distribution::new(buckets));
        values.observe(request.duration_ns());
        folded
    }

    fn count_transfer(&mut self, request: &Request, workload: &Arc<Workload>) -> bool {
        let receive_wait = request.receive_wait_ns();
        let complete = request.outcome == Outcome::Complete;
        if receive_wait.is_none() && request.largest_gap_ns.is_none() && !complete {
            return false;
        }
        let labels = RouteLabels { route: request.route, mode: request.mode, workload: Arc::clone(workload) };
        let buckets = &self.options.buckets;
        let (values, folded) = self.transfer.get_or_insert(labels, request.marks.end, Transfer::default);
        if let Some(ns) = receive_wait {
            observe(&mut values.receive_wait, &buckets.receive_wait, ns);
        }
        if let Some(ns) = request.largest_gap_ns {
            observe(&mut values.largest_gap, &buckets.largest_gap, ns);
        }
        if complete {
            observe(&mut values.request_bytes, &buckets.body_bytes, request.request_bytes);
            observe(&mut values.response_bytes, &buckets.body_bytes, request.response_bytes);
        }
        folded
    }

    /// Counts requests that are not decoded, or as one a connection that is not.
    pub fn undecoded(&mut self, reason: &'static str, more: u64, workload: &Workload) {
        let workload = self.workloads.share(workload);
        let now = self.latest.monotonic_ns();
        let (count, folded) = self.undecoded.get_or_insert(UndecodedLabels { reason, workload }, now, || 0);
        *count += more;
        self.lost.add(lost::SERIES_BUDGET, u64::from(folded));
    }

    /// Counts one request whose head was never completed.
    pub fn incomplete(&mut self, workload: &Workload) {
        let labels = WorkloadLabels(self.workloads.share(workload));
        let (count, folded) = self.incomplete.get_or_insert(labels, self.latest.monotonic_ns(), || 0);
        *count += 1;
        self.lost.add(lost::SERIES_BUDGET, u64::from(folded));
    }

    /// Takes the disks' figures; `name` tells a device by its number.
    pub fn block(&mut self, snapshot: &BlockSnapshot, name: &dyn Fn(u32) -> Option<Device>) {
        let before = self.block.at_ns().unwrap_or(snapshot.at_ns);
        let applied = self.block.apply(snapshot, name);
        self.lost.add(lost::UNKNOWN_DEVICE, applied.unnamed);
        let unplaced = applied.grown.iter().map(|grown| self.heatmaps.block(grown, before, snapshot.at_ns)).sum();
        self.lost.add(lost::HEATMAP, unplaced);
    }

    /// Counts samples that the caller could not use.
    pub fn add_lost(&mut self, reason: (&'static str, &'static str), count: u64) {
        self.lost.add(reason, count);
    }

    /// Takes one loss counter, cumulative, from where it is counted.
    pub fn set_lost(&mut self, reason: (&'static str, &'static str), total: u64) {
        self.lost.set(reason, total);
    }

    /// Takes the kernel's loss counters, cumulative, by position in [`tailcomb_common::lost::REASONS`].
    pub fn set_kernel_lost(&mut self, totals: &[u64]) {
        for (reason, total) in tailcomb_common::lost::REASONS.into_iter().zip(totals) {
            self.lost.set(reason, *total);
        }
    }

    /// Takes what became of the probes, all of them. The series of one that is not attached (any more) go: it yields none, never
    /// zeros.
    pub fn set_probes(&mut self, verdicts: Vec<ProbeVerdict>) {
        self.probes = verdicts;
        if !self.is_attached("block") {
            self.block.clear();
        }
        if !self.is_attached("socket") {
            self.http.clear();
            self.generation.clear();
            self.transfer.clear();
            self.undecoded.clear();
            self.incomplete.clear();
        }
    }

    /// Takes the probes' run times, all that are known.
    pub fn set_probe_runs(&mut self, runs: Vec<ProbeRun>) {
        self.probe_runs = runs;
    }

    /// Takes what was asked to be measured.
    pub fn set_targets(&mut self, targets: &[Target]) {
        self.targets = targets.to_vec();
    }

    /// Takes who is measured now; the first [`MOST_MEASURED`] are kept, servers before their children.
    pub fn set_measured(&mut self, measured: &[Measured]) {
        let servers = measured.iter().filter(|measured| !measured.child);
        let children = measured.iter().filter(|measured| measured.child);
        self.measured = servers.chain(children).take(MOST_MEASURED).cloned().collect();
        self.measured_count = measured.len();
    }

    /// Ends one round of the pipeline, once a second: forgets what is too old.
    pub fn tick(&mut self, now: Anchor) {
        self.latest = now;
        self.ticks += 1;
        self.http.sweep(now.monotonic_ns());
        self.generation.sweep(now.monotonic_ns());
        self.transfer.sweep(now.monotonic_ns());
        self.undecoded.sweep(now.monotonic_ns());
        self.incomplete.sweep(now.monotonic_ns());
        self.heatmaps.tick(now);
        self.slowest.tick(now.monotonic_ns());
    }

    /// The agent's start.
    #[must_use]
    pub const fn started(&self) -> Anchor {
        self.started
    }

    /// The latest tick, else the start.
    #[must_use]
    pub const fn latest(&self) -> Anchor {
        self.latest
    }

    /// Ticks so far.
    #[must_use]
    pub const fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Another number than before where something may have changed.
    #[must_use]
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// What became of each probe; empty before they were loaded.
    #[must_use]
    pub fn probes(&self) -> &[ProbeVerdict] {
        &self.probes
    }

    /// The probes' run times, as far as known.
    #[must_use]
    pub fn probe_runs(&self) -> &[ProbeRun] {
        &self.probe_runs
    }

    /// What was asked to be measured.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// The first [`MOST_MEASURED`] measured processes; none with `all`.
    #[must_use]
    pub fn measured(&self) -> &[Measured] {
        &self.measured
    }

    /// How many processes are measured; `None`: all of them.
    #[must_use]
    pub fn measured_count(&self) -> Option<usize> {
        (!self.targets.contains(&Target::All)).then_some(self.measured_count)
    }

    /// How many label sets of requests are held.
    #[must_use]
    pub fn label_sets(&self) -> usize {
        self.http.len() + self.generation.len() + self.transfer.len() + self.undecoded.len() + self.incomplete.len()
    }

    /// The budget of label sets.
    #[must_use]
    pub const fn series_budget(&self) -> usize {
        self.options.series_budget
    }

    fn is_attached(&self, probe: &str) -> bool {
        self.probes.iter().any(|verdict| verdict.probe == probe && verdict.attached)
    }
}

/// From which status on an HTTP server has failed, for OpenTelemetry.
const SERVER_ERRORS: u16 = 500;
/// From which status on an operation of a model has failed: a refused prompt is a failed operation, though no failure of the HTTP
/// server; among the successful it would read as a very quick answer.
const OPERATION_ERRORS: u16 = 400;

fn observe(distribution: &mut Option<Distribution>, buckets: &Arc<buckets::Buckets>, value: u64) {
    distribution.get_or_insert_with(|| Distribution::new(buckets)).observe(value);
}

/// Unix time in ns of a monotonic time, as the wall clock stands at `anchor`.
#[must_use]
pub fn unix_ns(anchor: &Anchor, monotonic_ns: u64) -> u64 {
    let since = anchor.wall(monotonic_ns).duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The store, shared between the pipeline that writes and the exporter that reads.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Store>>);

impl Shared {
    /// Shares a store.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self(Arc::new(Mutex::new(store)))
    }

    /// Waits for it. Hold it briefly, and never across an await.
    pub fn lock(&self) -> Locked<'_> {
        // Counters are whole after each statement: a panic elsewhere does not make them wrong.
        Locked(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The store while nobody else has it. Whoever takes it to change it is counted in [`Store::changes`].
#[derive(Debug)]
pub struct Locked<'a>(MutexGuard<'a, Store>);

impl Deref for Locked<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Store {
        self.0.changes = self.0.changes.wrapping_add(1);
        &mut self.0
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Store").field("label_sets", &self.label_sets()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Shared(Store)")
    }
}

#[cfg(test)]
pub(crate) mod tests;
