use super::*;
use std::{sync::LazyLock, time::Duration};

use crate::decode::{
    request::{Marks, Mode},
    route::Routes,
    unseen::Unseen,
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
        unseen: None,
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
        store.undecoded("tls", 1, &workload(&format!("server-{number}")));
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

#[test]
fn a_server_that_makes_up_status_codes_makes_no_series_of_them() {
    let mut store = Store::new(Options::default(), at(0));
    for status in 100..1_000 {
        let mut request = request("/v1/models", Mode::Unary);
        request.status = Some(status);
        store.request(&request, &workload("server"), None);
    }
    let of_others = |labels: &HttpLabels| labels.status == Status::Other;
    assert_eq!(store.http.iter().filter(|(labels, _)| of_others(labels)).count(), 1);
    let others: u64 = store
        .http
        .iter()
        .filter(|(labels, _)| of_others(labels))
        .flat_map(|(_, it)| it.native().slots())
        .map(|(_, count)| count)
        .sum();
    assert_eq!(others, 400, "none of them is lost");
    let errors: Vec<&str> =
        store.http.iter().filter(|(labels, _)| of_others(labels)).map(|(labels, _)| labels.error_type.as_str()).collect();
    assert_eq!(errors, ["_OTHER"]);
}

#[test]
fn what_of_a_request_is_not_seen_is_counted_beside_it() {
    let mut store = Store::new(Options::default(), at(0));
    let mut stream = request("/v1/chat/completions", Mode::Stream);
    stream.unseen = Some(Unseen::Encoded);
    stream.marks.first_event = None;
    store.request(&stream, &workload("server"), None);
    let undecoded: Vec<_> = store.undecoded.iter().map(|(labels, count)| (labels.reason, *count)).collect();
    assert_eq!(undecoded, [("encoded", 1)]);
    assert_eq!(store.http.iter().count(), 1);
    assert!(store.generation.iter().all(|(_, values)| values.time_to_first_token.is_none()));
}
