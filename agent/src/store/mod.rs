//! Everything the agent knows, bounded: counters and histograms by label set, the last half hour, the slowest requests.
//!
//! The pipeline writes, `export` reads. No clock and no I/O here: each call brings its time.
//!
//! **Memory** (test `ten_thousand_label_sets_do_not_grow_it`): with the default budget of 2 000 label sets at most 800 × 2.6 KiB
//! for request durations, 500 × 5 KiB for generation, 500 × 7.5 KiB for waits and sizes, 100 counters each of undecoded connections and incomplete requests,
//! together under 10 MiB; 16 MiB of heatmaps; 0.5 MiB of slowest requests; disks by their number, which the kernel side bounds
//! (32 devices × 17 histograms × 2.3 KiB, twice: 2.5 MiB).

pub mod block;
pub mod buckets;
pub mod heatmap;
pub mod labels;
pub mod lost;
pub mod series;
pub mod slowest;

use std::{
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
    attribute::{device::Device, workload::Workload},
    clock::Anchor,
    decode::request::{Outcome, Request},
    probes::{block::BlockSnapshot, verdict::ProbeVerdict},
};

/// No pause of the agent is that long; a time further ahead would push all that is kept out of the heatmaps.
const DAY_NS: u64 = 86_400 * 1_000_000_000;
/// Above what heatmap rows (256) and slow requests (31 × 50) can hold of workloads.
const SWEEP_SLACK: usize = 2_048;

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
                error_type: gen_ai_error_type(request),
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
        // Label sets, heatmaps and slow requests can't hold as many: each sweep makes room for many new ones.
        if self.workloads.len() > 2 * self.options.series_budget + SWEEP_SLACK {
            self.workloads.sweep();
        }
    }

    fn count_http(&mut self, request: &Request, workload: &Arc<Workload>) -> bool {
        let labels = HttpLabels {
            method: request.method,
            status: request.status.map_or(Status::None, Status::Code),
            route: request.route,
            error_type: request.error_type(),
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

    /// Counts one connection that is not decoded (any further).
    pub fn undecoded(&mut self, reason: &'static str, workload: &Workload) {
        let workload = self.workloads.share(workload);
        let now = self.latest.monotonic_ns();
        let (count, folded) = self.undecoded.get_or_insert(UndecodedLabels { reason, workload }, now, || 0);
        *count += 1;
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

/// `error_type` of an operation: any status from 400 on. A refused prompt is a failed operation, though no failure of the HTTP
/// server, for which OpenTelemetry counts from 500 on; among the successful it would read as a very quick answer.
fn gen_ai_error_type(request: &Request) -> String {
    request.status.filter(|status| *status >= 400).map_or_else(String::new, |status| status.to_string())
}

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
    pub fn lock(&self) -> MutexGuard<'_, Store> {
        // Counters are whole after each statement: a panic elsewhere does not make them wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Shared(Store)")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::{sync::LazyLock, time::Duration};

    use crate::decode::{
        request::{Marks, Mode},
        route::Routes,
    };

    static ROUTES: LazyLock<Routes> = LazyLock::new(Routes::default);

    /// A complete request with status 200 that took 100 ms.
    pub(crate) fn request(route: &str, mode: Mode) -> Request {
        Request {
            connection: 1,
            tgid: 1,
            tid: 1,
            comm: "server".to_owned(),
            cgroup_id: 1,
            local_port: 8000,
            method: "POST",
            route: ROUTES.of(route),
            status: Some(200),
            mode,
            outcome: Outcome::Complete,
            arrival_seen: true,
            marks: Marks {
                arrive: 1_000_000_000,
                first_read: Some(1_000_050_000),
                head_read: Some(1_000_060_000),
                head_written: Some(1_001_000_000),
                body_read: Some(1_000_070_000),
                last_event: (mode == Mode::Stream).then_some(1_090_000_000),
                first_event: (mode == Mode::Stream).then_some(1_040_000_000),
                end: 1_100_000_000,
            },
            request_bytes: 1_000,
            response_bytes: 2_000,
            event_chunks: 0,
            largest_gap_ns: None,
        }
    }

    /// A workload of that name.
    pub(crate) fn workload(name: &str) -> Workload {
        Workload { workload: name.to_owned(), ..Workload::default() }
    }

    /// That many seconds after the start of the tests' time.
    pub(crate) fn at(seconds: u64) -> Anchor {
        Anchor::at(seconds * 1_000_000_000, UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds))
    }

    fn store() -> Store {
        Store::new(Options::default(), at(0))
    }

    fn lost(store: &Store, reason: (&str, &str)) -> u64 {
        store.lost.iter().find(|(found, _)| *found == reason).map_or(0, |(_, count)| count)
    }

    #[test]
    fn ten_thousand_label_sets_do_not_grow_it() {
        let mut store = store();
        let heap = |store: &Store| {
            let http: usize = store.http.iter().map(|(_, values)| values.heap_bytes()).sum();
            let generation: usize = store.generation.iter().map(|(_, values)| values.duration.heap_bytes()).sum();
            http + generation + store.heatmaps.bytes()
        };
        let mut half = 0;
        for number in 0..10_000u64 {
            let mut request = request("/v1/chat/completions", Mode::Stream);
            request.status = Some(100 + u16::try_from(number % 900).expect("small"));
            // Values all over the scale: each histogram as large as it can be.
            request.marks.end = request.marks.arrive + (1 << (number % 43));
            store.request(&request, &workload(&format!("server-{number}")), None);
            store.undecoded("tls", &workload(&format!("server-{number}")));
            if number == 5_000 {
                half = heap(&store) + store.workloads.len();
            }
        }
        store.tick(at(2));
        assert!(store.label_sets() <= store.series_budget() + 32, "{} label sets", store.label_sets());
        assert!(heap(&store) < half + half / 10, "grew from {half} to {}", heap(&store));
        assert!(heap(&store) < 10 << 20, "{} bytes", heap(&store));
        assert!(store.workloads.len() <= 2 * store.series_budget() + SWEEP_SLACK + 1, "{} workloads", store.workloads.len());
        assert!(store.slowest.len() <= 31 * slowest::PER_MINUTE);
        let counted: u64 = store.http.iter().map(|(_, values)| values.native().count()).sum();
        assert_eq!(counted, 10_000, "beyond the budget samples are under `other`, not gone");
        assert!(lost(&store, lost::SERIES_BUDGET) > 9_000);
    }

    #[test]
    fn a_time_that_can_not_be_is_counted_and_harms_nothing() {
        let mut store = store();
        store.tick(at(2));
        store.request(&request("/health", Mode::Unary), &workload("server"), None);
        let mut bogus = request("/health", Mode::Unary);
        bogus.marks.end = u64::MAX;
        store.request(&bogus, &workload("server"), None);
        store.request(&request("/health", Mode::Unary), &workload("server"), None);
        assert_eq!((lost(&store, lost::FUTURE), lost(&store, lost::HEATMAP)), (1, 0));
        assert_eq!(store.http.iter().map(|(_, values)| values.native().count()).sum::<u64>(), 2);
    }

    #[test]
    fn an_abort_is_in_the_http_family_alone() {
        let mut store = store();
        let mut aborted = request("/v1/chat/completions", Mode::Stream);
        aborted.outcome = Outcome::Aborted;
        store.request(&aborted, &workload("server"), None);
        assert_eq!((store.http.len(), store.generation.len()), (1, 0));
        let (_, transfer) = store.transfer.iter().next().expect("its receive wait counts");
        assert!(transfer.request_bytes.is_none(), "the length of a body that broke off says nothing");
    }

    #[test]
    fn a_first_token_is_that_of_a_complete_successful_stream_on_a_generation_route() {
        let first_tokens = |request: &Request| {
            let mut store = store();
            store.request(request, &workload("server"), Some("vllm"));
            store.generation.iter().filter_map(|(_, values)| values.time_to_first_token.clone()).count()
        };
        assert_eq!(first_tokens(&request("/v1/chat/completions", Mode::Stream)), 1);
        assert_eq!(first_tokens(&request("/v1/chat/completions", Mode::Unary)), 0);
        assert_eq!(first_tokens(&request("other", Mode::Stream)), 0);
        let mut failed = request("/v1/chat/completions", Mode::Stream);
        failed.status = Some(503);
        assert_eq!(first_tokens(&failed), 0);
    }

    #[test]
    fn a_refused_prompt_is_a_failed_operation_and_no_failed_http_request() {
        let mut store = store();
        let mut refused = request("/v1/chat/completions", Mode::Unary);
        refused.status = Some(429);
        store.request(&refused, &workload("server"), None);
        assert_eq!(store.generation.iter().next().map(|(labels, _)| labels.error_type.as_str()), Some("429"));
        assert_eq!(store.http.iter().next().map(|(labels, _)| labels.error_type.as_str()), Some(""));
    }

    #[test]
    fn an_unseen_arrival_gives_no_receive_wait() {
        let mut store = store();
        let mut late = request("/health", Mode::Unary);
        late.arrival_seen = false;
        store.request(&late, &workload("server"), None);
        assert!(store.transfer.iter().all(|(_, values)| values.receive_wait.is_none()));
    }

    #[test]
    fn a_detached_probe_leaves_no_series() {
        let verdict = |probe, attached| ProbeVerdict { probe, required: true, attached, programs: Vec::new() };
        let mut store = store();
        store.set_probes(vec![verdict("block", true), verdict("socket", true)]);
        store.request(&request("/health", Mode::Unary), &workload("server"), None);
        let snapshot =
            BlockSnapshot { at_ns: 1, series: vec![block::tests::series(1, crate::probes::block::Operation::Read, &[1_000])] };
        let name = |_| Some(Device { name: "vda".to_owned(), layer: crate::attribute::device::Layer::Leaf });
        store.block(&snapshot, &name);
        store.set_probes(vec![verdict("block", false), verdict("socket", true)]);
        assert_eq!((store.block.len(), store.http.len()), (0, 1));
        store.set_probes(vec![verdict("block", false), verdict("socket", false)]);
        assert_eq!(store.label_sets(), 0);
    }
}
