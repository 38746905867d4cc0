//! What of a target is seen and gives no request: connections that are not followed, heads that were never completed.

use serde::Serialize;
use tailcomb_common::socket::{RequestRecord, UNDECODED_REASONS, UndecodedRecord};

use super::command;

/// Requests that are not measured, or a connection that is not followed, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Undecoded {
    /// Which connection; unique while the agent runs.
    pub connection: u64,
    /// Process that was seen.
    pub tgid: u32,
    /// Command name of the thread that was seen.
    pub comm: String,
    /// cgroup v2 id of that thread.
    pub cgroup_id: u64,
    /// The server's local TCP port.
    pub local_port: u16,
    /// Label `reason` of `tailcomb_undecoded_total`; one of [`UNDECODED_REASONS`].
    pub reason: &'static str,
    /// How many requests are not measured; 1 where none had begun.
    pub count: u64,
}

/// A request that ended before its head was complete (`tailcomb_request_incomplete_total`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Incomplete {
    /// Which connection; unique while the agent runs.
    pub connection: u64,
    /// Process that read what there was.
    pub tgid: u32,
    /// Thread that read it.
    pub tid: u32,
    /// Command name of the thread that read it.
    pub comm: String,
    /// cgroup v2 id of that thread.
    pub cgroup_id: u64,
    /// The server's local TCP port; 0 for a unix socket.
    pub local_port: u16,
}

impl Incomplete {
    /// Reads a record without the mark `head_read`.
    #[must_use]
    pub fn from_record(record: &RequestRecord) -> Self {
        Self {
            connection: record.connection,
            tgid: record.tgid,
            tid: record.tid,
            comm: command(&record.comm),
            cgroup_id: record.cgroup_id,
            local_port: record.local_port,
        }
    }
}

/// What an undecoded record can't say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UndecodedError {
    /// A reason that is not in the list.
    #[error("a connection undecoded for the unknown reason {reason}; use an agent and an eBPF object of one build")]
    UnknownReason {
        /// Its number.
        reason: u32,
    },
}

impl UndecodedError {
    /// Label `reason` of `tailcomb_lost_total{stage="decode"}`.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::UnknownReason { .. } => "bad_reason",
        }
    }
}

impl Undecoded {
    /// Reads a record.
    ///
    /// # Errors
    /// When its reason is not in [`UNDECODED_REASONS`].
    pub fn from_record(record: &UndecodedRecord) -> Result<Self, UndecodedError> {
        let reason = usize::try_from(record.reason)
            .ok()
            .and_then(|position| UNDECODED_REASONS.get(position))
            .ok_or(UndecodedError::UnknownReason { reason: record.reason })?;
        Ok(Self {
            connection: record.connection,
            tgid: record.tgid,
            comm: command(&record.comm),
            cgroup_id: record.cgroup_id,
            local_port: record.local_port,
            reason,
            count: u64::from(record.requests.max(1)),
        })
    }
}

#[cfg(test)]
mod tests {
    use tailcomb_common::socket::UNDECODED_TLS;

    use super::*;
    use crate::decode::sample;

    #[test]
    fn every_reason_of_the_abi_has_its_name() {
        let mut record = sample::undecoded();
        for (position, name) in UNDECODED_REASONS.iter().enumerate() {
            record.reason = u32::try_from(position).expect("few");
            assert_eq!(Undecoded::from_record(&record).map(|undecoded| undecoded.reason), Ok(*name));
        }
        record.reason = UNDECODED_TLS;
        assert_eq!(Undecoded::from_record(&record).map(|undecoded| undecoded.reason), Ok("tls"));
    }

    #[test]
    fn a_reason_beyond_the_list_is_counted() {
        let mut record = sample::undecoded();
        record.reason = u32::try_from(UNDECODED_REASONS.len()).expect("few");
        assert_eq!(Undecoded::from_record(&record), Err(UndecodedError::UnknownReason { reason: record.reason }));
    }
}
