//! The one cast: bytes of a ring-buffer record → a typed record.
//!
//! Nothing is believed that the bytes say about themselves: kind, stated size and real size must agree with the ABI.

use tailcomb_common::socket::{HEAD_BYTES, Header, KIND_REQUEST, KIND_UNDECODED, RequestRecord, UndecodedRecord};

/// A record of the ring buffer, typed; its contents are not judged yet.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives on the stack for one decode; a box would allocate once a request")]
pub enum Record {
    /// A request.
    Request(RequestRecord),
    /// A connection that is not followed.
    Undecoded(UndecodedRecord),
}

/// Why bytes are no record of this ABI. Each of these means that object and agent are not from one build, or that memory was
/// overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not even a header.
    #[error("a record of {len} bytes is shorter than its header; report this with `tailcomb check --json`")]
    Short {
        /// Bytes there are.
        len: usize,
    },
    /// Kind that this agent does not know.
    #[error("a record of the unknown kind {kind}; use an agent and an eBPF object of one build")]
    UnknownKind {
        /// The kind it states.
        kind: u32,
    },
    /// Size other than the kind's.
    #[error(
        "a record of kind {kind} has {len} bytes and states {stated}, instead of {expected}; use an agent and an eBPF object of one build"
    )]
    WrongSize {
        /// The kind it states.
        kind: u32,
        /// Bytes that kind has.
        expected: usize,
        /// Bytes it states.
        stated: u32,
        /// Bytes there are.
        len: usize,
    },
    /// A length inside it that can't be.
    #[error("a request record states {len} head bytes, of at most {HEAD_BYTES}; report this with `tailcomb check --json`")]
    HeadLength {
        /// The length it states.
        len: u16,
    },
}

impl RecordError {
    /// Label `reason` of `tailcomb_lost_total{stage="decode"}`.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Short { .. } => "short_record",
            Self::UnknownKind { .. } => "unknown_kind",
            Self::WrongSize { .. } => "wrong_size",
            Self::HeadLength { .. } => "head_length",
        }
    }
}

impl Record {
    /// Types the bytes of one record; any bytes are allowed.
    ///
    /// # Errors
    /// [`RecordError`] unless kind, stated size and real size agree.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        let prefix = bytes.get(..size_of::<Header>()).ok_or(RecordError::Short { len: bytes.len() })?;
        let header: Header = cast(prefix).ok_or(RecordError::Short { len: bytes.len() })?;
        match header.kind {
            KIND_REQUEST => {
                let record: RequestRecord = sized(header, bytes)?;
                if usize::from(record.head_len) > HEAD_BYTES {
                    return Err(RecordError::HeadLength { len: record.head_len });
                }
                Ok(Self::Request(record))
            }
            KIND_UNDECODED => Ok(Self::Undecoded(sized(header, bytes)?)),
            kind => Err(RecordError::UnknownKind { kind }),
        }
    }
}

fn sized<T: aya::Pod>(header: Header, bytes: &[u8]) -> Result<T, RecordError> {
    let error = RecordError::WrongSize { kind: header.kind, expected: size_of::<T>(), stated: header.size, len: bytes.len() };
    if usize::try_from(header.size) != Ok(size_of::<T>()) {
        return Err(error);
    }
    cast(bytes).ok_or(error)
}

#[expect(unsafe_code, reason = "the one place where bytes of the kernel become typed")]
fn cast<T: aya::Pod>(bytes: &[u8]) -> Option<T> {
    if bytes.len() != size_of::<T>() {
        return None;
    }
    // SAFETY: the slice holds exactly `size_of::<T>()` readable bytes (checked above), alignment is not asked for, and every
    // `Pod` of the ABI is made of integers alone, so that any bytes are a value of it.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decode::sample;

    fn request(bytes: &[u8]) -> RequestRecord {
        match Record::from_bytes(bytes) {
            Ok(Record::Request(record)) => record,
            other => panic!("no request: {other:?}"),
        }
    }

    #[test]
    fn every_field_of_a_request_arrives() {
        let sent = sample::request();
        let got = request(&sample::bytes(&sent));
        // Field by field through Debug: a field that is added later is compared too.
        assert_eq!(format!("{got:?}"), format!("{sent:?}"));
    }

    #[test]
    fn every_field_of_an_undecoded_connection_arrives() {
        let sent = sample::undecoded();
        match Record::from_bytes(&sample::undecoded_bytes(&sent)) {
            Ok(Record::Undecoded(got)) => assert_eq!(format!("{got:?}"), format!("{sent:?}")),
            other => panic!("no undecoded record: {other:?}"),
        }
    }

    #[test]
    fn every_single_byte_of_the_body_lands_in_the_record() {
        let bytes = sample::bytes(&sample::request());
        let before = format!("{:?}", request(&bytes));
        let head_len = core::mem::offset_of!(RequestRecord, head_len);
        for at in size_of::<Header>()..bytes.len() {
            if (head_len..head_len + 2).contains(&at) {
                continue; // a longer head is refused, see below
            }
            let mut changed = bytes.clone();
            changed[at] ^= 0x55;
            assert_ne!(format!("{:?}", request(&changed)), before, "byte {at} is not read");
        }
    }

    #[test]
    fn a_record_that_is_cut_or_longer_is_refused() {
        let bytes = sample::bytes(&sample::request());
        for len in 0..bytes.len() {
            assert!(Record::from_bytes(&bytes[..len]).is_err(), "{len} bytes");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(matches!(Record::from_bytes(&longer), Err(RecordError::WrongSize { .. })));
    }

    #[test]
    fn a_size_that_the_header_does_not_state_is_refused() {
        let mut record = sample::request();
        record.header.size += 8;
        assert!(matches!(Record::from_bytes(&sample::bytes(&record)), Err(RecordError::WrongSize { .. })));
    }

    #[test]
    fn unknown_kinds_are_refused_whatever_their_size() {
        let mut record = sample::request();
        for kind in [0, 3, u32::MAX] {
            record.header.kind = kind;
            assert_eq!(Record::from_bytes(&sample::bytes(&record)).err(), Some(RecordError::UnknownKind { kind }));
        }
    }

    #[test]
    fn a_head_longer_than_its_room_is_refused() {
        let mut record = sample::request();
        record.head_len = u16::try_from(HEAD_BYTES).expect("it fits") + 1;
        assert_eq!(Record::from_bytes(&sample::bytes(&record)).err(), Some(RecordError::HeadLength { len: record.head_len }));
    }

    #[test]
    fn records_need_no_alignment() {
        let mut bytes = vec![0];
        bytes.extend(sample::bytes(&sample::request()));
        assert_eq!(request(&bytes[1..]).connection, sample::request().connection);
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_record_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Err(error) = Record::from_bytes(&bytes) {
                prop_assert!(!error.reason().is_empty());
            }
        }
    }
}
