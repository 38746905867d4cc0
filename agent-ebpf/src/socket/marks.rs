//! What the byte machines say becomes marks of a request, and a finished request a record.

use aya_ebpf::helpers::{
    bpf_get_current_cgroup_id, bpf_get_current_pid_tgid,
    generated::{bpf_get_current_comm, bpf_probe_read_kernel, bpf_ringbuf_output},
};
use tailcomb_common::{
    http1::{BEGIN, END, FAILED, HEAD, RequestKind, UPGRADE},
    lost::{SOCKET_MAP_FULL, SOCKET_NEGATIVE, SOCKET_RING_FULL},
    socket::{
        ABORTED, ARRIVAL_UNKNOWN, CLOSE_DELIMITED, ENCODED, HEAD_BYTES, HEAD_CUT, Header, KIND_REQUEST, NDJSON, RequestRecord,
        SSE, UNDECODED_PIPELINED, UNDECODED_UNSEEN, UPGRADED,
    },
};

use super::{
    arrival::Arrivals,
    loss::{failed, socket_drop, socket_tell, socket_undecoded},
    position::{self, LOST, socket_gap, socket_unread},
    state::{
        Connection, DEPTH, FOLLOWED, IGNORED, PIPELINED, PIPELINED_NEW, RECORDS, REQUESTS, RESPONSES, Scan, WAITING, WINDOW,
        connection, place, record, slot,
    },
};
use crate::{
    kernel::{forget, masked, turns},
    lost,
};

/// `BPF_RB_NO_WAKEUP`: the reader looks by itself; waking it for each record is the dearest thing there is.
const NO_WAKEUP: u64 = 1;

/// The machine of requests came to where `scan` is, and said `signals`. Returns 0 when nothing more is to be read.
#[inline(always)]
pub(super) fn request(connection: &mut Connection, scan: &mut Scan, signals: u64) -> u64 {
    if connection.mode != FOLLOWED {
        // The other direction gave it up.
        return 0;
    }
    let signals = signals as u8;
    if signals & FAILED != 0 {
        return failed(connection, scan, REQUESTS);
    }
    if signals & BEGIN != 0 {
        scan.copied = scan.at.wrapping_sub(1);
        begin(connection, scan);
        if scan.at < scan.window_at.wrapping_add(scan.window_len) {
            return 1;
        }
    }
    // Answered before it was read to its end: its record is gone.
    if connection.asked == connection.answered {
        return 1;
    }
    let number = connection.asked.wrapping_sub(1);
    if signals & HEAD != 0 && !remember_kind(connection, number, scan.machine.kind()) {
        socket_undecoded(scan.sk, u64::from(UNDECODED_PIPELINED), REQUESTS);
        return 0;
    }
    let Some(record) = record(connection, scan.sk, number) else { return 1 };
    if record.head_read_ns == 0 {
        copy_head(record, scan);
    }
    if signals & HEAD != 0 {
        record.head_read_ns = scan.now;
        if record.first_read_ns != scan.now {
            identify(record);
        }
    }
    if signals & END != 0 {
        record.body_read_ns = scan.now;
        record.request_bytes = scan.machine.body_bytes();
    }
    1
}

/// Keeps what the response to a request depends on. With more than [`DEPTH`] requests in progress, two share a place: that is no
/// harm as long as they are of one kind. False: they are not, so that the responses can't be framed any more.
#[inline(always)]
fn remember_kind(connection: &mut Connection, number: u32, kind: RequestKind) -> bool {
    let place = &mut connection.kinds[slot(number)];
    let kind = kind.to_byte();
    let shared = number.wrapping_sub(connection.answered) >= DEPTH as u32;
    if shared {
        return *place == kind;
    }
    *place = kind;
    true
}

/// A request's first byte.
#[inline(always)]
fn begin(connection: &mut Connection, scan: &Scan) {
    let number = connection.asked;
    let arrival = arrival(&connection.arrivals, scan);
    let (id, local_port) = (connection.id, connection.local_port);
    if let Some(record) = place_for(connection, scan.sk, number) {
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
        record.connection = id;
        record.request_bytes = 0;
        record.response_bytes = 0;
        record.event_chunks = 0;
        record.flags = if arrival.is_some() { 0 } else { ARRIVAL_UNKNOWN };
        record.status = 0;
        record.local_port = local_port as u16;
        record.head_len = 0;
        record.padding = 0;
        identify(record);
    }
    forget();
    connection.asked = number.wrapping_add(1);
}

