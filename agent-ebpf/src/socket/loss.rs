//! What is not measured: connections that are given up, requests that are passed over. All of it hardly ever runs, so it is in
//! functions of its own and does not lie between what always does.

use aya_ebpf::helpers::{bpf_get_current_cgroup_id, bpf_get_current_pid_tgid};
use tailcomb_common::{
    http1::Failure,
    lost::SOCKET_RING_FULL,
    socket::{Header, KIND_UNDECODED, UNDECODED_DESYNC, UNDECODED_HTTP2, UNDECODED_TLS, UNDECODED_UNKNOWN, UndecodedRecord},
};

use super::{
    marks::{comm, send},
    state::{Connection, DEPTH, IGNORED, PIPELINED, RESPONSES, Scan, WAITING, connection, place},
};
use crate::{kernel::turns, lost};

/// The bytes are no HTTP/1.1.
#[inline(always)]
pub(super) fn failed(connection: &Connection, scan: &Scan, direction: u64) -> u64 {
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
    socket_undecoded(scan.sk, u64::from(reason), direction);
    0
}

/// Was there not even one head?
#[inline(always)]
fn never_was_http(connection: &Connection) -> bool {
    connection.answered == 0 && (connection.asked == 0 || (connection.asked == 1 && connection.record.head_read_ns == 0))
}

/// The connection is lost, and with it the requests in progress, which are counted. If its client never sends a request before it
/// has the answer to the last, the connection is followed again later.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn socket_undecoded(sk: u64, reason: u64, direction: u64) -> u64 {
    let Some(connection) = connection(sk) else { return 0 };
    let reason = reason as u32;
    let other = reason == UNDECODED_TLS || reason == UNDECODED_HTTP2 || reason == UNDECODED_UNKNOWN;
    let mut requests = 0;
    if !never_was_http(connection) {
        for _ in 0..turns::<{ DEPTH as u64 }>() {
            let dropped = socket_drop(sk);
            if dropped == 0 {
                break;
            }
            requests += dropped >> 1;
        }
    }
    // Where no head was complete, what began like a request was none.
    connection.answered = connection.asked;
    connection.mode = if other || connection.pipelines != 0 { IGNORED } else { WAITING };
    connection.spoke = u32::from(direction == RESPONSES);
    connection.dropped = connection.dropped.wrapping_add(1);
    socket_tell(sk, u64::from(reason), requests)
}

/// Gives up the eldest request in progress. Returns 0 when there was none, 1 when it had no record, else 3.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn socket_drop(sk: u64) -> u64 {
    let Some(connection) = connection(sk) else { return 0 };
    let number = connection.answered;
    if connection.asked == number {
        return 0;
    }
    connection.answered = number.wrapping_add(1);
    if connection.first == number || PIPELINED.remove(place(sk, number)).is_ok() { 3 } else { 1 }
}

/// Tells user space that so many requests are not measured; 0 = none had begun.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn socket_tell(sk: u64, reason: u64, requests: u64) -> u64 {
    let Some(connection) = connection(sk) else { return 0 };
    let mut record = UndecodedRecord {
        header: Header { kind: KIND_UNDECODED, size: size_of::<UndecodedRecord>() as u32 },
        connection: connection.id,
        // SAFETY: a helper without arguments.
        cgroup_id: unsafe { bpf_get_current_cgroup_id() },
        tgid: (bpf_get_current_pid_tgid() >> 32) as u32,
        reason: reason as u32,
        requests: requests as u32,
        local_port: connection.local_port as u16,
        padding: 0,
        comm: [0; 16],
    };
    comm(&mut record.comm);
    if !send(core::ptr::from_ref(&record)) {
        lost::count_many(SOCKET_RING_FULL, if requests == 0 { 1 } else { requests });
    }
    0
}
