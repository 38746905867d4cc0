//! The byte machine walked over what one call moved.
//!
//! Functions with scalar arguments only, not inlined: the verifier checks such a (global) function once, for any argument,
//! instead of again at each turn of the loops that call it. That alone makes the whole fit on 5.10, and lets loops be nested
//! as deep as calls can be: what is followed in one call has no limit that matters.

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use tailcomb_common::{
    http1::EVENT,
    socket::{UNDECODED_BAD_ADDRESS, UNDECODED_IO_URING, UNDECODED_SPLICE, UNDECODED_TOO_LARGE},
};

use super::{
    call::{self, Buffer},
    loss, marks,
    state::{PIECES, Piece, REQUESTS, Scan, WINDOW, connection, scan},
};
use crate::kernel::{eight, forget, masked, turns};

/// Turns of each of the two loops around [`socket_advance`]: their product is how many windows, hops and messages are followed
/// in one call.
const TURNS: u32 = 64;
/// Turns of the machine in one step.
const MACHINE_TURNS: u32 = 128;
/// Bytes of the user's `struct msghdr` up to its `msg_iov` (include/uapi: the layout of user_msghdr never moves).
const MSG_IOV: u64 = 16;
/// [`socket_load`]: the piece is not reached yet, come again.
const AGAIN: u64 = u64::MAX;

/// Walks over the whole call, which this CPU's [`Scan`] of that direction describes.
///
/// No reference to that scan or to its connection may be a function's argument here or at the callers': the functions below
/// find both by themselves.
#[inline(always)]
pub(super) fn walk(sk: u64, direction: u64) {
    for _ in 0..TURNS {
        if socket_sweep(direction) == 0 {
            return;
        }
    }
    loss::socket_undecoded(sk, u64::from(UNDECODED_TOO_LARGE), direction);
}

/// Some steps. Returns 0 when the call is dealt with.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn socket_sweep(direction: u64) -> u64 {
    for _ in 0..TURNS {
        if socket_advance(direction) == 0 {
            return 0;
        }
    }
    1
}

/// One step: a hop over bytes that don't matter, or some bytes up to the first that completes something. Returns 0 when the
/// call is dealt with.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn socket_advance(direction: u64) -> u64 {
    let direction = direction & 1;
    let Some(scan) = scan(direction) else { return 0 };
    if scan.at >= scan.total {
        return 0;
    }
    let hop = scan.machine.skippable();
    let signals = if hop > 0 {
        let left = scan.total.wrapping_sub(scan.at);
        let count = if hop < left { hop } else { left };
        scan.at = scan.at.wrapping_add(count);
        let signals = scan.machine.skip(count);
        if signals == 0 {
            return 1;
        }
        u64::from(signals)
    } else {
        if scan.at >= scan.window_at.wrapping_add(scan.window_len) {
            let failure = socket_load(direction);
            if failure == AGAIN {
                return 1;
            }
            if failure != 0 {
                loss::socket_undecoded(scan.sk, failure - 1, direction);
                return 0;
            }
        }
        socket_bytes(direction)
    };
    forget();
    // A head's bytes are copied before the window moves on.
    if signals == 0 && (direction != REQUESTS || scan.at < scan.window_at.wrapping_add(scan.window_len)) {
        return 1;
    }
    let Some(connection) = connection(scan.sk) else { return 0 };
    if direction == REQUESTS { marks::request(connection, scan, signals) } else { marks::response(connection, scan, signals) }
}

/// Takes the machine over the window, up to its end or the first signal but EVENT, which is returned. Events are counted in the
/// scan: those of one call are of one time.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn socket_bytes(direction: u64) -> u64 {
    let Some(scan) = scan(direction & 1) else { return 0 };
    let end = scan.window_at.wrapping_add(scan.window_len);
    for _ in 0..MACHINE_TURNS {
        if scan.at >= end {
            return 0;
        }
        let hop = scan.machine.skippable();
        let signals = if hop > 0 {
            let left = end.wrapping_sub(scan.at);
            let count = if hop < left { hop } else { left };
            scan.at = scan.at.wrapping_add(count);
            scan.machine.skip(count)
        } else {
            let position = masked::<{ WINDOW - 1 }>(scan.at.wrapping_sub(scan.window_at)) as usize & (WINDOW as usize - 1);
            if end.wrapping_sub(scan.at) >= 8 {
                // SAFETY: the window has room behind every position.
                let eight = unsafe { eight(scan.window.as_ptr().add(position)) };
                let count = scan.machine.skim(eight);
                if count > 0 {
                    scan.at = scan.at.wrapping_add(count);
                    forget();
                    continue;
                }
            }
            scan.at = scan.at.wrapping_add(1);
            scan.machine.step(scan.window[position])
        };
        let mut signals = u64::from(signals);
        if signals & u64::from(EVENT) != 0 {
            scan.events = scan.events.wrapping_add(1);
            signals &= !u64::from(EVENT);
        }
        forget();
        if signals != 0 {
            return signals;
        }
    }
    0
}

