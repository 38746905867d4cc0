//! The JSON answers, made from the store alone: no HTTP here.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use tailcomb_analysis::scale::{SLOTS, Scale};
use tailcomb_common::bucket::ZERO;

use super::parameters::{self, ParameterError, Parameters};
use crate::{
    attribute::{engine::Engine, measured::Measured, targets::Target, workload::Workload},
    clock::Anchor,
    decode::request::{Mode, Outcome},
    probes::verdict::ProbeVerdict,
    store::{
        Store,
        heatmap::{Query, SECONDS, Signal},
        slowest::SlowRequest,
        unix_ns,
    },
};

/// Most columns of one heatmap.
const MOST_COLUMNS: u64 = 3_600;
/// Most requests of one answer.
pub const MOST_REQUESTS: u64 = 500;

const SECOND_NS: u64 = 1_000_000_000;

/// Why the agent is not ready; empty where it is.
#[must_use]
pub fn not_ready(store: &Store) -> Vec<String> {
    let mut reasons = Vec::new();
    if store.probes().is_empty() {
        reasons.push("the probes are not loaded yet".to_owned());
    }
    for verdict in store.probes().iter().filter(|verdict| verdict.required && !verdict.attached) {
        let (reason, remedy) = verdict.missing().unwrap_or(("it was taken off", "see the agent's log"));
        reasons.push(format!("the required probe {} is not attached: {reason}; {remedy}", verdict.probe));
    }
    if store.ticks() == 0 {
        reasons.push("the first round of measuring has not ended yet".to_owned());
    }
    reasons
}

/// `/api/v1/status`.
#[derive(Debug, Serialize)]
pub struct Status {
    version: &'static str,
    /// RFC 3339.
    started: String,
    uptime_seconds: f64,
    ready: bool,
    not_ready: Vec<String>,
    /// As they were asked for.
    targets_asked: Vec<Target>,
    /// How many processes are measured; `null`: all of them.
    processes_measured: Option<usize>,
    /// The first 100 of them, servers before their children.
    targets: Vec<MeasuredProcess>,
    probes: Vec<ProbeVerdict>,
    /// CPU seconds of each probe's programs; absent where the kernel does not tell.
    probe_runs: Vec<Run>,
    /// Losses that happened.
    lost: Vec<LostCount>,
    /// Connections not decoded.
    undecoded: Vec<UndecodedCount>,
    label_sets: usize,
    series_budget: usize,
    heatmap_bytes: usize,
    /// RFC 3339: the first second that heatmaps still have.
    heatmap_from: String,
    slow_requests: usize,
}

#[derive(Debug, Serialize)]
struct MeasuredProcess {
    process: String,
    pid: u32,
    #[serde(flatten)]
    workload: Workload,
    /// Which server it runs; `null`: not a known one.
    engine: Option<&'static str>,
    /// TCP ports it is measured on; `null`: not to be seen.
    ports: Option<Vec<u16>>,
    /// Why it is measured: a target, or `child of process N`.
    target: String,
}

