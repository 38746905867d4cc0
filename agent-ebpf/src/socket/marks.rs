//! What the byte machines say becomes marks of a request, and a finished request a record.

use super::{
    arrival::Arrivals,
    state::{Connection, DEPTH, IGNORED, RECORDS, Scan},
};
use crate::{
    kernel::{forget, masked},
    lost,
};
use aya_ebpf::helpers::{
    bpf_get_current_cgroup_id, bpf_get_current_pid_tgid,
    generated::{bpf_get_current_comm, bpf_probe_read_kernel, bpf_ringbuf_output},
};
use tailcomb_common::{
    http1::{BEGIN, END, EVENT, FAILED, Failure, HEAD, RequestKind, UPGRADE},
    lost::{SOCKET_DESYNC, SOCKET_NEGATIVE, SOCKET_RING_FULL},
    socket::{
        ABORTED, ARRIVAL_UNKNOWN, CLOSE_DELIMITED, ENCODED, HEAD_BYTES, HEAD_CUT, Header, KIND_REQUEST, KIND_UNDECODED, NDJSON,
        RequestRecord, SSE, UNDECODED_DESYNC, UNDECODED_HTTP2, UNDECODED_TLS, UNDECODED_TOO_LARGE, UNDECODED_UNKNOWN, UPGRADED,
        UndecodedRecord,
    },
};

/// `BPF_RB_NO_WAKEUP`: the reader looks by itself; waking it for each record is the dearest thing there is.
const NO_WAKEUP: u64 = 1;

/// Position of a request's number in `slots` and `kinds`.
#[inline(always)]
fn slot(number: u32) -> usize {
    masked::<{ DEPTH as u64 - 1 }>(u64::from(number)) as usize & (DEPTH - 1)
}

/// The machine of requests went from `from` to where `scan` is, and said `signals`. Returns 0 when nothing more is to be read.
#[inline(always)]
pub(super) fn request(connection: &mut Connection, scan: &mut Scan, from: u64, signals: u64) -> u64 {
    let signals = signals as u8;
    if signals & FAILED != 0 {
        return failed(connection, scan);
    }
    let mut from = from;
    if signals & BEGIN != 0 {
        if connection.asked.wrapping_sub(connection.answered) >= DEPTH as u32 {
            undecoded(connection, UNDECODED_TOO_LARGE);
            return 0;
        }
        from = scan.at.wrapping_sub(1);
        begin(connection, scan);
    }
    // Answered before it was read to its end: its record is gone.
    if connection.asked == connection.answered {
        return 1;
    }
    let number = connection.asked.wrapping_sub(1);
    let record = &mut connection.slots[slot(number)];
    if record.head_read_ns == 0 {
        copy_head(record, scan, from);
    }
    if signals & HEAD != 0 {
        record.head_read_ns = scan.now;
        connection.kinds[slot(number)] = scan.machine.kind().0;
        identify(record);
    }
    if signals & END != 0 {
        record.body_read_ns = scan.now;
        record.request_bytes = scan.machine.body_bytes();
    }
    1
}

/// A request's first byte.
#[inline(always)]
fn begin(connection: &mut Connection, scan: &Scan) {
    let number = connection.asked;
    let arrival = arrival(&connection.arrivals, scan);
    let record = &mut connection.slots[slot(number)];
    record.header = Header { kind: KIND_REQUEST, size: size_of::<RequestRecord>() as u32 };
    record.arrive_ns = arrival.unwrap_or(scan.now);
    record.first_read_ns = scan.now;
    record.head_read_ns = 0;
    record.body_read_ns = 0;
    record.head_written_ns = 0;
    record.first_event_ns = 0;
    record.last_event_ns = 0;
    record.largest_gap_ns = 0;
    record.end_ns = 0;
    record.connection = connection.id;
    record.request_bytes = 0;
    record.response_bytes = 0;
    record.event_chunks = 0;
    record.flags = if arrival.is_some() { 0 } else { ARRIVAL_UNKNOWN };
    record.status = 0;
    record.local_port = connection.local_port as u16;
    record.head_len = 0;
    record.padding = 0;
    identify(record);
    forget();
    connection.asked = number.wrapping_add(1);
}

