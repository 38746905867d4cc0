//! The JSON API and the rules of access, over the wire.

use serde_json::Value;

use super::*;
use crate::attribute::{
    engine::Engine, measured::Measured, process::ProcessId, scan::Reason, targets::Target, workload::Workload,
};

fn json(running: &Running, target: &str) -> Value {
    let (status, body) = running.get(target);
    assert_eq!(status, 200, "{target}: {body}");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{target}: {error}: {body}"))
}

#[test]
fn ready_only_with_probes_and_a_first_tick() {
    let store = store();
    let running = Running::start(&store, Limits::default());
    assert_eq!(running.get("/healthz").0, 200);
    let (status, body) = running.get("/readyz");
    assert_eq!(status, 503);
    assert!(body.contains("probes are not loaded") && body.contains("first round"), "{body}");
    store.lock().set_probes(verdicts(false));
    store.lock().tick(at(1));
    let (status, body) = running.get("/readyz");
    assert!(status == 503 && body.contains("block") && body.contains("socket") && !body.contains("first round"), "{body}");
    store.lock().set_probes(verdicts(true));
    assert_eq!(running.get("/readyz"), (200, "ready\n".to_owned()));
    // The same stands in the status.
    let status = json(&running, "/api/v1/status");
    assert_eq!((&status["ready"], &status["started"]), (&Value::Bool(true), &Value::from("2023-11-14T22:13:20.000Z")));
}

