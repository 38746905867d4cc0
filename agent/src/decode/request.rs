//! One request as the stages behind `decode` see it.
//!
//! Here a head is read for the last time: of its bytes only a known method and a route of the allow-list go on.

use serde::Serialize;
use tailcomb_common::socket::{ABORTED, ARRIVAL_UNKNOWN, HEAD_CUT, NDJSON, RequestRecord, SSE};

use super::{
    command,
    head::{HeadError, RequestLine},
    route::{self, Route, Routes},
    unseen::Unseen,
};

/// The methods that keep their name (OpenTelemetry `http.request.method`; RFC 9110, RFC 5789, QUERY); others are [`OTHER_METHOD`].
pub const METHODS: [&str; 10] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"];

/// Label of a method that is not in [`METHODS`].
pub const OTHER_METHOD: &str = "_OTHER";

/// Label `error_type` of a status code that is none.
pub const OTHER_STATUS: &str = "_OTHER";

/// Does the answer come in events or whole?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Whole.
    Unary,
    /// `text/event-stream` or newline-delimited JSON.
    Stream,
}

/// Did it reach its terminator?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It did.
    Complete,
    /// A reset, a close or the server's death came first.
    Aborted,
}

/// The times of one request, ns of CLOCK_MONOTONIC. `None`: that mark was not reached, or not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Marks {
    /// First byte readable in the kernel; where [`Request::arrival_seen`] is false, the first read.
    pub arrive: u64,
    /// The read that took the first byte.
    pub first_read: Option<u64>,
    /// The read that completed the head.
    pub head_read: Option<u64>,
    /// The read that completed the body, the head's where there is none. May be after `end`: a server may answer early.
    pub body_read: Option<u64>,
    /// The write that completed the final response's head.
    pub head_written: Option<u64>,
    /// First event of a stream.
    pub first_event: Option<u64>,
    /// Last event of a stream.
    pub last_event: Option<u64>,
    /// Terminator, or the connection's end.
    pub end: u64,
}

/// One request, decoded; nothing in it is longer than its allow-list says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Which connection; unique while the agent runs.
    pub connection: u64,
    /// Process that read the head.
    pub tgid: u32,
    /// Thread that read the head.
    pub tid: u32,
    /// Command name of that thread.
    pub comm: String,
    /// cgroup v2 id of that thread.
    pub cgroup_id: u64,
    /// The server's local TCP port; 0 for a unix socket.
    pub local_port: u16,
    /// Method, of the known ones; `_OTHER` else (OpenTelemetry's word).
    pub method: &'static str,
    /// Route of the allow-list.
    pub route: Route,
    /// Status code; `None` where no head was written.
    pub status: Option<u16>,
    /// Unary or stream.
    pub mode: Mode,
    /// Complete or aborted.
    pub outcome: Outcome,
    /// Was the arrival itself seen? If not, there is no receive wait.
    pub arrival_seen: bool,
    /// Its times.
    pub marks: Marks,
    /// Body bytes received.
    pub request_bytes: u64,
    /// Body bytes sent, framing excluded.
    pub response_bytes: u64,
    /// Chunks of a stream that carried an event; several events in one chunk count once.
    pub event_chunks: u32,
    /// Longest time between two event chunks, ns; `None` where there were not two.
    pub largest_gap_ns: Option<u64>,
    /// What of it was not seen.
    pub unseen: Option<Unseen>,
}

/// Why a record can't be a request. Its times are taken from none of its marks then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A mark before the arrival or after the end.
    #[error(
        "a request whose mark `{mark}` is not between its arrival and its end; report this kernel with `tailcomb check --json`"
    )]
    Negative {
        /// Which mark.
        mark: &'static str,
    },
    /// No arrival or no end.
    #[error("a request without the time of its {mark}; report this kernel with `tailcomb check --json`")]
    NoTime {
        /// Which mark.
        mark: &'static str,
    },
    /// A status code that has not three digits.
    #[error("a request with status {status}, which is no HTTP status; report this server with its name and version")]
    Status {
        /// The status.
        status: u16,
    },
    /// No request line.
    #[error(transparent)]
    Head(#[from] HeadError),
}