/// When the byte before `scan.at` became readable.
#[inline(always)]
fn arrival(arrivals: &Arrivals, scan: &Scan) -> Option<u64> {
    let seq = scan.first_seq.wrapping_add(scan.at).wrapping_sub(1) as u32;
    arrivals.of(seq).filter(|time| *time <= scan.now)
}

/// Whose thread it is.
#[inline(always)]
fn identify(record: &mut RequestRecord) {
    let id = bpf_get_current_pid_tgid();
    record.tgid = (id >> 32) as u32;
    record.tid = id as u32;
    // SAFETY: a helper without arguments.
    record.cgroup_id = unsafe { bpf_get_current_cgroup_id() };
    comm(&mut record.comm);
}

#[inline(always)]
fn comm(name: &mut [u8; 16]) {
    // SAFETY: 16 bytes into 16 bytes; it can't fail for the current task.
    unsafe { bpf_get_current_comm(name.as_mut_ptr().cast(), 16) };
}

/// Keeps the bytes from `from` to `scan.at`, as far as there is room: all are in the window.
#[inline(always)]
fn copy_head(record: &mut RequestRecord, scan: &Scan, from: u64) {
    let have = u64::from(record.head_len);
    let count = scan.at.wrapping_sub(from);
    let room = (HEAD_BYTES as u64).wrapping_sub(have);
    let kept = if count < room { count } else { room };
    if count > room {
        record.flags |= HEAD_CUT;
    }
    if kept == 0 {
        return;
    }
    let source = masked::<255>(from.wrapping_sub(scan.window_at));
    // SAFETY: `have + kept` ≤ HEAD_BYTES; the verifier only sees that both are below 256, hence `Connection::slack`.
    let result = unsafe {
        bpf_probe_read_kernel(
            record.head.as_mut_ptr().add(masked::<255>(have) as usize).cast(),
            masked::<255>(kept) as u32,
            scan.window.as_ptr().add(source as usize).cast(),
        )
    };
    if result == 0 {
        record.head_len = (have + kept) as u16;
    }
}

/// The machine of responses said `signals`. Returns 0 when nothing more is to be read.
#[inline(always)]
pub(super) fn response(connection: &mut Connection, scan: &mut Scan, signals: u64) -> u64 {
    let signals = signals as u8;
    if signals & FAILED != 0 {
        return failed(connection, scan);
    }
    if connection.asked == connection.answered {
        // An answer to nothing, such as 408 on an idle connection: it ends with a close.
        connection.mode = IGNORED;
        return 0;
    }
    let number = connection.answered;
    if signals & BEGIN != 0 {
        scan.machine.answer(&RequestKind(connection.kinds[slot(number)]));
    }
    let record = &mut connection.slots[slot(number)];
    if signals & HEAD != 0 {
        record.head_written_ns = scan.now;
        describe(record, scan);
    }
    if signals & EVENT != 0 {
        event(record, scan.now);
    }
    if signals & END == 0 {
        return 1;
    }
    if signals & UPGRADE != 0 {
        record.flags |= UPGRADED;
        connection.mode = IGNORED;
    }
    record.end_ns = scan.now;
    record.response_bytes = scan.machine.body_bytes();
    finish(connection, number);
    if signals & UPGRADE != 0 { 0 } else { 1 }
}

/// What the response's head says.
#[inline(always)]
fn describe(record: &mut RequestRecord, scan: &Scan) {
    record.status = scan.machine.status();
    let mut flags = 0;
    if scan.machine.is_sse() {
        flags |= SSE;
    }
    if scan.machine.is_ndjson() {
        flags |= NDJSON;
    }
    if scan.machine.is_encoded() {
        flags |= ENCODED;
    }
    if scan.machine.ends_at_close() {
        flags |= CLOSE_DELIMITED;
    }
    record.flags |= flags;
}

