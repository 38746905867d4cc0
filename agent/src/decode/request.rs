//! One request as the stages behind `decode` see it.

use serde::Serialize;

use super::route::Route;

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
    /// The final response's head begins to leave.
    pub head_written: Option<u64>,
    /// First event of a stream.
    pub first_event: Option<u64>,
    /// Terminator, or the connection's end.
    pub end: u64,
}

/// One request, decoded; nothing in it is longer than its allow-list says.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Events of a stream.
    pub events: u32,
}

impl Request {
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

    /// Label `error_type`, as OpenTelemetry has it: the status code from 500 on, else empty.
    #[must_use]
    pub fn error_type(&self) -> String {
        self.status.filter(|status| *status >= 500).map_or_else(String::new, |status| status.to_string())
    }
}
