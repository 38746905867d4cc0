//! `/metrics`: what is in it, what is not, and that it holds together from scrape to scrape.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::export::{
    catalogue::{CATALOGUE, Kind},
    collector::Exporter,
    negotiate::Format,
};

fn text(store: &Shared) -> String {
    String::from_utf8(Exporter::new(store.clone()).render(Format::Text).expect("written").into()).expect("text")
}

/// `name{labels}` → value.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').expect("a sample"))
        .map(|(key, value)| (key.to_owned(), value.parse().expect("a number")))
        .collect()
}

fn label_names(key: &str) -> Vec<String> {
    let labels = key.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
    let names = labels.split("\",").filter_map(|pair| pair.split_once("=\"")).map(|(name, _)| name.to_owned());
    names.filter(|name| name != "le").collect()
}

#[test]
fn every_series_is_in_the_catalogue_with_its_labels_and_every_family_occurs() {
    let text = text(&full());
    let mut seen = BTreeSet::new();
    for key in samples(&text).keys() {
        let name = key.split('{').next().expect("a name");
        let family = CATALOGUE
            .iter()
            .find(|metric| match metric.kind {
                Kind::Histogram => {
                    ["_bucket", "_sum", "_count"].iter().any(|suffix| name.strip_suffix(suffix) == Some(metric.name))
                }
                _ => name == metric.name,
            })
            .unwrap_or_else(|| panic!("{name} is not in the catalogue"));
        assert_eq!(label_names(key), family.labels, "{key}");
        seen.insert(family.name);
    }
    let all: BTreeSet<&str> = CATALOGUE.iter().map(|metric| metric.name).collect();
    assert_eq!(seen, all);
}

#[test]
fn nothing_is_there_before_its_first_sample_but_losses() {
    let store = store();
    let names = |text: &str| {
        samples(text).into_keys().map(|key| key.split('{').next().expect("a name").to_owned()).collect::<BTreeSet<_>>()
    };
    let own = |name: &String| name.starts_with("process_");
    let mut found = names(&text(&store));
    found.retain(|name| !own(name));
    assert_eq!(found, BTreeSet::from(["tailcomb_build_info".to_owned(), "tailcomb_lost_total".to_owned()]));
    let lost = samples(&text(&store)).into_iter().filter(|(key, _)| key.starts_with("tailcomb_lost_total"));
    let lost: Vec<_> = lost.collect();
    assert!(lost.len() >= tailcomb_common::lost::REASONS.len() + 3 && lost.iter().all(|(_, value)| *value == 0.0), "{lost:?}");
    // A probe that is not attached is said to be so, and yields nothing.
    store.lock().set_probes(verdicts(false));
    let text = text(&store);
    assert_eq!(samples(&text).get("tailcomb_probe_attached{probe=\"block\"}"), Some(&0.0));
    assert!(!text.contains("tailcomb_block_") && !text.contains("http_server"));
    assert!(!text.contains("# TYPE tailcomb_block"), "no family without a series");
}

#[test]
fn a_probe_that_is_taken_off_takes_its_series_with_it() {
    let store = full();
    assert!(text(&store).contains("tailcomb_block_total_seconds_count"));
    store.lock().set_probes(verdicts(false));
    let text = text(&store);
    assert!(!text.contains("tailcomb_block_") && !text.contains("http_server_request"), "{text}");
    assert!(text.contains("tailcomb_lost_total"));
}

#[test]
fn values_are_those_that_were_put_in() {
    let samples = samples(&text(&full()));
    let of = |key: &str| samples.get(key).copied().unwrap_or_else(|| panic!("no {key} among {:#?}", samples.keys()));
    let stream = "http_request_method=\"POST\",http_response_status_code=\"200\",http_route=\"/v1/chat/completions\",url_scheme=\"http\",\
        error_type=\"\",tailcomb_mode=\"stream\",tailcomb_outcome=\"complete\",namespace=\"\",pod=\"\",container=\"\",workload=\"vllm\"";
    // The request took exactly 100 ms: it is in the bucket that ends there.
    assert_eq!(of(&format!("http_server_request_duration_seconds_bucket{{{stream},le=\"0.08\"}}")), 0.0);
    assert_eq!(of(&format!("http_server_request_duration_seconds_bucket{{{stream},le=\"0.1\"}}")), 1.0);
    assert_eq!(of(&format!("http_server_request_duration_seconds_bucket{{{stream},le=\"+Inf\"}}")), 1.0);
    assert_eq!(of(&format!("http_server_request_duration_seconds_sum{{{stream}}}")), 0.1);
    let generation = "gen_ai_operation_name=\"chat\",gen_ai_provider_name=\"vllm\",gen_ai_request_model=\"unknown\",\
        http_route=\"/v1/chat/completions\",error_type=\"\",namespace=\"\",pod=\"\",container=\"\",workload=\"vllm\"";
    assert_eq!(of(&format!("gen_ai_server_time_to_first_token_seconds_sum{{{generation}}}")), 0.04);
    assert!(
        !samples.keys().any(|key| key.starts_with("gen_ai") && key.contains("/v1/completions")),
        "an abort is in no gen_ai family"
    );
    let aborted = samples.keys().find(|key| key.contains("tailcomb_outcome=\"aborted\"")).expect("the abort");
    assert!(aborted.contains("http_response_status_code=\"\""));
    let disk = "device=\"vd1\",layer=\"leaf\",operation=\"read\"";
    assert_eq!(of(&format!("tailcomb_block_total_seconds_bucket{{{disk},le=\"64\"}}")), 2.0);
    assert_eq!(of(&format!("tailcomb_block_total_seconds_bucket{{{disk},le=\"+Inf\"}}")), 3.0);
    assert_eq!(of(&format!("tailcomb_block_total_seconds_sum{{{disk}}}")), 70.000_041);
    assert_eq!(of(&format!("tailcomb_block_requests_in_flight{{{disk}}}")), 2.0);
    assert_eq!(of(&format!("tailcomb_block_bytes_total{{{disk}}}")), 12_288.0);
    assert_eq!(of("tailcomb_block_flush_seconds_count{device=\"vd1\",layer=\"leaf\"}"), 1.0);
    assert_eq!(of("tailcomb_lost_total{stage=\"block\",reason=\"map_full\"}"), 3.0);
    assert_eq!(of("tailcomb_request_incomplete_total{namespace=\"\",pod=\"\",container=\"\",workload=\"triton\"}"), 1.0);
}