/// One more event.
#[inline(always)]
fn event(record: &mut RequestRecord, now: u64) {
    if record.first_event_ns == 0 {
        record.first_event_ns = now;
    } else if now != record.last_event_ns {
        let gap = now.wrapping_sub(record.last_event_ns);
        if gap > record.largest_gap_ns {
            record.largest_gap_ns = gap;
        }
    }
    record.last_event_ns = now;
    record.event_chunks += 1;
}

/// Sends the request with that number, which has its end.
#[inline(always)]
fn finish(connection: &mut Connection, number: u32) {
    let reading = connection.asked.wrapping_sub(1) == number;
    let record = &mut connection.slots[slot(number)];
    if record.body_read_ns == 0 && reading {
        // Answered before its body was read to the end.
        record.request_bytes = connection.machines[0].body_bytes();
    }
    if record.head_read_ns == 0 {
        record.flags |= ABORTED;
    }
    if record.end_ns < record.arrive_ns {
        lost::count(SOCKET_NEGATIVE);
    } else {
        send(core::ptr::from_ref(record));
    }
    forget();
    connection.answered = number.wrapping_add(1);
}

/// Puts a record into the ring buffer.
#[inline(always)]
fn send<T>(record: *const T) {
    // SAFETY: the kernel copies a whole record out of valid memory.
    let result = unsafe {
        bpf_ringbuf_output(
            core::ptr::addr_of!(RECORDS).cast_mut().cast(),
            record.cast_mut().cast(),
            size_of::<T>() as u64,
            NO_WAKEUP,
        )
    };
    if result != 0 {
        lost::count(SOCKET_RING_FULL);
    }
}

/// The connection ends, or its server sends nothing any more: what is in progress ends with it.
pub(super) fn close(connection: &mut Connection, now: u64, in_order: bool) {
    for turn in 0..DEPTH as u32 {
        let number = connection.answered;
        if connection.asked == number {
            break;
        }
        let machine = connection.machines[1];
        let complete = turn == 0 && in_order && machine.ends_at_close();
        let record = &mut connection.slots[slot(number)];
        record.end_ns = now;
        if turn == 0 && !machine.is_idle() {
            record.response_bytes = machine.body_bytes();
        }
        if !complete {
            record.flags |= ABORTED;
        }
        finish(connection, number);
        forget();
    }
    connection.mode = IGNORED;
}

/// The bytes are no HTTP/1.1.
#[inline(always)]
fn failed(connection: &mut Connection, scan: &Scan) -> u64 {
    let failure = scan.machine.failure();
    let reason = if failure == Failure::Tls {
        UNDECODED_TLS
    } else if failure == Failure::Http2 {
        UNDECODED_HTTP2
    } else if never_was_http(connection) {
        UNDECODED_UNKNOWN
    } else {
        UNDECODED_DESYNC
    };
    undecoded(connection, reason);
    0
}

/// Was there not even one head?
#[inline(always)]
fn never_was_http(connection: &Connection) -> bool {
    connection.answered == 0 && (connection.asked == 0 || (connection.asked == 1 && connection.slots[0].head_read_ns == 0))
}

/// The connection is followed no further; what is in progress on it is lost.
#[inline(always)]
pub(super) fn undecoded(connection: &mut Connection, reason: u32) {
    connection.mode = IGNORED;
    if never_was_http(connection) {
        // What began like a request was none: nothing is lost.
        connection.answered = connection.asked;
    }
    for _ in 0..DEPTH {
        if connection.asked == connection.answered {
            break;
        }
        connection.answered = connection.answered.wrapping_add(1);
        lost::count(SOCKET_DESYNC);
        forget();
    }
    let mut record = UndecodedRecord {
        header: Header { kind: KIND_UNDECODED, size: size_of::<UndecodedRecord>() as u32 },
        connection: connection.id,
        // SAFETY: a helper without arguments.
        cgroup_id: unsafe { bpf_get_current_cgroup_id() },
        tgid: (bpf_get_current_pid_tgid() >> 32) as u32,
        reason,
        local_port: connection.local_port as u16,
        padding: [0; 3],
        comm: [0; 16],
    };
    comm(&mut record.comm);
    send(core::ptr::from_ref(&record));
}
