//! `tailcomb slow`: the slowest requests themselves, with their time split.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use anyhow::Result;
use clap::Args;
use hyper::Uri;
use serde_json::Value;

use super::{OK, connect, print};
use crate::export::{api::MOST_REQUESTS, parameters};

/// What is asked for.
#[derive(Args)]
pub(super) struct Slow {
    /// Where the agent listens.
    #[arg(long, value_name = "URL", default_value = connect::DEFAULT, value_parser = connect::url)]
    connect: Uri,
    /// How far back, at most half an hour: 90s, 10m.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parameters::duration)]
    since: Duration,
    /// How many.
    #[arg(short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=MOST_REQUESTS))]
    number: u64,
}

/// Asks and prints.
pub(super) fn main(slow: &Slow) -> Result<u8> {
    let target = format!("/api/v1/requests?slowest={}&since={}s", slow.number, slow.since.as_secs());
    let answer = connect::get(&slow.connect, &target)?;
    // Asked for only where it explains something; an agent that can't say it has still answered.
    let nothing = answer["requests"].as_array().is_none_or(Vec::is_empty);
    let status = if nothing { connect::get(&slow.connect, "/api/v1/status").ok() } else { None };
    print(&page(&answer, status.as_ref()))?;
    Ok(OK)
}

/// The answer as people read it; `status` is the agent's.
fn page(answer: &Value, status: Option<&Value>) -> String {
    let requests = answer["requests"].as_array().map_or(&[][..], Vec::as_slice);
    let mut page = if requests.is_empty() {
        format!("No requests in that time.{}\n", status.map(explanation).unwrap_or_default())
    } else {
        table(requests)
    };
    for note in answer["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let _ = writeln!(page, "Note: {note}.");
    }
    page
}

/// Why there may be none: who is measured, and what was lost or not decoded since the agent's start. What the status does not have, as
/// that of an earlier version, is left out.
fn explanation(status: &Value) -> String {
    let mut text = String::new();
    if let Some(targets) = status["targets_asked"].as_array() {
        let targets: Vec<&str> = targets.iter().filter_map(Value::as_str).collect();
        let processes = match status["processes_measured"].as_u64() {
            Some(1) => "1 process".to_owned(),
            Some(number) => format!("{number} processes"),
            None => "all processes".to_owned(),
        };
        // Writing to a string can't fail.
        let _ = write!(text, " The agent measures {processes} (targets: {});", targets.join(", "));
    }
    let counts = |field: &str, name: &dyn Fn(&Value) -> Option<String>| {
        let mut by_name: BTreeMap<String, u64> = BTreeMap::new();
        for item in status[field].as_array()? {
            if let Some(name) = name(item) {
                *by_name.entry(name).or_default() += item["count"].as_u64().unwrap_or(0);
            }
        }
        let parts: Vec<String> = by_name.iter().map(|(name, count)| format!("{count} ({name})")).collect();
        Some(if parts.is_empty() { "0".to_owned() } else { parts.join(", ") })
    };
    // A lost I/O of a disk hides no request.
    let lost = |item: &Value| {
        let stage = item["stage"].as_str().filter(|stage| *stage != "block")?;
        Some(format!("{stage}/{}", item["reason"].as_str()?))
    };
    let undecoded = |item: &Value| item["reason"].as_str().map(str::to_owned);
    if let (Some(lost), Some(undecoded)) = (counts("lost", &lost), counts("undecoded", &undecoded)) {
        let _ = write!(text, " lost since its start: {lost}; undecoded: {undecoded}.");
    }
    text
}

const HEADERS: [&str; 14] = [
    "started (UTC)",
    "total",
    "wait",
    "head",
    "token",
    "rest",
    "gap",
    "status",
    "mode",
    "route",
    "in",
    "out",
    "workload",
    "process",
];
/// Columns of numbers stand to the right.
const RIGHT: [usize; 8] = [1, 2, 3, 4, 5, 6, 10, 11];
const LEGEND: &str = "\
total = wait (first byte readable → read) + head (→ response head written) + token (→ first event) + rest (→ end); a part without
its mark (–) is in the next one. gap: longest time between two events. in, out: body bytes.
";