#[test]
fn no_counter_and_no_bucket_ever_falls() {
    let store = full();
    let mut before = samples(&text(&store));
    let mut reads = vec![1_000, 40_000, 70_000_000_000];
    for round in 0..20u64 {
        {
            let mut store = store.lock();
            let mut request = request("/v1/chat/completions", Mode::Stream);
            request.marks.end += round * 10_000_000;
            store.request(&request, &workload("vllm"), Some("vllm"));
            reads.push(1_000 << round);
            store.block(&snapshot(3 + round, &reads), &disk);
            store.set_kernel_lost(&[1, 2, 3 - round.min(3)]);
            store.tick(at(4 + round));
        }
        let after = samples(&text(&store));
        for (key, value) in before.iter().filter(|(key, _)| is_cumulative(key)) {
            assert!(after.get(key).is_some_and(|now| now >= value), "{key}: {value} → {:?}", after.get(key));
        }
        before = after;
    }
}

fn is_cumulative(key: &str) -> bool {
    let name = key.split('{').next().unwrap_or_default();
    ["_total", "_bucket", "_sum", "_count"].iter().any(|suffix| name.ends_with(suffix))
}

#[test]
fn a_new_agent_starts_at_zero_and_says_when() {
    use prometheus_client::encoding::prometheus_protobuf;
    use prometheus_client::registry::Registry;

    let created = |seconds| {
        let store = Shared::new(Store::new(Options::default(), at(seconds)));
        store.lock().request(&request("/health", Mode::Unary), &workload("server"), None);
        let exporter = Exporter::new(store);
        let registry: &Registry = exporter.registry();
        let families = prometheus_protobuf::encode(registry).expect("encoded");
        let histograms = families.iter().flat_map(|family| &family.metric).filter_map(|metric| metric.histogram.clone());
        histograms
            .map(|histogram| {
                assert_eq!((histogram.schema, histogram.zero_threshold), (3, 2f64.powi(-22)));
                assert_eq!(histogram.sample_count, 1);
                histogram.start_timestamp.expect("a creation time").seconds
            })
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(created(0), BTreeSet::from([1_700_000_000]));
    assert_eq!(created(60), BTreeSet::from([1_700_000_060]));
}

#[test]
fn each_format_is_what_was_asked_for() {
    let running = Running::start(&full(), Limits::default());
    for (accept, content_type, holds) in [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8", "# TYPE tailcomb_lost_total counter"),
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text; version=1.0.0; charset=utf-8", "# EOF\n"),
        (
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
            "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
            "tailcomb_lost_total",
        ),
    ] {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: anyone.example\r\nConnection: close\r\nAccept: {accept}\r\n\r\n");
        let (status, head, body) = running.exchange(&request);
        assert_eq!(status, 200);
        assert!(head.contains(&format!("content-type: {content_type}\r\n")), "{head}");
        assert!(String::from_utf8_lossy(&body).contains(holds), "{accept}");
    }
}

#[test]
fn the_same_state_is_rendered_once_and_a_change_is_shown_at_once() {
    let store = full();
    let exporter = Exporter::new(store.clone());
    let render = |format| exporter.render(format).expect("written");
    let first = render(Format::Text);
    assert_eq!(first.as_ptr(), render(Format::Text).as_ptr(), "rendered twice");
    assert_ne!(first, render(Format::OpenMetrics));
    let before = render(Format::Text);
    store.lock().request(&request("/v1/embeddings", Mode::Unary), &workload("tei"), None);
    assert_ne!(before, render(Format::Text));
    assert!(String::from_utf8_lossy(&render(Format::Text)).contains("workload=\"tei\""));
}