impl RequestError {
    /// Label `reason` of `tailcomb_lost_total{stage="decode"}`.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Negative { .. } => "negative",
            Self::NoTime { .. } => "no_time",
            Self::Status { .. } => "bad_status",
            Self::Head(_) => "bad_head",
        }
    }
}

impl Marks {
    /// Takes the marks of a record: 0 is absent.
    ///
    /// # Errors
    /// When arrival or end is missing, or a mark is outside of them.
    pub fn from_record(record: &RequestRecord) -> Result<Self, RequestError> {
        let (arrive, end) = (record.arrive_ns, record.end_ns);
        if arrive == 0 {
            return Err(RequestError::NoTime { mark: "arrive" });
        }
        if end == 0 {
            return Err(RequestError::NoTime { mark: "end" });
        }
        if end < arrive {
            return Err(RequestError::Negative { mark: "end" });
        }
        let between = |mark, at, last| match at {
            0 => Ok(None),
            at if at < arrive || at > last => Err(RequestError::Negative { mark }),
            at => Ok(Some(at)),
        };
        let aborted = record.flags & ABORTED != 0;
        // What had arrived can be read after a reset: when the request ended, that mark was not reached.
        let read = |mark, at| if aborted && at > end { Ok(None) } else { between(mark, at, end) };
        // A reset comes within the write that it answers where client and server are on one machine, and before that write's marks.
        let written = |mark, at: u64| between(mark, if aborted { at.min(end) } else { at }, end);
        Ok(Self {
            arrive,
            first_read: read("first_read", record.first_read_ns)?,
            head_read: read("head_read", record.head_read_ns)?,
            body_read: if aborted {
                read("body_read", record.body_read_ns)?
            } else {
                between("body_read", record.body_read_ns, u64::MAX)?
            },
            head_written: written("head_written", record.head_written_ns)?,
            first_event: written("first_event", record.first_event_ns)?,
            last_event: written("last_event", record.last_event_ns)?,
            end,
        })
    }
}

impl Request {
    /// Reads a record whose head was completed.
    ///
    /// # Errors
    /// [`RequestError`] when its times, its status or its head can't be; the caller counts it.
    pub fn from_record(record: &RequestRecord, routes: &Routes) -> Result<Self, RequestError> {
        let marks = Marks::from_record(record)?;
        let aborted = record.flags & ABORTED != 0;
        let largest_gap_ns = match marks.end - marks.arrive {
            duration if aborted => record.largest_gap_ns.min(duration),
            duration if record.largest_gap_ns > duration => return Err(RequestError::Negative { mark: "largest_gap" }),
            _ => record.largest_gap_ns,
        };
        let status = match record.status {
            0 => None,
            status @ 100..=999 => Some(status),
            status => return Err(RequestError::Status { status }),
        };
        let head = record.head.get(..usize::from(record.head_len)).ok_or(HeadError)?;
        let line = RequestLine::parse(head, record.flags & HEAD_CUT != 0)?;
        Ok(Self {
            connection: record.connection,
            tgid: record.tgid,
            tid: record.tid,
            comm: command(&record.comm),
            cgroup_id: record.cgroup_id,
            local_port: record.local_port,
            method: METHODS.into_iter().find(|known| *known == line.method).unwrap_or(OTHER_METHOD),
            route: line.path.map_or(route::OTHER, |path| routes.of(path)),
            status,
            mode: if record.flags & (SSE | NDJSON) == 0 { Mode::Unary } else { Mode::Stream },
            outcome: if aborted { Outcome::Aborted } else { Outcome::Complete },
            arrival_seen: record.flags & ARRIVAL_UNKNOWN == 0,
            marks,
            request_bytes: record.request_bytes,
            response_bytes: record.response_bytes,
            event_chunks: record.event_chunks,
            largest_gap_ns: (record.event_chunks > 1).then_some(largest_gap_ns),
            unseen: Unseen::of(record.flags),
        })
    }

