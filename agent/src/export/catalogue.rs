//! Every metric as data. `docs/metrics.md` is made from it (`page.rs`).

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the agent runs.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Native histogram schema 3 and classic buckets together.
    Histogram,
    /// Always 1; its labels say something.
    Info,
}

impl Kind {
    /// Its word in the exposition formats.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

/// One metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its full name, suffixes and all.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Base unit, which is a part of the name: `seconds`, `bytes`; empty: a number of things.
    pub unit: &'static str,
    /// Its labels, in the order in which they are written.
    pub labels: &'static [&'static str],
    /// What it counts.
    pub help: &'static str,
    /// The probe it comes from; empty: the agent itself.
    pub probe: &'static str,
}

impl Metric {
    /// The name without the suffixes that an encoder adds: the unit, `_total`, `_info`.
    #[must_use]
    pub fn stem(&self) -> &'static str {
        let name = match self.kind {
            Kind::Counter => self.name.strip_suffix("_total"),
            Kind::Info => self.name.strip_suffix("_info"),
            Kind::Gauge | Kind::Histogram => None,
        };
        let name = name.unwrap_or(self.name);
        if self.unit.is_empty() {
            return name;
        }
        name.strip_suffix(self.unit).and_then(|name| name.strip_suffix('_')).unwrap_or(name)
    }
}

/// Label names, with those of W behind them where it says so.
macro_rules! labels {
    ($($label:literal),* ; W) => { &[$($label,)* "namespace", "pod", "container", "workload"] };
    ($($label:literal),*) => { &[$($label),*] };
}

const fn histogram(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    probe: &'static str,
    help: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Histogram, unit, labels, help, probe }
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    probe: &'static str,
    help: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Counter, unit, labels, help, probe }
}

const fn gauge(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    probe: &'static str,
    help: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, labels, help, probe }
}

