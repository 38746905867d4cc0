//! What the clients and the writer saw themselves: the figures to hold the agent's against.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Most requests kept one by one; those beyond are only counted.
pub const REQUESTS_KEPT: usize = 200_000;

/// An endpoint of the demo's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// `POST /v1/chat/completions`: a stream of events; reads a little from the disk before its first token.
    Chat,
    /// `POST /v1/completions`: unary; never touches the disk.
    Completion,
    /// `POST /v1/embeddings`: unary; walks the index on the disk.
    Embedding,
    /// `GET /health`.
    Health,
}

impl Endpoint {
    /// Its path, which is its route too.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completion => "/v1/completions",
            Self::Embedding => "/v1/embeddings",
            Self::Health => "/health",
        }
    }

    /// Does it wait for the disk?
    #[must_use]
    pub const fn reads_disk(self) -> bool {
        matches!(self, Self::Chat | Self::Embedding)
    }
}

/// One request as its client saw it. Times are ns of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestSeen {
    /// Where it went.
    pub endpoint: Endpoint,
    /// Before its first byte was handed to the socket, the connection being open.
    pub start_ns: u64,
    /// The first content event of a stream was read.
    pub first_token_ns: Option<u64>,
    /// The last byte of the answer was read.
    pub end_ns: u64,
}

impl RequestSeen {
    /// Start → end, ns.
    #[must_use]
    pub const fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// One flush of the metrics writer. Times are ns of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushSeen {
    /// Before the first byte was written.
    pub start_ns: u64,
    /// The last fdatasync returned.
    pub end_ns: u64,
    /// Bytes written and synced.
    pub bytes: u64,
}

/// Everything seen so far.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Requests answered rightly, in order of their ends; the first [`REQUESTS_KEPT`].
    pub requests: Vec<RequestSeen>,
    /// Requests answered rightly, by endpoint: all.
    pub answered: BTreeMap<Endpoint, u64>,
    /// Requests that failed, by reason.
    pub failed: BTreeMap<String, u64>,
    /// Arrivals that were not sent: too many were in flight.
    pub not_sent: u64,
    /// Flushes in order.
    pub flushes: Vec<FlushSeen>,
}

impl Counters {
    /// All requests answered rightly.
    #[must_use]
    pub fn answered_in_all(&self) -> u64 {
        self.answered.values().sum()
    }

    /// All requests that failed.
    #[must_use]
    pub fn failed_in_all(&self) -> u64 {
        self.failed.values().sum()
    }

    pub(super) fn count(&mut self, request: RequestSeen) {
        *self.answered.entry(request.endpoint).or_default() += 1;
        if self.requests.len() < REQUESTS_KEPT {
            self.requests.push(request);
        }
    }
}
