//! Bytes from the kernel become typed records here and nowhere else.
//!
//! [`decode`] is the one entry: any bytes in, a [`Decoded`] or a counted [`DecodeError`] out. Head bytes are read in
//! [`request`] and dropped there: only fields of the allow-list go on.

pub mod head;
pub mod record;
pub mod request;
pub mod route;
mod route_table;
#[cfg(test)]
mod sample;
pub mod undecoded;
pub mod unseen;

use record::{Record, RecordError};
use request::{Request, RequestError};
use route::Routes;
use undecoded::{Incomplete, Undecoded, UndecodedError};

/// What one record of the ring buffer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A request that ended.
    Request(Request),
    /// A request whose head was never completed.
    Incomplete(Incomplete),
    /// A connection of a target that is not followed (any further).
    Undecoded(Undecoded),
}

/// Why a record says nothing. Count it under `tailcomb_lost_total{stage="decode",reason}` by [`DecodeError::reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are no record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The request can't have been so.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The connection can't have been so.
    #[error(transparent)]
    Undecoded(#[from] UndecodedError),
}

/// Every value of [`DecodeError::reason`], so that each can be exported at 0 from the start.
pub const LOST_REASONS: [&str; 9] =
    ["short_record", "unknown_kind", "wrong_size", "head_length", "negative", "no_time", "bad_status", "bad_head", "bad_reason"];

impl DecodeError {
    /// Label `reason` of `tailcomb_lost_total{stage="decode"}`; one of [`LOST_REASONS`].
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Record(error) => error.reason(),
            Self::Request(error) => error.reason(),
            Self::Undecoded(error) => error.reason(),
        }
    }
}

/// Decodes one record of the ring buffer. Never panics, whatever the bytes.
///
/// # Errors
/// [`DecodeError`] when the record is not of this ABI or says what can't be; the caller counts it.
pub fn decode(bytes: &[u8], routes: &Routes) -> Result<Decoded, DecodeError> {
    Ok(match Record::from_bytes(bytes)? {
        // What is known of half a head may be wrong (a path that goes on), so it is no request.
        Record::Request(record) if record.head_read_ns == 0 => Decoded::Incomplete(Incomplete::from_record(&record)),
        Record::Request(record) => Decoded::Request(Request::from_record(&record, routes)?),
        Record::Undecoded(record) => Decoded::Undecoded(Undecoded::from_record(&record)?),
    })
}

/// A command name as the kernel keeps it: up to the first NUL; bytes that are no UTF-8 become U+FFFD.
fn command(comm: &[u8; 16]) -> String {
    let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(&comm[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tailcomb_common::socket::{KIND_REQUEST, KIND_UNDECODED, RequestRecord, UndecodedRecord};

    use super::*;

    #[test]
    fn command_names_end_at_the_first_nul_or_at_their_room() {
        assert_eq!(command(b"python3\0garbage!"), "python3");
        assert_eq!(command(b"0123456789abcdef"), "0123456789abcdef");
        assert_eq!(command(b"\xff\xfe\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), "\u{fffd}\u{fffd}");
        assert_eq!(command(&[0; 16]), "");
    }

    #[test]
    fn a_head_that_was_never_completed_is_counted_and_is_no_request() {
        let mut record = sample::request();
        record.head_read_ns = 0;
        sample::set_head(&mut record, b"POST /v1/chat/comp");
        let decoded = decode(&sample::bytes(&record), &Routes::default());
        let incomplete = Incomplete {
            connection: record.connection,
            tgid: record.tgid,
            tid: record.tid,
            comm: "vllm-worker".to_owned(),
            cgroup_id: record.cgroup_id,
            local_port: record.local_port,
        };
        assert_eq!(decoded, Ok(Decoded::Incomplete(incomplete)));
    }

    fn holds(bytes: &[u8]) -> Result<(), TestCaseError> {
        match decode(bytes, &Routes::default()) {
            Err(error) => prop_assert!(LOST_REASONS.contains(&error.reason()), "{error} has an unlisted reason"),
            Ok(Decoded::Undecoded(_) | Decoded::Incomplete(_)) => {}
            Ok(Decoded::Request(request)) => {
                prop_assert!(request.marks.arrive <= request.marks.end);
                prop_assert!(request.time_to_first_token_ns().is_none_or(|ns| ns <= request.duration_ns()));
                prop_assert!(request.receive_wait_ns().is_none_or(|ns| ns <= request.duration_ns()));
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn any_bytes_are_decoded_or_counted(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            holds(&bytes)?;
        }

        /// The same with the header right, so that the contents are reached.
        #[test]
        fn any_contents_are_decoded_or_counted(
            mut bytes in proptest::collection::vec(any::<u8>(), size_of::<RequestRecord>()),
            undecoded in any::<bool>(),
        ) {
            let (kind, size) = if undecoded {
                (KIND_UNDECODED, size_of::<UndecodedRecord>())
            } else {
                (KIND_REQUEST, size_of::<RequestRecord>())
            };
            bytes.truncate(size);
            bytes[..4].copy_from_slice(&kind.to_ne_bytes());
            bytes[4..8].copy_from_slice(&u32::try_from(size).expect("it fits").to_ne_bytes());
            holds(&bytes)?;
        }

        /// A good record with some bytes overwritten: what is decoded keeps its order, or is counted.
        #[test]
        fn a_damaged_record_is_decoded_or_counted(
            damage in proptest::collection::vec((0..size_of::<RequestRecord>(), any::<u8>()), 1..12),
        ) {
            let mut bytes = sample::bytes(&sample::request());
            for (at, byte) in damage {
                bytes[at] = byte;
            }
            holds(&bytes)?;
        }
    }
}
