//! Positions in the two byte streams of a connection: bytes that no call was seen to move leave a gap there.
//!
//! A call goes unseen where its process is no target, where nothing is hooked that sees it (io_uring before 6.3), and where the
//! kernel skipped the program's run. What follows must not be taken for what is missing.

use aya_ebpf::{Global, helpers::generated::bpf_probe_read_kernel};
use tailcomb_common::{
    http1::{END, Machine},
    socket::{RequestRecord, UNDECODED_UNSEEN},
};

use super::{
    loss::{socket_drop, socket_tell, socket_undecoded},
    state::{Connection, PIPELINED, REQUESTS, RESPONSES, connection, place},
};
use crate::kernel;

#[unsafe(no_mangle)]
static TCP_COPIED_SEQ: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static TCP_WRITE_SEQ: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SKC_STATE: Global<u32> = Global::new(0);

// include/net/tcp_states.h; BPF_TCP_ESTABLISHED of include/uapi/linux/bpf.h.
const ESTABLISHED: u8 = 1;

/// [`socket_unread`]: the bytes are not the rest of a body.
pub(super) const LOST: u64 = u64::MAX;

/// Position up to which the application has read, or written.
#[inline(always)]
pub(super) fn of(sk: u64, direction: u64) -> u32 {
    kernel::read::<u32>(sk, if direction == REQUESTS { &TCP_COPIED_SEQ } else { &TCP_WRITE_SEQ }).unwrap_or(0)
}

/// The same behind a call that should have come to `expected`. The client's FIN takes a number as a byte does, and is passed with
/// the last byte before it.
#[inline(always)]
pub(super) fn end(sk: u64, direction: u64, expected: u32) -> u32 {
    let end = of(sk, direction);
    let one_more = direction == REQUESTS && end == expected.wrapping_add(1);
    if one_more && kernel::read::<u8>(sk, &SKC_STATE) != Some(ESTABLISHED) { expected } else { end }
}

/// `missing` bytes (a difference of positions: it may be below 0) of a followed connection moved unseen. Those that are the rest
/// of a body are passed by arithmetic; else requests are lost, and the connection's mode says whether it is followed on.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn socket_gap(sk: u64, missing: u64, direction: u64) -> u64 {
    let Some(connection) = connection(sk) else { return 0 };
    let missing = missing as u32;
    let machine = &mut connection.machines[(direction & 1) as usize];
    let idle = machine.is_idle();
    // Of a stream every write may be an event: then nothing is passed.
    machine.begin_write();
    if missing as i32 > 0 && u64::from(missing) <= machine.skippable() {
        let ended = machine.skip(u64::from(missing)) & END != 0;
        if !ended || (direction == REQUESTS && connection.asked == connection.answered) {
            return 0;
        }
        if direction == RESPONSES {
            // When it ended nobody knows; where the next begins is known.
            forgo(sk);
            return 0;
        }
    } else if direction == RESPONSES && next_answer(connection, sk, missing) {
        return 0;
    }
    // A client that waits has asked again because it was answered: unseen, or before this request was read to its end.
    let spoke = of(sk, RESPONSES) != connection.positions[1] || (connection.asked == connection.answered && !idle);
    socket_undecoded(sk, u64::from(UNDECODED_UNSEEN), direction);
    kernel::forget();
    connection.spoke |= u32::from(spoke);
    0
}

/// Gives up the eldest request, and tells of it.
#[inline(always)]
fn forgo(sk: u64) {
    if socket_drop(sk) >> 1 != 0 {
        socket_tell(sk, u64::from(UNDECODED_UNSEEN), 1);
    }
}

/// One request waits behind another, and what is missing was written before that one was read: on a connection on which nothing
/// was ever pipelined, that was the other's answer, and this one's begins here.
#[inline(always)]
fn next_answer(connection: &mut Connection, sk: u64, missing: u32) -> bool {
    let number = connection.asked.wrapping_sub(1);
    if connection.begun_by != number
        || connection.answered.wrapping_add(1) != number
        || connection.positions[1].wrapping_add(missing) != connection.begun
    {
        return false;
    }
    forgo(sk);
    kernel::forget();
    connection.machines[1] = Machine::responses();
    // As one that never waited.
    let place = place(sk, number);
    // SAFETY: as in `place_for`.
    if let Some(pipelined) = PIPELINED.get_ptr(place).map(|pipelined| unsafe { &*pipelined })
        && pipelined.number == u64::from(number)
    {
        // SAFETY: a record onto a record.
        let result = unsafe {
            bpf_probe_read_kernel(
                core::ptr::from_mut(&mut connection.record).cast(),
                size_of::<RequestRecord>() as u32,
                core::ptr::from_ref(&pipelined.record).cast(),
            )
        };
        if result == 0 {
            connection.first = number;
        }
        // It is there.
        let _ = PIPELINED.remove(place);
    }
    connection.pipelines = 0;
    true
}

/// How many bytes of requests were read unseen since the last read that was seen; [`LOST`] where they are not the rest of a body.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn socket_unread(sk: u64) -> u64 {
    let Some(connection) = connection(sk) else { return 0 };
    let expected = connection.positions[0];
    let missing = end(sk, REQUESTS, expected).wrapping_sub(expected);
    if u64::from(missing) <= connection.machines[0].skippable() { u64::from(missing) } else { LOST }
}