impl From<&Measured> for MeasuredProcess {
    fn from(measured: &Measured) -> Self {
        Self {
            process: measured.name.clone(),
            pid: measured.id.tgid,
            workload: measured.workload.clone(),
            engine: measured.engine.map(Engine::name),
            ports: measured.ports.clone(),
            target: measured.reason.to_string(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Run {
    probe: &'static str,
    seconds: f64,
    runs: f64,
}

#[derive(Debug, Serialize)]
struct LostCount {
    stage: &'static str,
    reason: &'static str,
    count: u64,
}

#[derive(Debug, Serialize)]
struct UndecodedCount {
    reason: &'static str,
    #[serde(flatten)]
    workload: Workload,
    count: u64,
}

/// Makes the status; `now_ns` is CLOCK_MONOTONIC.
#[must_use]
pub fn status(store: &Store, now_ns: u64) -> Status {
    let started = store.started();
    let not_ready = not_ready(store);
    let lost = store.lost.iter().filter(|(_, count)| *count > 0);
    let undecoded = store.undecoded.iter().map(|(labels, count)| UndecodedCount {
        reason: labels.reason,
        workload: Workload::clone(&labels.workload),
        count: *count,
    });
    Status {
        version: env!("CARGO_PKG_VERSION"),
        started: rfc3339(&started, started.monotonic_ns()),
        uptime_seconds: seconds(now_ns.saturating_sub(started.monotonic_ns())),
        ready: not_ready.is_empty(),
        not_ready,
        targets_asked: store.targets().to_vec(),
        processes_measured: store.measured_count(),
        targets: store.measured().iter().map(MeasuredProcess::from).collect(),
        probes: store.probes().to_vec(),
        probe_runs: store.probe_runs().iter().map(|run| Run { probe: run.probe, seconds: run.seconds, runs: run.runs }).collect(),
        lost: lost.map(|((stage, reason), count)| LostCount { stage, reason, count }).collect(),
        undecoded: undecoded.collect(),
        label_sets: store.label_sets(),
        series_budget: store.series_budget(),
        heatmap_bytes: store.heatmaps.bytes(),
        heatmap_from: humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(store.heatmaps.kept_from())).to_string(),
        slow_requests: store.slowest.len(),
    }
}

/// `/api/v1/heatmap`.
#[derive(Debug, Serialize)]
pub struct Heatmap {
    metric: &'static str,
    unit: &'static str,
    /// Seconds in one column.
    step: u64,
    /// First unix second that is in it; where that lies within the first column, what was before is not in that column.
    from: u64,
    /// The unix second behind the last one in it; may lie within the last column.
    to: u64,
    /// Unix second at which each column begins.
    times: Vec<u64>,
    /// Edges of the buckets, rising, one more than there are buckets: bucket k holds values above `bounds[k]` up to and with
    /// `bounds[k + 1]`. `null` as the last stands for infinity.
    bounds: Vec<Option<f64>>,
    /// By column, by bucket.
    counts: Vec<Vec<u64>>,
    /// How many series were added up.
    series: usize,
    notes: Vec<String>,
}

/// Answers a heatmap query.
///
/// # Errors
/// [`ParameterError`] saying what is wrong with it.
pub fn heatmap(store: &Store, pairs: Vec<(String, String)>) -> Result<Heatmap, ParameterError> {
    let signal = signal(&pairs)?;
    let known: Vec<&str> = ["metric", "from", "to", "step"].into_iter().chain(signal.labels().iter().copied()).collect();
    let parameters = Parameters::new(pairs, &known)?;
    let latest = store.latest();
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let now = unix_ns(&latest, latest.monotonic_ns()) as f64 / 1e9;
    let step = parameters.read("step", step)?.unwrap_or(1);
    let from = parameters.read("from", |text| from(text, now))?;
    let to = parameters.read("to", |text| parameters::time(text, now))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to lie between 1970 and 2500")]
    let to_second = to.map(|to| to.min(now).ceil() as u64);
    check_range(from, to.unwrap_or(now), step)?;
    let mut filters = parameters.filters(signal.labels());
    let mut notes = Vec::new();
    if signal.is_block() && !filters.iter().any(|(name, _)| name == "device" || name == "layer") {
        filters.push(("layer".to_owned(), "leaf".to_owned()));
        notes.push("only layer=\"leaf\": an I/O to a stacked device is one of the disk below too".to_owned());
    }
    let matrix = store.heatmaps.query(&Query { signal, from, to: to_second, step, filters });
    if matrix.cut {
        notes.push(format!("nothing is kept from before {}", matrix.from));
    }
    if matrix.rows == 0 {
        notes.push("no series with these labels has had a value in what is kept".to_owned());
    }
    let height = matrix.counts.first().map_or(0, Vec::len);
    let bounds = if height == 0 { Vec::new() } else { (0..=height).map(|edge| bound(matrix.first_slot + edge)).collect() };
    Ok(Heatmap {
        metric: signal.name(),
        unit: "seconds",
        step,
        from: matrix.from,
        to: matrix.to,
        times: matrix.times,
        bounds,
        counts: matrix.counts,
        series: matrix.rows,
        notes,
    })
}

/// Lower edge of a slot in seconds; `None`: infinity, the edge behind the last slot.
fn bound(slot: usize) -> Option<f64> {
    match slot {
        ZERO => Some(0.0),
        SLOTS => None,
        _ => Some(Scale::Seconds.upper_bound(slot - 1)),
    }
}

fn signal(pairs: &[(String, String)]) -> Result<Signal, ParameterError> {
    let names = Signal::ALL.map(Signal::name);
    let Some((_, asked)) = pairs.iter().find(|(name, _)| name == "metric") else {
        return Err(ParameterError::Missing { name: "metric", expected: format!("one of {}", names.join(", ")) });
    };
    Signal::ALL.into_iter().find(|signal| signal.name() == asked).ok_or_else(|| ParameterError::Value {
        name: "metric".to_owned(),
        value: parameters::shown(asked),
        why: format!("there is no heatmap of it{}; there are {}", parameters::hint(asked, &names), names.join(", ")),
    })
}

fn step(text: &str) -> Result<u64, String> {
    let step = parameters::duration(text)?;
    if step.subsec_nanos() != 0 || step.is_zero() || step.as_secs() > SECONDS {
        return Err(format!("a column has a whole number of seconds, from 1 to {SECONDS}"));
    }
    Ok(step.as_secs())
}

fn from(text: &str, now: f64) -> Result<u64, String> {
    let from = parameters::time(text, now)?;
    if from > now {
        return Err(format!("lies in the future: it is {now:.0} now"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to lie between 1970 and 2500")]
    Ok(from as u64)
}

fn check_range(from: Option<u64>, to: f64, step: u64) -> Result<(), ParameterError> {
    let Some(from) = from else { return Ok(()) };
    let wrong = |why| Err(ParameterError::Value { name: "from".to_owned(), value: from.to_string(), why });
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to lie between 1970 and 2500")]
    let to = to.ceil() as u64;
    if from >= to {
        return wrong(format!("is not before `to`, which is {to}"));
    }
    let columns = (to - from) / step;
    if columns > MOST_COLUMNS {
        return wrong(format!(
            "asks for {columns} columns of {step} s, of at most {MOST_COLUMNS}; only the last {SECONDS} s are kept anyway"
        ));
    }
    Ok(())
}

/// One of `/api/v1/requests`. Times are seconds since the arrival; `null` where that mark was not reached or not seen.
#[derive(Debug, Serialize)]
pub struct SlowEntry {
    /// Arrival (the first read where that was not seen), RFC 3339.
    start: String,
    duration_seconds: f64,
    /// Until the read that took the first byte; `null` where the arrival was not seen.
    receive_wait_seconds: Option<f64>,
    head_read_seconds: Option<f64>,
    body_read_seconds: Option<f64>,
    head_written_seconds: Option<f64>,
    first_token_seconds: Option<f64>,
    last_event_seconds: Option<f64>,
    largest_gap_seconds: Option<f64>,
    method: &'static str,
    route: &'static str,
    status: Option<u16>,
    mode: Mode,
    outcome: Outcome,
    request_bytes: u64,
    response_bytes: u64,
    event_chunks: u32,
    #[serde(flatten)]
    workload: Workload,
    process: String,
    pid: u32,
}

/// `/api/v1/requests`.
#[derive(Debug, Serialize)]
pub struct SlowRequests {
    requests: Vec<SlowEntry>,
    notes: Vec<String>,
}

/// Answers a query for the slowest requests.
///
/// # Errors
/// [`ParameterError`] saying what is wrong with it.
pub fn requests(store: &Store, pairs: Vec<(String, String)>) -> Result<SlowRequests, ParameterError> {
    let parameters = Parameters::new(pairs, &["slowest", "since"])?;
    let most = parameters.read("slowest", |text| parameters::whole(text, 1, MOST_REQUESTS))?.unwrap_or(50);
    let latest = store.latest();
    let now_ns = unix_ns(&latest, latest.monotonic_ns());
    let since_ns = parameters.read("since", |text| since(text, now_ns))?;
    let before_ns = since_ns.map_or(u64::MAX, |since| now_ns.saturating_sub(since));
    let since_monotonic = latest.monotonic_ns().saturating_sub(before_ns);
    let found = store.slowest.since(since_monotonic, usize::try_from(most).unwrap_or(usize::MAX));
    let mut notes = Vec::new();
    if since_ns.is_none_or(|_| before_ns > SECONDS * SECOND_NS) {
        notes.push(format!(
            "only the last {} minutes are kept, the {} slowest of each",
            SECONDS / 60,
            crate::store::slowest::PER_MINUTE
        ));
    }
    Ok(SlowRequests { requests: found.into_iter().map(|slow| entry(slow, &latest)).collect(), notes })
}

/// A time, or how long before now: unix ns.
fn since(text: &str, now_ns: u64) -> Result<u64, String> {
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let now = now_ns as f64 / 1e9;
    // `10m` and `-10m` mean the same here. A bare number of less than a year is a duration too.
    let seconds = match parameters::duration(text) {
        Ok(before) if before < Duration::from_secs(365 * 86_400) => (now - before.as_secs_f64()).max(0.0),
        _ => parameters::time(text, now)?,
    };
    if seconds > now {
        return Err(format!("lies in the future: it is {now:.0} now"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to lie between 1970 and 2500")]
    Ok((seconds * 1e9) as u64)
}

fn entry(slow: &SlowRequest, latest: &Anchor) -> SlowEntry {
    let request = &slow.request;
    let marks = &request.marks;
    let after = |mark: Option<u64>| mark.map(|at| seconds(at.saturating_sub(marks.arrive)));
    SlowEntry {
        start: rfc3339(latest, marks.arrive),
        duration_seconds: seconds(request.duration_ns()),
        receive_wait_seconds: request.receive_wait_ns().map(seconds),
        head_read_seconds: after(marks.head_read),
        body_read_seconds: after(marks.body_read),
        head_written_seconds: after(marks.head_written),
        first_token_seconds: request.time_to_first_token_ns().map(seconds),
        last_event_seconds: after(marks.last_event),
        largest_gap_seconds: request.largest_gap_ns.map(seconds),
        method: request.method,
        route: request.route.name(),
        status: request.status,
        mode: request.mode,
        outcome: request.outcome,
        request_bytes: request.request_bytes,
        response_bytes: request.response_bytes,
        event_chunks: request.event_chunks,
        workload: Workload::clone(&slow.workload),
        process: request.comm.clone(),
        pid: request.tgid,
    }
}

/// `/api/v1/findings`.
#[derive(Debug, Serialize)]
pub struct Findings {
    findings: [(); 0],
    notes: [&'static str; 1],
}

/// What stands: nothing yet, and why.
pub const FINDINGS: Findings = Findings {
    findings: [],
    notes: ["this version has no detectors: an empty list does not say that nothing is wrong; look at /api/v1/heatmap"],
};

#[expect(clippy::cast_precision_loss, reason = "a duration; exact up to 104 days")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn rfc3339(anchor: &Anchor, monotonic_ns: u64) -> String {
    humantime::format_rfc3339_millis(anchor.wall(monotonic_ns)).to_string()
}