const GEN_AI: &[&str] =
    labels!["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "http_route", "error_type"; W];
const ROUTE: &[&str] = labels!["http_route", "tailcomb_mode"; W];
const DEVICE: &[&str] = labels!["device", "layer"];
const OPERATION: &[&str] = labels!["device", "layer", "operation"];
const PROBE: &[&str] = labels!["probe"];

/// Requests.
pub const HTTP_DURATION: Metric = histogram(
    "http_server_request_duration_seconds",
    "seconds",
    labels!["http_request_method", "http_response_status_code", "http_route", "url_scheme", "error_type", "tailcomb_mode", "tailcomb_outcome"; W],
    "socket",
    "HTTP requests, from the first byte readable in the kernel to the terminator of the answer (aborted ones: to the end of the connection)",
);
/// Generation: duration.
pub const GEN_AI_DURATION: Metric = histogram(
    "gen_ai_server_request_duration_seconds",
    "seconds",
    GEN_AI,
    "socket",
    "Complete requests that are operations of a model, from first byte to terminator; error_type is the status from 400 on",
);
/// Generation: first token.
pub const TIME_TO_FIRST_TOKEN: Metric = histogram(
    "gen_ai_server_time_to_first_token_seconds",
    "seconds",
    GEN_AI,
    "socket",
    "Complete successful streams on generation routes, from the request's first byte to the first event; heads and comments are no events",
);
/// Waiting to be read.
pub const RECEIVE_WAIT: Metric = histogram(
    "tailcomb_request_receive_wait_seconds",
    "seconds",
    ROUTE,
    "socket",
    "From the request's first byte readable in the kernel to the read that took it, time before accept included; absent where arrivals can't be seen",
);
/// Largest gap.
pub const LARGEST_GAP: Metric = histogram(
    "tailcomb_request_largest_gap_seconds",
    "seconds",
    ROUTE,
    "socket",
    "Longest time between two chunks with events of each stream that had two",
);
/// Body in.
pub const REQUEST_BYTES: Metric =
    histogram("tailcomb_request_body_bytes", "bytes", ROUTE, "socket", "Body bytes of complete requests, framing excluded");
/// Body out.
pub const RESPONSE_BYTES: Metric = histogram(
    "tailcomb_response_body_bytes",
    "bytes",
    ROUTE,
    "socket",
    "Body bytes of the answers to complete requests, framing excluded",
);
/// Not decoded.
pub const UNDECODED: Metric = counter(
    "tailcomb_undecoded_total",
    "",
    labels!["reason"; W],
    "socket",
    "Requests of measured servers that are not in the histograms, and why; a connection of which none is known counts as one; `encoded` counts answers whose events could not be seen",
);
/// Never complete.
pub const INCOMPLETE: Metric =
    counter("tailcomb_request_incomplete_total", "", labels![; W], "socket", "Connections that ended within a request's head");
/// Disk: before the request exists.
pub const BLOCK_SUBMIT_WAIT: Metric = histogram(
    "tailcomb_block_submit_wait_seconds",
    "seconds",
    OPERATION,
    "block",
    "Disk requests, from the submission of their first bio to the allocation of the request (waiting for a tag or writeback throttling; not the time under io.max)",
);
/// Disk: in the queue.
pub const BLOCK_QUEUE: Metric = histogram(
    "tailcomb_block_queue_seconds",
    "seconds",
    OPERATION,
    "block",
    "Disk requests, from allocation to the first hand-over to the device (plug list and scheduler)",
);
/// Disk: the device.
pub const BLOCK_DEVICE: Metric = histogram(
    "tailcomb_block_device_seconds",
    "seconds",
    OPERATION,
    "block",
    "Disk requests, from the first hand-over to the device to the last completion",
);
/// Disk: all of it.
pub const BLOCK_TOTAL: Metric = histogram(
    "tailcomb_block_total_seconds",
    "seconds",
    OPERATION,
    "block",
    "Disk requests, from the submission of their first bio to the last completion",
);
/// Disk: flushes.
pub const BLOCK_FLUSH: Metric = histogram(
    "tailcomb_block_flush_seconds",
    "seconds",
    DEVICE,
    "block",
    "Flushes of a disk's write cache, from issue to completion",
);
/// Disk: in flight.
pub const BLOCK_IN_FLIGHT: Metric = gauge(
    "tailcomb_block_requests_in_flight",
    "",
    OPERATION,
    "block",
    "Disk requests begun since the probe's start and not ended",
);
/// Disk: bytes.
pub const BLOCK_BYTES: Metric =
    counter("tailcomb_block_bytes_total", "bytes", OPERATION, "block", "Bytes of completed disk requests");
/// Disk: merges.
pub const BLOCK_MERGES: Metric = counter(
    "tailcomb_block_merges_total",
    "",
    OPERATION,
    "block",
    "Bios merged into a request that existed; they are no requests of their own",
);
/// Disk: requeues.
pub const BLOCK_REQUEUES: Metric = counter(
    "tailcomb_block_requeues_total",
    "",
    OPERATION,
    "block",
    "Disk requests given back to the queue after their hand-over",
);
/// Disk: partial completions.
pub const BLOCK_PARTIAL: Metric =
    counter("tailcomb_block_partial_total", "", OPERATION, "block", "Completions of only a part of a disk request");
/// Disk: errors.
pub const BLOCK_ERRORS: Metric =
    counter("tailcomb_block_errors_total", "", OPERATION, "block", "Disk requests that the device failed");
/// Losses.
pub const LOST: Metric = counter(
    "tailcomb_lost_total",
    "",
    labels!["stage", "reason"],
    "",
    "Samples that were seen and are not in the series they belong to, by stage and reason; 0 from the start",
);
/// Attached?
pub const PROBE_ATTACHED: Metric = gauge(
    "tailcomb_probe_attached",
    "",
    PROBE,
    "",
    "1 while the probe is attached; at 0 it yields no series, see `tailcomb check`",
);
/// Run time.
pub const PROBE_RUN_SECONDS: Metric = counter(
    "tailcomb_probe_run_seconds_total",
    "seconds",
    PROBE,
    "",
    "CPU time of the probe's programs, estimated from samples of the kernel's account; absent where the kernel gives none",
);
/// Runs.
pub const PROBE_RUNS: Metric = counter(
    "tailcomb_probe_runs_total",
    "",
    PROBE,
    "",
    "Runs of the probe's programs, estimated from samples of the kernel's account; absent where the kernel gives none",
);
/// Build.
pub const BUILD_INFO: Metric = Metric {
    name: "tailcomb_build_info",
    kind: Kind::Info,
    unit: "",
    labels: labels!["version"],
    help: "Version of the agent",
    probe: "",
};
/// CPU time of the agent.
pub const PROCESS_CPU: Metric =
    counter("process_cpu_seconds_total", "seconds", &[], "", "CPU time of the agent, user and system");
/// Resident memory of the agent.
pub const PROCESS_RESIDENT: Metric = gauge("process_resident_memory_bytes", "bytes", &[], "", "Resident memory of the agent");
/// Address space of the agent.
pub const PROCESS_VIRTUAL: Metric = gauge("process_virtual_memory_bytes", "bytes", &[], "", "Address space of the agent");
/// Start of the agent.
pub const PROCESS_START: Metric = gauge("process_start_time_seconds", "seconds", &[], "", "Start of the agent, unix time");
/// Open files of the agent.
pub const PROCESS_FDS: Metric = gauge("process_open_fds", "", &[], "", "Open file descriptors of the agent");

/// All families, in the order in which they are written.
pub const CATALOGUE: &[Metric] = &[
    HTTP_DURATION,
    GEN_AI_DURATION,
    TIME_TO_FIRST_TOKEN,
    RECEIVE_WAIT,
    LARGEST_GAP,
    REQUEST_BYTES,
    RESPONSE_BYTES,
    UNDECODED,
    INCOMPLETE,
    BLOCK_SUBMIT_WAIT,
    BLOCK_QUEUE,
    BLOCK_DEVICE,
    BLOCK_TOTAL,
    BLOCK_FLUSH,
    BLOCK_IN_FLIGHT,
    BLOCK_BYTES,
    BLOCK_MERGES,
    BLOCK_REQUEUES,
    BLOCK_PARTIAL,
    BLOCK_ERRORS,
    LOST,
    PROBE_ATTACHED,
    PROBE_RUN_SECONDS,
    PROBE_RUNS,
    BUILD_INFO,
    PROCESS_CPU,
    PROCESS_RESIDENT,
    PROCESS_VIRTUAL,
    PROCESS_START,
    PROCESS_FDS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_prometheus_wants_them() {
        for metric in CATALOGUE {
            let Metric { name, kind, unit, labels, help, .. } = *metric;
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'), "{name}");
            assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(unit.is_empty() || name.trim_end_matches("_total").ends_with(unit), "{name}");
            assert!(!labels.contains(&"le") && !help.ends_with('.') && !help.contains('|'), "{name}");
            let unit = if unit.is_empty() { String::new() } else { format!("_{unit}") };
            let suffix = match kind {
                Kind::Counter => "_total",
                Kind::Info => "_info",
                Kind::Gauge | Kind::Histogram => "",
            };
            assert_eq!(format!("{}{unit}{suffix}", metric.stem()), name);
            assert_eq!(CATALOGUE.iter().filter(|other| other.name == name).count(), 1, "{name} is there twice");
        }
    }
}