/// A place for the record of the request `number`, which begins. Where there is none the request is counted as not measured, and
/// the connection is followed all the same.
#[inline(always)]
fn place_for(connection: &mut Connection, sk: u64, number: u32) -> Option<&mut RequestRecord> {
    let waiting = number.wrapping_sub(connection.answered);
    if waiting == 0 {
        connection.first = number;
        return Some(&mut connection.record);
    }
    if connection.pipelines == 0 {
        connection.begun_by = number;
        connection.begun = position::of(sk, RESPONSES);
        connection.pipelines = 1;
    }
    if waiting >= DEPTH as u32 {
        socket_tell(sk, u64::from(UNDECODED_PIPELINED), 1);
        return None;
    }
    let place = place(sk, number);
    let template = PIPELINED_NEW.get_ptr(0)?;
    // SAFETY: the template is never written; the map copies it.
    if PIPELINED.insert(place, unsafe { &*template }, 0).is_err() {
        lost::count(SOCKET_MAP_FULL);
        return None;
    }
    // SAFETY: this direction alone adds entries, and the other takes them away after they are answered.
    let pipelined = PIPELINED.get_ptr_mut(place).map(|pipelined| unsafe { &mut *pipelined })?;
    pipelined.number = u64::from(number);
    Some(&mut pipelined.record)
}