    /// Arrive → end, ns.
    #[must_use]
    pub const fn duration_ns(&self) -> u64 {
        self.marks.end.saturating_sub(self.marks.arrive)
    }

    /// Arrive → first event, ns; streams only.
    #[must_use]
    pub fn time_to_first_token_ns(&self) -> Option<u64> {
        self.marks.first_event.filter(|_| self.mode == Mode::Stream).map(|event| event.saturating_sub(self.marks.arrive))
    }

    /// Arrive → first read, ns; `None` where the arrival was not seen.
    #[must_use]
    pub fn receive_wait_ns(&self) -> Option<u64> {
        self.marks.first_read.filter(|_| self.arrival_seen).map(|read| read.saturating_sub(self.marks.arrive))
    }

    /// Label `error_type`, as OpenTelemetry has it: the status code from `least` on, else empty. What is no status code of HTTP
    /// (600 and more) counts as an error (RFC 9110 §15) of one kind, [`OTHER_STATUS`]: a server must not make up label values.
    #[must_use]
    pub fn error_type(&self, least: u16) -> String {
        match self.status {
            Some(status @ 600..) if status >= least => OTHER_STATUS.to_owned(),
            Some(status) if status >= least => status.to_string(),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tailcomb_common::socket::CLOSE_DELIMITED;

    use super::*;
    use crate::decode::sample::{request as record, set_head};

    fn decoded(record: &RequestRecord) -> Request {
        Request::from_record(record, &Routes::default()).expect("a request")
    }

    fn error(change: impl FnOnce(&mut RequestRecord)) -> Option<RequestError> {
        let mut record = record();
        change(&mut record);
        Request::from_record(&record, &Routes::default()).err()
    }

    #[test]
    fn a_stream_has_all_its_fields() {
        let request = decoded(&record());
        assert_eq!(
            request,
            Request {
                connection: 0x1122_3344_5566_7788,
                tgid: 1_234,
                tid: 1_240,
                comm: "vllm-worker".to_owned(),
                cgroup_id: 77,
                local_port: 8_000,
                method: "POST",
                route: Routes::default().of("/v1/chat/completions"),
                status: Some(200),
                mode: Mode::Stream,
                outcome: Outcome::Complete,
                arrival_seen: true,
                marks: Marks {
                    arrive: 1_000,
                    first_read: Some(2_000),
                    head_read: Some(3_000),
                    body_read: Some(3_500),
                    head_written: Some(4_000),
                    first_event: Some(5_000),
                    last_event: Some(8_500),
                    end: 9_000,
                },
                request_bytes: 512,
                response_bytes: 4_096,
                event_chunks: 17,
                largest_gap_ns: Some(700),
                unseen: None,
            }
        );
        assert_eq!(request.route.name(), "/v1/chat/completions");
        assert_eq!(request.duration_ns(), 8_000);
        assert_eq!(request.time_to_first_token_ns(), Some(4_000));
        assert_eq!(request.receive_wait_ns(), Some(1_000));
    }

    #[test]
    fn marks_that_were_not_reached_are_absent_not_zero() {
        let mut record = record();
        (record.first_read_ns, record.head_written_ns, record.first_event_ns) = (0, 0, 0);
        (record.status, record.flags) = (0, SSE | ABORTED);
        let request = decoded(&record);
        assert_eq!((request.marks.first_read, request.marks.head_written, request.marks.first_event), (None, None, None));
        assert_eq!((request.status, request.outcome), (None, Outcome::Aborted));
        assert_eq!((request.time_to_first_token_ns(), request.receive_wait_ns()), (None, None));
    }

    #[test]
    fn what_was_read_after_a_reset_was_not_reached_and_what_was_written_ends_with_it() {
        let mut record = record();
        record.end_ns = 4_500;
        record.largest_gap_ns = 3_600;
        assert_eq!(error(|complete| *complete = record), Some(RequestError::Negative { mark: "first_event" }), "a complete one");
        record.flags |= ABORTED;
        let request = decoded(&record);
        let Marks { head_read, head_written, first_event, last_event, end, .. } = request.marks;
        assert_eq!((head_read, head_written), (Some(3_000), Some(4_000)));
        assert_eq!((first_event, last_event, end, request.largest_gap_ns), (Some(4_500), Some(4_500), 4_500, Some(3_500)));
        record.end_ns = 1_500;
        let request = decoded(&record);
        assert_eq!((request.marks.first_read, request.marks.head_read, request.receive_wait_ns()), (None, None, None));
        assert_eq!((request.duration_ns(), request.outcome), (500, Outcome::Aborted));
    }

    #[test]
    fn a_single_event_has_no_gap() {
        let mut record = record();
        for (chunks, gap, expected) in [(0, 0, None), (1, 0, None), (2, 0, Some(0)), (2, 300, Some(300))] {
            (record.event_chunks, record.largest_gap_ns) = (chunks, gap);
            assert_eq!(decoded(&record).largest_gap_ns, expected);
        }
    }

    #[test]
    fn a_body_may_be_read_after_an_early_answer() {
        let mut record = record();
        record.body_read_ns = 12_000;
        assert_eq!(decoded(&record).marks.body_read, Some(12_000));
    }

    #[test]
    fn an_arrival_that_was_not_seen_gives_no_receive_wait() {
        let mut record = record();
        record.flags |= ARRIVAL_UNKNOWN;
        assert_eq!(decoded(&record).receive_wait_ns(), None);
        assert_eq!(decoded(&record).duration_ns(), 8_000);
    }

    #[test]
    fn only_events_make_a_stream() {
        for (flags, mode) in [(0, Mode::Unary), (CLOSE_DELIMITED, Mode::Unary), (SSE, Mode::Stream), (NDJSON, Mode::Stream)] {
            let mut record = record();
            record.flags = flags;
            assert_eq!(decoded(&record).mode, mode, "{flags:#b}");
            assert_eq!(decoded(&record).time_to_first_token_ns().is_some(), mode == Mode::Stream);
        }
    }

    #[test]
    fn times_out_of_order_are_an_error_and_no_value() {
        assert_eq!(error(|record| record.first_read_ns = 999), Some(RequestError::Negative { mark: "first_read" }));
        assert_eq!(error(|record| record.head_read_ns = 999), Some(RequestError::Negative { mark: "head_read" }));
        assert_eq!(error(|record| record.head_written_ns = 1), Some(RequestError::Negative { mark: "head_written" }));
        assert_eq!(error(|record| record.first_event_ns = 9_001), Some(RequestError::Negative { mark: "first_event" }));
        assert_eq!(error(|record| record.last_event_ns = 9_001), Some(RequestError::Negative { mark: "last_event" }));
        assert_eq!(error(|record| record.body_read_ns = 999), Some(RequestError::Negative { mark: "body_read" }));
        assert_eq!(error(|record| record.largest_gap_ns = 8_001), Some(RequestError::Negative { mark: "largest_gap" }));
        assert_eq!(error(|record| record.end_ns = 999), Some(RequestError::Negative { mark: "end" }));
        assert_eq!(error(|record| record.end_ns = 0), Some(RequestError::NoTime { mark: "end" }));
        assert_eq!(error(|record| record.arrive_ns = 0), Some(RequestError::NoTime { mark: "arrive" }));
        assert_eq!(error(|record| record.arrive_ns = u64::MAX), Some(RequestError::Negative { mark: "end" }));
    }

    #[test]
    fn marks_at_arrival_and_at_the_end_are_within() {
        let mut record = record();
        (record.first_read_ns, record.first_event_ns) = (record.arrive_ns, record.end_ns);
        assert_eq!(decoded(&record).receive_wait_ns(), Some(0));
        assert_eq!(decoded(&record).time_to_first_token_ns(), Some(8_000));
    }

    #[test]
    fn a_status_has_three_digits() {
        for status in [100, 101, 200, 304, 499, 599, 999] {
            assert_eq!(error(|record| record.status = status), None);
        }
        for status in [1, 20, 99, 1_000, u16::MAX] {
            assert_eq!(error(|record| record.status = status), Some(RequestError::Status { status }));
        }
    }

    #[test]
    fn status_codes_that_are_none_are_one_error() {
        let error_type = |status, least| {
            let mut record = record();
            record.status = status;
            decoded(&record).error_type(least)
        };
        for (status, from_500, from_400) in [
            (0, "", ""),
            (200, "", ""),
            (404, "", "404"),
            (503, "503", "503"),
            (599, "599", "599"),
            (600, "_OTHER", "_OTHER"),
            (999, "_OTHER", "_OTHER"),
        ] {
            assert_eq!((error_type(status, 500).as_str(), error_type(status, 400).as_str()), (from_500, from_400), "{status}");
        }
    }

    #[test]
    fn unknown_methods_are_one_value() {
        for (sent, method) in [("GET", "GET"), ("HEAD", "HEAD"), ("get", "_OTHER"), ("PROPFIND", "_OTHER"), ("POSTS", "_OTHER")] {
            let mut record = record();
            set_head(&mut record, format!("{sent} /v1/models HTTP/1.1\r\n\r\n").as_bytes());
            assert_eq!(decoded(&record).method, method);
        }
    }

    #[test]
    fn a_head_that_does_not_parse_is_an_error() {
        assert_eq!(error(|record| set_head(record, b"hello")), Some(RequestError::Head(HeadError)));
        assert_eq!(error(|record| record.head_len = 0), Some(RequestError::Head(HeadError)));
        assert_eq!(error(|record| record.head_len = u16::MAX), Some(RequestError::Head(HeadError)));
    }

    #[test]
    fn a_path_longer_than_what_travels_is_other() {
        let mut record = record();
        set_head(&mut record, format!("GET /v1/models/{} HTTP/1.1\r\n\r\n", "x".repeat(300)).as_bytes());
        assert_eq!(Request::from_record(&record, &Routes::default()), Err(RequestError::Head(HeadError)), "not said to be cut");
        record.flags |= HEAD_CUT;
        assert_eq!(decoded(&record).route, route::OTHER);
    }

    /// Invariant 9: nothing of a head goes on beside method and route, wherever in it a secret stands.
    #[test]
    fn no_canary_of_the_head_gets_out() {
        const CANARY: &str = "canary-7f3a";
        for head in [
            format!("POST /v1/chat/completions?key={CANARY} HTTP/1.1\r\nHost: a\r\n\r\n"),
            format!("POST /v1/models/{CANARY} HTTP/1.1\r\nHost: a\r\n\r\n"),
            format!("POST /{CANARY} HTTP/1.1\r\nHost: a\r\n\r\n"),
            format!("POST /v2/models/{CANARY}/infer HTTP/1.1\r\nAuthorization: Bearer {CANARY}\r\n\r\n"),
            format!("{CANARY} /v1/models HTTP/1.1\r\n\r\n{{\"prompt\":\"{CANARY}\"}}"),
            format!("GET http://{CANARY}/v1/models HTTP/1.1\r\nHost: {CANARY}\r\n\r\n"),
        ] {
            let mut record = record();
            set_head(&mut record, head.as_bytes());
            let request = decoded(&record);
            let shown = format!("{request:?} {}", serde_json::to_string(&request).expect("plain data"));
            assert!(!shown.contains(CANARY), "{head:?} → {shown}");
        }
        // Nor by an error.
        let mut record = record();
        set_head(&mut record, CANARY.as_bytes());
        let error = Request::from_record(&record, &Routes::default()).expect_err("no head");
        assert!(!format!("{error:?} {error}").contains(CANARY));
    }
}