fn table(requests: &[Value]) -> String {
    let rows: Vec<[String; 14]> = requests.iter().map(row).collect();
    let mut widths = HEADERS.map(|header| header.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut table = String::new();
    let headers = HEADERS.map(str::to_owned);
    for row in std::iter::once(&headers).chain(&rows) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a string can't fail.
            let _ = if RIGHT.contains(&column) { write!(line, "{cell:>width$}  ") } else { write!(line, "{cell:<width$}  ") };
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table + LEGEND
}

fn row(request: &Value) -> [String; 14] {
    let text = |field: &str| request[field].as_str().unwrap_or("–").to_owned();
    let total = request["duration_seconds"].as_f64().unwrap_or(0.0);
    // Marks are seconds since the arrival; each part ends at its own and begins at the last mark before it.
    let mut last = 0.0;
    let mut part = |field: &str| {
        request[field].as_f64().filter(|at| *at >= last).map_or_else(
            || "–".to_owned(),
            |at| {
                let length = at - last;
                last = at;
                time(length)
            },
        )
    };
    let (wait, head, token) = (part("receive_wait_seconds"), part("head_written_seconds"), part("first_token_seconds"));
    let status = request["status"].as_u64().map_or_else(|| "–".to_owned(), |status| status.to_string());
    let status = if request["outcome"] == "aborted" { format!("{status} aborted") } else { status };
    let started = text("start").trim_end_matches('Z').replace('T', " ");
    [
        started,
        time(total),
        wait,
        head,
        token,
        time((total - last).max(0.0)),
        request["largest_gap_seconds"].as_f64().map_or_else(|| "–".to_owned(), time),
        status,
        text("mode"),
        format!("{} {}", text("method"), text("route")),
        request["request_bytes"].as_u64().map_or_else(|| "–".to_owned(), bytes),
        request["response_bytes"].as_u64().map_or_else(|| "–".to_owned(), bytes),
        text("workload"),
        format!("{}[{}]", text("process"), request["pid"]),
    ]
}

/// Three digits that matter: `12.3 s`, `4.56 ms`, `78 µs`.
fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        at_least if at_least >= 1.0 => (seconds, "s"),
        at_least if at_least >= 1e-3 => (seconds * 1e3, "ms"),
        _ => (seconds * 1e6, "µs"),
    };
    let digits = if unit == "µs" || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

fn bytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let value = bytes as f64;
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.1} KiB", value / 1_024.0),
        _ => format!("{:.1} MiB", value / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_total() {
        let answer = serde_json::json!({
            "requests": [{
                "start": "2026-11-30T19:00:00.123Z", "duration_seconds": 2.5, "receive_wait_seconds": 0.5, "head_written_seconds": 0.502,
                "first_token_seconds": 1.502, "largest_gap_seconds": 0.25, "method": "POST", "route": "/v1/chat/completions",
                "status": 200, "mode": "stream", "outcome": "complete", "request_bytes": 2048, "response_bytes": 100,
                "workload": "vllm", "process": "uvicorn", "pid": 7,
            }, {
                "start": "2026-11-30T19:00:01.000Z", "duration_seconds": 0.0005, "receive_wait_seconds": null, "head_written_seconds": null,
                "first_token_seconds": null, "largest_gap_seconds": null, "method": "GET", "route": "other", "status": null, "mode": "unary",
                "outcome": "aborted", "request_bytes": 0, "response_bytes": 0, "workload": "vllm", "process": "uvicorn", "pid": 7,
            }],
            "notes": ["only the last 30 minutes are kept"],
        });
        let page = page(&answer, None);
        let lines: Vec<Vec<&str>> =
            page.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect();
        assert_eq!(lines[0], HEADERS);
        assert_eq!(
            lines[1],
            [
                "2026-11-30 19:00:00.123",
                "2.50 s",
                "500 ms",
                "2.00 ms",
                "1.00 s",
                "998 ms",
                "250 ms",
                "200",
                "stream",
                "POST /v1/chat/completions",
                "2.0 KiB",
                "100 B",
                "vllm",
                "uvicorn[7]",
            ]
        );
        assert_eq!(lines[2][1..8], ["500 µs", "–", "–", "–", "500 µs", "–", "– aborted"]);
        assert!(page.ends_with("Note: only the last 30 minutes are kept.\n"), "{page}");
    }

    #[test]
    fn nothing_is_said_in_words() {
        let nothing = serde_json::json!({"requests": [], "notes": []});
        assert_eq!(page(&nothing, None), "No requests in that time.\n");
        let mut status = serde_json::json!({
            "targets_asked": ["auto", "port:8000"], "processes_measured": 0,
            "lost": [{"stage": "decode", "reason": "negative", "count": 6}, {"stage": "block", "reason": "unseen_end", "count": 9}],
            "undecoded": [
                {"reason": "tls", "workload": "a", "count": 2}, {"reason": "http2", "workload": "a", "count": 1},
                {"reason": "tls", "workload": "b", "count": 3},
            ],
        });
        assert_eq!(
            page(&nothing, Some(&status)),
            "No requests in that time. The agent measures 0 processes (targets: auto, port:8000); lost since its start: \
             6 (decode/negative); undecoded: 1 (http2), 5 (tls).\n"
        );
        status["processes_measured"] = Value::Null;
        status["lost"] = serde_json::json!([]);
        let page = page(&nothing, Some(&status));
        assert!(page.contains("all processes") && page.contains("lost since its start: 0;"), "{page}");
        assert_eq!(explanation(&serde_json::json!({"version": "0"})), "");
    }
}