/// When the byte before `scan.at` became readable.
#[inline(always)]
fn arrival(arrivals: &Arrivals, scan: &Scan) -> Option<u64> {
    let seq = scan.end_seq.wrapping_sub(scan.total).wrapping_add(scan.at).wrapping_sub(1) as u32;
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
pub(super) fn comm(name: &mut [u8; 16]) {
    // SAFETY: 16 bytes into 16 bytes; it can't fail for the current task.
    unsafe { bpf_get_current_comm(name.as_mut_ptr().cast(), 16) };
}

/// Keeps the bytes up to `scan.at` that are not kept yet, as far as there is room: all are in the window.
#[inline(always)]
fn copy_head(record: &mut RequestRecord, scan: &mut Scan) {
    let have = u64::from(record.head_len);
    let from = scan.copied;
    let count = scan.at.wrapping_sub(from);
    scan.copied = scan.at;
    let room = (HEAD_BYTES as u64).wrapping_sub(have);
    let kept = if count < room { count } else { room };
    if count > room {
        record.flags |= HEAD_CUT;
    }
    if kept == 0 {
        return;
    }
    let source = masked::<{ WINDOW - 1 }>(from.wrapping_sub(scan.window_at));
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
    if connection.mode != FOLLOWED {
        // As above.
        return 0;
    }
    let signals = signals as u8;
    if signals & FAILED != 0 {
        return failed(connection, scan, RESPONSES);
    }
    if connection.asked == connection.answered {
        // An answer to nothing: 408 on an idle connection, or the read of its request was not seen.
        connection.mode = if connection.pipelines == 0 { WAITING } else { IGNORED };
        connection.spoke = 1;
        if socket_unread(scan.sk) != 0 {
            socket_tell(scan.sk, u64::from(UNDECODED_UNSEEN), 0);
        }
        return 0;
    }
    let number = connection.answered;
    if signals & BEGIN != 0 {
        scan.machine.answer(&RequestKind::from_byte(connection.kinds[slot(number)]));
        if signals == BEGIN {
            return 1;
        }
    }
    let mut unread = 0;
    if let Some(record) = record(connection, scan.sk, number) {
        if signals & HEAD != 0 {
            record.head_written_ns = scan.now;
            describe(record, scan);
        }
        events(record, scan);
        if signals & END == 0 {
            return 1;
        }
        if signals & UPGRADE != 0 {
            record.flags |= UPGRADED;
        }
        record.end_ns = scan.now;
        record.response_bytes = scan.machine.body_bytes();
        if record.body_read_ns == 0 {
            unread = socket_unread(scan.sk);
        }
    }
    if signals & END == 0 {
        return 1;
    }
    if unread == LOST {
        // Of the request itself something was not seen.
        socket_drop(scan.sk);
        socket_tell(scan.sk, u64::from(UNDECODED_UNSEEN), 1);
        forget();
    } else {
        finish(connection, scan.sk, number, unread);
    }
    if signals & UPGRADE != 0 {
        connection.mode = IGNORED;
        return 0;
    }
    1
}

/// The call is dealt with: events that no later signal brought along are set.
#[inline(always)]
pub(super) fn settle(connection: &mut Connection, scan: &mut Scan) {
    if scan.events != 0
        && connection.mode == FOLLOWED
        && let Some(record) = record(connection, scan.sk, connection.answered)
    {
        events(record, scan);
    }
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

/// The events that this call has brought so far.
#[inline(always)]
fn events(record: &mut RequestRecord, scan: &mut Scan) {
    let count = scan.events;
    if count == 0 {
        return;
    }
    scan.events = 0;
    let now = scan.now;
    if record.first_event_ns == 0 {
        record.first_event_ns = now;
    } else if now != record.last_event_ns {
        let gap = now.wrapping_sub(record.last_event_ns);
        if gap > record.largest_gap_ns {
            record.largest_gap_ns = gap;
        }
    }
    record.last_event_ns = now;
    record.event_chunks = record.event_chunks.wrapping_add(count as u32);
}

/// Sends the request with that number, which has its end, and goes on to the next. Of its body `unread` bytes were read unseen.
#[inline(always)]
fn finish(connection: &mut Connection, sk: u64, number: u32, unread: u64) {
    let reading = connection.asked.wrapping_sub(1) == number;
    let body_bytes = connection.machines[0].body_bytes();
    if let Some(record) = record(connection, sk, number) {
        if record.body_read_ns == 0 && reading {
            // Answered before its body was read to the end.
            record.request_bytes = body_bytes.wrapping_add(unread);
        }
        if record.head_read_ns == 0 {
            record.flags |= ABORTED;
        }
        if record.end_ns < record.arrive_ns {
            lost::count(SOCKET_NEGATIVE);
        } else if !send(core::ptr::from_ref(record)) {
            lost::count(SOCKET_RING_FULL);
        }
    }
    forget();
    if connection.first != number && connection.pipelines != 0 {
        // Not there: there was no room for it.
        let _ = PIPELINED.remove(place(sk, number));
    }
    connection.answered = number.wrapping_add(1);
}

/// Puts a record into the ring buffer; false where it has no room.
#[inline(always)]
pub(super) fn send<T>(record: *const T) -> bool {
    // SAFETY: the kernel copies a whole record out of valid memory.
    let result = unsafe {
        bpf_ringbuf_output(
            core::ptr::addr_of!(RECORDS).cast_mut().cast(),
            record.cast_mut().cast(),
            size_of::<T>() as u64,
            NO_WAKEUP,
        )
    };
    result == 0
}

/// The connection ends, or its server sends nothing any more: what is in progress ends with it. `written`: how far the server wrote.
#[inline(always)]
pub(super) fn close(sk: u64, now: u64, written: u32, in_order: bool) {
    if let Some(connection) = connection(sk)
        && connection.mode == FOLLOWED
        && connection.asked != connection.answered
        && connection.positions[1] != written
    {
        socket_gap(sk, u64::from(written.wrapping_sub(connection.positions[1])), RESPONSES);
    }
    for turn in 0..turns::<{ DEPTH as u64 }>() {
        if socket_end(sk, now, u64::from(turn == 0 && in_order), u64::from(turn == 0)) == 0 {
            break;
        }
    }
    if let Some(connection) = connection(sk) {
        connection.mode = IGNORED;
    }
}

/// Ends the eldest request in progress; `in_order`: not 0 where an end of the connection may complete it; `eldest`: not 0 where
/// its response may have begun. Returns 0 when there was none.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn socket_end(sk: u64, now: u64, in_order: u64, eldest: u64) -> u64 {
    let Some(connection) = connection(sk) else { return 0 };
    let number = connection.answered;
    if connection.asked == number {
        return 0;
    }
    let machine = connection.machines[1];
    if let Some(record) = record(connection, sk, number) {
        record.end_ns = now;
        if eldest != 0 && !machine.is_idle() {
            record.response_bytes = machine.body_bytes();
        }
        if in_order == 0 || !machine.ends_at_close() {
            record.flags |= ABORTED;
        }
    }
    finish(connection, sk, number, 0);
    1
}