#[test]
fn a_request_with_a_wrong_name_origin_method_or_body_is_refused() {
    let running = Running::start(&full(), Limits::default());
    let refused = |request: &str| {
        let (status, head, body) = running.exchange(request);
        (status, head, String::from_utf8_lossy(&body).into_owned())
    };
    let (status, _, body) = refused("GET /api/v1/status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert!(status == 421 && body.contains("--allowed-host evil.example"), "{status} {body}");
    let (status, ..) =
        refused("GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nConnection: close\r\n\r\n");
    assert_eq!(status, 403);
    let (status, ..) = refused("GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert_eq!(status, 200);
    let (status, head, _) = refused("POST /api/v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n");
    assert!(status == 405 && head.contains("allow: GET, HEAD") && head.contains("connection: close"), "{head}");
    let (status, ..) = refused("GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(status, 413);
    let (status, ..) = refused("GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert_eq!(status, 400);
    let (status, head, body) = refused("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(status == 200 && body.is_empty() && head.contains("content-length"), "{head}");
    assert_eq!(running.get("/nothing").0, 404);
    let (status, body) = running.get("/");
    assert!(status == 200 && body.contains("/api/v1/heatmap"), "{body}");
}

#[test]
fn a_heatmap_is_counts_by_time_and_height() {
    let running = Running::start(&full(), Limits::default());
    let map = json(&running, "/api/v1/heatmap?metric=http_server_request_duration_seconds&step=1");
    assert_eq!(map["times"], serde_json::json!([1_700_000_000, 1_700_000_001, 1_700_000_002]));
    // Three requests of 100 ms, in the second of their end.
    assert_eq!(map["counts"], serde_json::json!([[0], [3], [0]]));
    let bounds: Vec<f64> = serde_json::from_value(map["bounds"].clone()).expect("numbers");
    assert!(bounds.len() == 2 && bounds[0] < 0.1 && 0.1 <= bounds[1] && bounds[1] / bounds[0] < 1.1, "{bounds:?}");
    let one = json(&running, "/api/v1/heatmap?metric=http_server_request_duration_seconds&http_route=/health");
    assert_eq!(one["counts"], serde_json::json!([[0], [1], [0]]));
    let none = json(&running, "/api/v1/heatmap?metric=http_server_request_duration_seconds&workload=nobody");
    assert!(none["times"] == serde_json::json!([]) && none["notes"][0].as_str().is_some_and(|note| note.contains("no series")));
    let coarse = json(&running, "/api/v1/heatmap?metric=gen_ai_server_time_to_first_token_seconds&step=1m");
    // The agent is younger than the column: that is to be seen.
    assert_eq!((&coarse["times"], &coarse["counts"]), (&serde_json::json!([1_699_999_980]), &serde_json::json!([[1]])));
    assert_eq!((coarse["from"].as_u64(), coarse["to"].as_u64()), (Some(1_700_000_000), Some(1_700_000_003)));
    let cut = json(&running, "/api/v1/heatmap?metric=http_server_request_duration_seconds&from=-10m&step=10s");
    assert!(cut["notes"][0].as_str().is_some_and(|note| note.contains("nothing is kept from before 1700000000")), "{cut}");
}

#[test]
fn a_disk_heatmap_has_what_came_between_snapshots_and_no_io_twice() {
    let running = Running::start(&full(), Limits::default());
    let map = json(&running, "/api/v1/heatmap?metric=tailcomb_block_total_seconds");
    let total = |map: &Value| -> u64 {
        map["counts"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|column| column.as_array().into_iter().flatten())
            .filter_map(Value::as_u64)
            .sum()
    };
    // Two of the three came after the first snapshot; the device stacked on the disk is left out unless asked for.
    assert_eq!(total(&map), 2);
    assert!(map["notes"][0].as_str().is_some_and(|note| note.contains("leaf")), "{map}");
    assert_eq!(map["bounds"].as_array().and_then(|bounds| bounds.last()), Some(&Value::Null), "above 64 s has no bound");
    assert_eq!(total(&json(&running, "/api/v1/heatmap?metric=tailcomb_block_total_seconds&layer=stacked")), 2);
    assert_eq!(total(&json(&running, "/api/v1/heatmap?metric=tailcomb_block_total_seconds&device=vd1&operation=write")), 0);
}

#[test]
fn a_bad_query_is_answered_with_what_is_wrong() {
    let running = Running::start(&full(), Limits::default());
    let metric = "metric=http_server_request_duration_seconds";
    for (query, says) in [
        (String::new(), "metric"),
        ("metric=http_server_request_duration_second".to_owned(), "did you mean `http_server_request_duration_seconds`?"),
        ("metric=tailcomb_lost_total".to_owned(), "there are http_server_request_duration_seconds"),
        (format!("{metric}&step=0"), "whole number of seconds"),
        (format!("{metric}&step=0.5"), "step=0.5"),
        (format!("{metric}&step=1y"), "from 1 to 1800"),
        (format!("{metric}&step=x"), "step=x: is not a duration"),
        (format!("{metric}&from=yesterday"), "RFC 3339"),
        (format!("{metric}&from=NaN"), "from=NaN"),
        (format!("{metric}&from=1e300"), "from=1e300"),
        (format!("{metric}&from=0"), "columns"),
        (format!("{metric}&from=1700000002&to=1700000001"), "not before `to`"),
        (format!("{metric}&from=1800000000"), "future"),
        (format!("{metric}&stp=5"), "did you mean `step`?"),
        (format!("{metric}&device=vda"), "unknown parameter `device`"),
        (format!("{metric}&step=5&step=6"), "twice"),
    ] {
        let (status, body) = running.get(&format!("/api/v1/heatmap?{query}"));
        assert_eq!(status, 400, "{query}: {body}");
        let why: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{query}: {error}: {body}"));
        assert!(why["error"].as_str().is_some_and(|why| why.contains(says)), "{query}: {body} does not say {says}");
    }
    for query in ["slowest=0", "slowest=501", "slowest=many", "slowest=-1", "since=never", "slowst=5"] {
        let (status, body) = running.get(&format!("/api/v1/requests?{query}"));
        assert!(status == 400 && body.contains("error"), "{query}: {body}");
    }
}

#[test]
fn the_slowest_requests_have_their_time_split() {
    let running = Running::start(&full(), Limits::default());
    let answer = json(&running, "/api/v1/requests?slowest=50&since=10m");
    let requests = answer["requests"].as_array().expect("a list");
    assert_eq!(requests.len(), 3);
    let stream = requests.iter().find(|request| request["mode"] == "stream").expect("the stream");
    for (field, expected) in [
        ("start", Value::from("2023-11-14T22:13:21.000Z")),
        ("duration_seconds", Value::from(0.1)),
        ("receive_wait_seconds", Value::from(0.00005)),
        ("head_written_seconds", Value::from(0.001)),
        ("first_token_seconds", Value::from(0.04)),
        ("largest_gap_seconds", Value::from(0.03)),
        ("route", Value::from("/v1/chat/completions")),
        ("status", Value::from(200)),
        ("outcome", Value::from("complete")),
        ("workload", Value::from("vllm")),
        ("process", Value::from("server")),
        ("request_bytes", Value::from(1_000)),
    ] {
        assert_eq!(stream[field], expected, "{field}");
    }
    let aborted = requests.iter().find(|request| request["outcome"] == "aborted").expect("the abort");
    assert!(aborted["status"].is_null() && aborted["first_token_seconds"].is_null());
    assert_eq!(json(&running, "/api/v1/requests?slowest=1")["requests"].as_array().map(Vec::len), Some(1));
    assert_eq!(json(&running, "/api/v1/requests?since=1s")["requests"], serde_json::json!([]));
}

#[test]
fn no_detector_is_no_finding_and_that_is_said() {
    let running = Running::start(&full(), Limits::default());
    let findings = json(&running, "/api/v1/findings");
    assert_eq!(findings["findings"], serde_json::json!([]));
    assert!(findings["notes"][0].as_str().is_some_and(|note| note.contains("no detectors")));
}

#[test]
fn the_status_lists_who_is_measured_and_how_many() {
    let store = full();
    let running = Running::start(&store, Limits::default());
    let measured = |tgid, child: bool| Measured {
        id: ProcessId { tgid, start: 1 },
        name: "python3".to_owned(),
        workload: Workload { workload: "vllm.service".to_owned(), ..Workload::default() },
        engine: (!child).then_some(Engine::Vllm),
        ports: (!child).then(|| vec![8000]),
        reason: if child { Reason::Descends(900) } else { Reason::Matches(Target::Auto) },
        child,
    };
    let mut all: Vec<Measured> = (1..300).map(|tgid| measured(tgid, true)).collect();
    all.push(measured(900, false));
    store.lock().set_targets(&[Target::Auto]);
    store.lock().set_measured(&all);
    let status = json(&running, "/api/v1/status");
    assert_eq!((&status["targets_asked"], &status["processes_measured"]), (&serde_json::json!(["auto"]), &Value::from(300)));
    let listed = status["targets"].as_array().expect("a list");
    assert_eq!(listed.len(), 100);
    let server = serde_json::json!({
        "process": "python3", "pid": 900, "namespace": "", "pod": "", "container": "", "workload": "vllm.service",
        "engine": "vllm", "ports": [8000], "target": "auto",
    });
    assert_eq!(listed[0], server, "servers stand first");
    assert_eq!((&listed[1]["ports"], &listed[1]["target"]), (&Value::Null, &Value::from("child of process 900")));
    store.lock().set_targets(&[Target::All]);
    assert_eq!(json(&running, "/api/v1/status")["processes_measured"], Value::Null, "`all` is not counted");
}
