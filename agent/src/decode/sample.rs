//! Records for the tests of this folder, every field with a value of its own.

use tailcomb_common::socket::{
    HEAD_BYTES, Header, KIND_REQUEST, KIND_UNDECODED, RequestRecord, SSE, UNDECODED_HTTP2, UndecodedRecord,
};

/// A stream on `/v1/chat/completions`: arrive 1 000 ns, end 9 000 ns.
pub(super) fn request() -> RequestRecord {
    let mut record = RequestRecord {
        header: Header { kind: KIND_REQUEST, size: u32::try_from(size_of::<RequestRecord>()).expect("it fits") },
        arrive_ns: 1_000,
        first_read_ns: 2_000,
        head_read_ns: 3_000,
        body_read_ns: 3_500,
        head_written_ns: 4_000,
        first_event_ns: 5_000,
        last_event_ns: 8_500,
        largest_gap_ns: 700,
        end_ns: 9_000,
        connection: 0x1122_3344_5566_7788,
        cgroup_id: 77,
        request_bytes: 512,
        response_bytes: 4_096,
        tgid: 1_234,
        tid: 1_240,
        event_chunks: 17,
        flags: SSE,
        status: 200,
        local_port: 8_000,
        head_len: 0,
        padding: 0,
        comm: *b"vllm-worker\0\0\0\0\0",
        head: [0; HEAD_BYTES],
    };
    set_head(&mut record, b"POST /v1/chat/completions HTTP/1.1\r\nHost: gpu-7:8000\r\n\r\n");
    record
}

/// Puts `head` into a record, as much of it as has room.
pub(super) fn set_head(record: &mut RequestRecord, head: &[u8]) {
    let len = head.len().min(HEAD_BYTES);
    record.head = [0; HEAD_BYTES];
    record.head[..len].copy_from_slice(&head[..len]);
    record.head_len = u16::try_from(len).expect("it fits");
}

/// An HTTP/2 connection.
pub(super) fn undecoded() -> UndecodedRecord {
    UndecodedRecord {
        header: Header { kind: KIND_UNDECODED, size: u32::try_from(size_of::<UndecodedRecord>()).expect("it fits") },
        connection: 0x8877_6655_4433_2211,
        cgroup_id: 78,
        tgid: 4_321,
        reason: UNDECODED_HTTP2,
        local_port: 8_001,
        requests: 3,
        padding: 0,
        comm: *b"tritonserver\0\0\0\0",
    }
}

/// The bytes of a request record, field after field as `repr(C)` lays them out.
pub(super) fn bytes(record: &RequestRecord) -> Vec<u8> {
    let mut bytes = header(record.header);
    for value in [
        record.arrive_ns,
        record.first_read_ns,
        record.head_read_ns,
        record.body_read_ns,
        record.head_written_ns,
        record.first_event_ns,
        record.last_event_ns,
        record.largest_gap_ns,
        record.end_ns,
        record.connection,
        record.cgroup_id,
        record.request_bytes,
        record.response_bytes,
    ] {
        bytes.extend(value.to_ne_bytes());
    }
    for value in [record.tgid, record.tid, record.event_chunks, record.flags] {
        bytes.extend(value.to_ne_bytes());
    }
    for value in [record.status, record.local_port, record.head_len, record.padding] {
        bytes.extend(value.to_ne_bytes());
    }
    bytes.extend(record.comm);
    bytes.extend(record.head);
    bytes
}

/// The bytes of an undecoded record.
pub(super) fn undecoded_bytes(record: &UndecodedRecord) -> Vec<u8> {
    let mut bytes = header(record.header);
    bytes.extend(record.connection.to_ne_bytes());
    bytes.extend(record.cgroup_id.to_ne_bytes());
    bytes.extend(record.tgid.to_ne_bytes());
    bytes.extend(record.reason.to_ne_bytes());
    bytes.extend(record.local_port.to_ne_bytes());
    bytes.extend(record.padding.to_ne_bytes());
    bytes.extend(record.requests.to_ne_bytes());
    bytes.extend(record.comm);
    bytes
}

fn header(header: Header) -> Vec<u8> {
    [header.kind.to_ne_bytes(), header.size.to_ne_bytes()].concat()
}
