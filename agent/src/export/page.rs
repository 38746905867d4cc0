//! `docs/metrics.md`, made from the catalogue and the reasons of losses; a test compares the two.

use std::fmt::Write as _;

use super::catalogue::CATALOGUE;

const INTRODUCTION: &str = "\
# Metrics

<!-- Made from agent/src/export/{catalogue,page}.rs: do not edit. `TAILCOMB_WRITE_DOCS=1 cargo test -p tailcomb export::page` writes it. -->

Every histogram is a Prometheus native histogram of schema 3 (8 buckets an octave, zero threshold 2^-22, neither ever changes)
and has classic `le` buckets beside it. Requests: both are counted from each value; the classic boundaries are those of vLLM,
for `http_server_request_duration_seconds` with shorter ones below, for waits down to 50 µs, for bytes 64 B to 64 MiB by four.
Disks: the classic boundaries are the powers of two of a second from 2^-20 to 2^6, which are native boundaries too. Sums are
exact. What lies above the last native bucket (8 192 s, for disks 64 s, for bytes 29 GiB) is in the native bucket that ends at
infinity and in `le=\"+Inf\"`.

- A probe that is not attached yields no series, never zeros. A series exists from its first sample on; `tailcomb_lost_total`
  from the start.
- **W** stands for the labels `namespace, pod, container, workload`. Outside Kubernetes the first three are empty, which is the
  same as absent to Prometheus.
- `error_type` is empty without an error, `http_response_status_code` where no head was written. A status that is none of HTTP's (600
  and more) is `other`, with `error_type` `_OTHER`.
- `workload` is the systemd unit, else the process name. Of a process that was gone before it could be looked at, it is that of the
  measured processes of its name and cgroup; where there is none, its own name as the request's record has it, if its first thread read the
  request: a thread's name is not taken for the process's. Else it is `unknown`.
- **Not seen**, and counted in `tailcomb_undecoded_total`: what follows on a connection after a status 101 or a successful CONNECT
  (`upgraded`; the request itself is in the histograms), and the events of a compressed stream (`encoded`; its duration is in the
  histograms, it has no time to first token and no gaps). `docs/probes/socket.md` lists the other reasons.
- In this version `data: [DONE]` counts as an event like any other, so a stream of nothing else has a time to first token; and an
  error that a server sends as an event under status 200 is not recognised: such a stream counts as a success.
- Beyond the series budget (`series_budget`) requests are counted under the value `other`, and in
  `tailcomb_lost_total{stage=\"store\",reason=\"series_budget\"}`. When nine tenths of it are used, series without a sample for an
  hour are given up.
- `gen_ai_request_model` is `unknown`: the model stands in the body, which is not read yet. `gen_ai_provider_name` is the engine
  where it is known, else `unknown`.
- Native histograms are given to scrapes that ask for protobuf (Prometheus: `scrape_native_histograms: true`, before 3.8
  `--enable-feature=native-histograms`).

| metric | type | labels | from | meaning |
|---|---|---|---|---|
";

const LOST_INTRODUCTION: &str = "
## `tailcomb_lost_total`

What was seen and is in no series, or not in its own. What is not decoded is not lost: `tailcomb_undecoded_total` counts it
([reasons](probes/socket.md)).

| stage | reason | meaning |
|---|---|---|
";

/// `(stage, reason, meaning)`.
const LOST_REASONS: &[(&str, &str, &str)] = &[
    (
        "block",
        "unmatched",
        "a disk request whose beginning was not seen: it was in flight when the probe came, or its state was evicted",
    ),
    ("block", "unseen_end", "a disk request whose end was not shown before its memory was used for another"),
    (
        "block",
        "recursion",
        "a run of a program that the kernel skipped, because that program ran already on that CPU; each may have been a sample",
    ),
    ("block", "negative", "an end before its beginning"),
    ("block", "map_full", "no room for another device, operation or request"),
    ("socket", "ring_full", "a finished request for which the ring buffer had no room: raise `ring_buffer_mib`"),
    ("socket", "map_full", "no room for another connection, waiting request, thread, process or port"),
    ("socket", "recursion", "as for `block`"),
    ("socket", "negative", "an end before its beginning"),
    ("decode", "negative", "a request with a mark before its arrival or behind its end"),
    ("decode", "no_time", "a request without arrival or end"),
    ("decode", "bad_status", "a request whose status has not three digits"),
    ("decode", "bad_head", "a request without a request line"),
    ("decode", "head_length", "a record whose head is longer than its room"),
    ("decode", "bad_reason", "an undecoded connection for a reason that is none"),
    ("decode", "short_record", "a record shorter than its header"),
    ("decode", "wrong_size", "a record of another size than its kind has: agent and eBPF object do not belong together"),
    ("decode", "unknown_kind", "a record of a kind that is none, likewise"),
    ("store", "series_budget", "a sample that is counted under `other`, as its label set was beyond `series_budget`"),
    (
        "store",
        "heatmap",
        "a value that came when its second in the heatmap was forgotten, or that had no row there; the histograms have it",
    ),
    ("store", "unknown_device", "a disk request of a device that has no name, or none any more"),
    ("store", "future", "a request that ended more than a day after now: its times can't be right"),
];

/// What a value of `tailcomb_lost_total` has counted, in a phrase.
#[must_use]
pub fn meaning_of_loss(stage: &str, reason: &str) -> Option<&'static str> {
    LOST_REASONS.iter().find(|row| (row.0, row.1) == (stage, reason)).map(|row| row.2)
}

/// The text of `docs/metrics.md`.
#[must_use]
pub fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for metric in CATALOGUE {
        let labels = metric.labels.join(", ").replace("namespace, pod, container, workload", "W");
        let labels = if labels.is_empty() { "–".to_owned() } else { format!("`{labels}`") };
        let from = if metric.probe.is_empty() { "agent" } else { metric.probe };
        // Writing to a string can't fail.
        let _ = writeln!(page, "| `{}` | {} | {labels} | {from} | {}. |", metric.name, metric.kind.word(), metric.help);
    }
    page.push_str(LOST_INTRODUCTION);
    for (stage, reason, meaning) in LOST_REASONS {
        let _ = writeln!(page, "| `{stage}` | `{reason}` | {meaning}. |");
    }
    page
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;
    use crate::{probes::skipped, store::lost::Lost};

    #[test]
    fn the_page_is_what_is_exported() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
        if std::env::var_os("TAILCOMB_WRITE_DOCS").is_some() {
            fs::write(&path, page()).expect("docs can be written");
        }
        let found = fs::read_to_string(&path).expect("docs/metrics.md exists");
        assert!(found == page(), "docs/metrics.md is old: TAILCOMB_WRITE_DOCS=1 cargo test -p tailcomb export::page");
    }

    #[test]
    fn every_reason_of_a_loss_is_explained() {
        let exported = Lost::default();
        let skipped = ["block", "socket"].map(|probe| (probe, skipped::REASON));
        let exported: BTreeSet<_> = exported.iter().map(|(reason, _)| reason).chain(skipped).collect();
        let explained: BTreeSet<_> = LOST_REASONS.iter().map(|(stage, reason, _)| (*stage, *reason)).collect();
        assert_eq!(explained, exported);
    }
}
