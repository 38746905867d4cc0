//! ABI of the `socket` probe: one record a request, through the ring buffer `RECORDS`.
//!
//! Kernel side: `agent-ebpf/src/socket/`. User side: `agent/src/probes/socket.rs`. Definitions: `docs/probes/socket.md`.

use crate::shared;

/// Bytes of a request's head that travel with its record.
pub const HEAD_BYTES: usize = 192;

/// [`Header::kind`]: a [`RequestRecord`].
pub const KIND_REQUEST: u32 = 1;
/// [`Header::kind`]: an [`UndecodedRecord`].
pub const KIND_UNDECODED: u32 = 2;

/// First in every record of the ring buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// What follows: [`KIND_REQUEST`], [`KIND_UNDECODED`].
    pub kind: u32,
    /// Size of the whole record in bytes.
    pub size: u32,
}
shared!(Header, 8);

/// [`RequestRecord::flags`]: it did not reach its terminator: a reset, a close or the server's death came first.
pub const ABORTED: u32 = 1;
/// [`RequestRecord::flags`]: the response is `text/event-stream`.
pub const SSE: u32 = 1 << 1;
/// [`RequestRecord::flags`]: the response is newline-delimited JSON.
pub const NDJSON: u32 = 1 << 2;
/// [`RequestRecord::flags`]: the arrival was not seen; `arrive_ns` is the time of the first read.
pub const ARRIVAL_UNKNOWN: u32 = 1 << 3;
/// [`RequestRecord::flags`]: the end is the connection's (no length, not chunked).
pub const CLOSE_DELIMITED: u32 = 1 << 4;
/// [`RequestRecord::flags`]: the connection became something else (status 101, or a CONNECT that succeeded).
pub const UPGRADED: u32 = 1 << 5;
/// [`RequestRecord::flags`]: the head is longer than what travels with the record.
pub const HEAD_CUT: u32 = 1 << 6;
/// [`RequestRecord::flags`]: the response is compressed: its events can't be seen, so it has no event marks.
pub const ENCODED: u32 = 1 << 7;

/// One HTTP/1.1 request as its server saw it. Times are ns of CLOCK_MONOTONIC; 0 = that mark was not reached.
///
/// A mark of a read or a write is the time at which that call had moved its bytes. `head_read_ns` = 0 means that the head
/// was never complete (`tailcomb_request_incomplete_total`); such a record is always [`ABORTED`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RequestRecord {
    /// [`KIND_REQUEST`].
    pub header: Header,
    /// First byte of the request readable in the kernel.
    pub arrive_ns: u64,
    /// The read that took the first byte.
    pub first_read_ns: u64,
    /// The read that completed the head.
    pub head_read_ns: u64,
    /// The read that completed the body; the head's where there is none.
    pub body_read_ns: u64,
    /// The write that completed the final response's head (not a 1xx).
    pub head_written_ns: u64,
    /// First event of a stream: SSE field `data`, or first line of NDJSON. Comments are none.
    pub first_event_ns: u64,
    /// Last chunk with an event, as counted in `event_chunks`.
    pub last_event_ns: u64,
    /// Longest time between two writes with events, ns.
    pub largest_gap_ns: u64,
    /// The terminator left, or the connection ended.
    pub end_ns: u64,
    /// Which connection: unique while the agent runs.
    pub connection: u64,
    /// cgroup v2 id of the thread that read the head; 1 is the root.
    pub cgroup_id: u64,
    /// Body bytes the server received.
    pub request_bytes: u64,
    /// Body bytes the server sent, framing excluded.
    pub response_bytes: u64,
    /// Process that read the head.
    pub tgid: u32,
    /// Thread that read the head.
    pub tid: u32,
    /// Chunks of a stream that carried an event, from the first event on; without chunked encoding, writes. Several events
    /// in one chunk count once; a chunk that begins with a comment is none.
    pub event_chunks: u32,
    /// [`ABORTED`], [`SSE`], …
    pub flags: u32,
    /// Status code; 0 = none was written.
    pub status: u16,
    /// The server's local TCP port; 0 for a unix socket.
    pub local_port: u16,
    /// How much of `head` is filled.
    pub head_len: u16,
    /// Always 0.
    pub padding: u16,
    /// Command name of the thread that read the head, zero-padded.
    pub comm: [u8; 16],
    /// The request's first bytes.
    pub head: [u8; HEAD_BYTES],
}
shared!(RequestRecord, 344);

/// [`UndecodedRecord::reason`]s, with the value of the label `reason` of `tailcomb_undecoded_total`, by position.
pub const UNDECODED_REASONS: [&str; 11] =
    ["tls", "http2", "mid_stream", "io_uring", "splice", "too_large", "desync", "bad_address", "unknown", "pipelined", "unseen"];
/// A TLS record.
pub const UNDECODED_TLS: u32 = 0;
/// The HTTP/2 client preface.
pub const UNDECODED_HTTP2: u32 = 1;
/// A connection that was in the middle of something when it was first seen.
pub const UNDECODED_MID_STREAM: u32 = 2;
/// Bytes that moved by io_uring, without a buffer to read.
pub const UNDECODED_IO_URING: u32 = 3;
/// Bytes that moved by another call without a buffer to read: sendfile, splice, sendmmsg, recvmmsg.
pub const UNDECODED_SPLICE: u32 = 4;
/// More chunks, messages or bytes in one call than the scanner follows.
pub const UNDECODED_TOO_LARGE: u32 = 5;
/// HTTP/1.1 that stopped being it.
pub const UNDECODED_DESYNC: u32 = 6;
/// The bytes of a call could not be read (paged out, or gone).
pub const UNDECODED_BAD_ADDRESS: u32 = 7;
/// First bytes of no known protocol.
pub const UNDECODED_UNKNOWN: u32 = 8;
/// More requests waiting on one connection than are kept; the connection itself is followed all the same.
pub const UNDECODED_PIPELINED: u32 = 9;
/// Bytes that no call was seen to move: only the position in the TCP stream tells of them.
pub const UNDECODED_UNSEEN: u32 = 10;

/// Requests of a target that are not measured, sent once for each loss.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UndecodedRecord {
    /// [`KIND_UNDECODED`].
    pub header: Header,
    /// Which connection.
    pub connection: u64,
    /// cgroup v2 id of the thread that was seen.
    pub cgroup_id: u64,
    /// Process that was seen.
    pub tgid: u32,
    /// Position in [`UNDECODED_REASONS`].
    pub reason: u32,
    /// The server's local TCP port.
    pub local_port: u16,
    /// Always 0.
    pub padding: u16,
    /// Requests that had begun and are not measured; 0 = none had: it is the connection that is not followed.
    pub requests: u32,
    /// Command name of that thread, zero-padded.
    pub comm: [u8; 16],
}
shared!(UndecodedRecord, 56);