/// Reads the window at the walk's position. Returns 0, [`AGAIN`], or 1 + the reason why it can't.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn socket_load(direction: u64) -> u64 {
    let Some(scan) = scan(direction & 1) else { return 0 };
    if scan.pieces == 0 {
        let failure = locate(scan);
        if failure != 0 {
            return failure;
        }
    }
    // The piece that holds the position.
    for _ in 0..turns::<{ PIECES as u64 }>() {
        let len = scan.list[piece(scan) & 31].len;
        if scan.at < scan.piece_at.wrapping_add(len) {
            break;
        }
        scan.piece_at = scan.piece_at.wrapping_add(len);
        scan.piece += 1;
        forget();
        if scan.piece >= scan.pieces {
            let failure = list(scan);
            return if failure == 0 { AGAIN } else { failure };
        }
    }
    let Piece { base, len } = scan.list[piece(scan) & 31];
    let inside = scan.at.wrapping_sub(scan.piece_at);
    let mut count = len.wrapping_sub(inside);
    if inside >= len {
        return AGAIN;
    }
    if count > WINDOW {
        count = WINDOW;
    }
    // SAFETY: the mask keeps the length within the window.
    let result = unsafe {
        bpf_probe_read_user(
            scan.window.as_mut_ptr().cast(),
            masked::<{ 2 * WINDOW - 1 }>(count) as u32,
            base.wrapping_add(inside) as *const _,
        )
    };
    if result != 0 {
        return 1 + u64::from(UNDECODED_BAD_ADDRESS);
    }
    scan.window_at = scan.at;
    // A piece can be longer than what the call moved.
    let left = scan.total.wrapping_sub(scan.at);
    scan.window_len = if count < left { count } else { left };
    0
}

#[inline(always)]
fn piece(scan: &Scan) -> usize {
    masked::<31>(scan.piece) as usize
}

/// Finds the pieces of the call's buffer. Returns 0, or 1 + the reason why there are none.
#[inline(always)]
fn locate(scan: &mut Scan) -> u64 {
    let (vector, count) = match call::buffer(scan.call) {
        Buffer::Plain => {
            scan.list[0] = Piece { base: scan.first, len: scan.total };
            scan.pieces = 1;
            scan.unlisted = 0;
            return 0;
        }
        Buffer::Vector => (scan.first, scan.second),
        Buffer::Message => {
            let mut header = [0u64; 2];
            // SAFETY: 16 bytes into 16 bytes.
            let result =
                unsafe { bpf_probe_read_user(header.as_mut_ptr().cast(), 16, scan.first.wrapping_add(MSG_IOV) as *const _) };
            if result != 0 {
                return 1 + u64::from(UNDECODED_BAD_ADDRESS);
            }
            (header[0], header[1])
        }
        Buffer::Spliced => return 1 + u64::from(UNDECODED_SPLICE),
        Buffer::Hidden => return 1 + u64::from(UNDECODED_IO_URING),
    };
    scan.vector = vector;
    scan.unlisted = count;
    list(scan)
}

/// Fills the list with the next pieces of the vector. Returns 0, or 1 + the reason why it can't.
#[inline(always)]
fn list(scan: &mut Scan) -> u64 {
    let left = scan.unlisted;
    let count = if left > PIECES as u64 { PIECES as u64 } else { left };
    if count == 0 {
        // The call moved more bytes than its pieces have: they were changed meanwhile.
        return 1 + u64::from(UNDECODED_BAD_ADDRESS);
    }
    // SAFETY: at most PIECES pieces of 16 bytes; the mask only repeats that.
    let result =
        unsafe { bpf_probe_read_user(scan.list.as_mut_ptr().cast(), (masked::<31>(count) * 16) as u32, scan.vector as *const _) };
    if result != 0 {
        return 1 + u64::from(UNDECODED_BAD_ADDRESS);
    }
    scan.vector = scan.vector.wrapping_add(count * 16);
    scan.unlisted = left.wrapping_sub(count);
    scan.pieces = count;
    scan.piece = 0;
    0
}
