//! One system call that moved bytes of a socket: whose it is, and where its bytes lie.

use aya_ebpf::{
    Global,
    helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns},
};
use tailcomb_common::{
    http1::Machine,
    lost::SOCKET_MAP_FULL,
    socket::{UNDECODED_MID_STREAM, UNDECODED_TLS},
};

use super::{
    loss, marks, position,
    scan::{self, socket_load},
    state::{
        CONNECTION_NEW, CONNECTIONS, Connection, FOLLOWED, IGNORED, PORTS, PORTS_ONLY, REQUESTS, RESPONSES, SOCKET_ALL, WAITING,
        connection, is_target, measured, scan as scan_of,
    },
};
use crate::{kernel, lost};

#[unsafe(no_mangle)]
static SKC_FAMILY: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SKC_NUM: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SK_PROTOCOL: Global<u32> = Global::new(0);

// include/uapi: never renumbered.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const IPPROTO_TCP: u16 = 6;

/// Numbers of the system calls (x86-64, arch/x86/entry/syscalls/syscall_64.tbl; never renumbered).
#[cfg(bpf_target_arch = "x86_64")]
pub(super) mod number {
    pub(crate) const READ: u64 = 0;
    pub(crate) const WRITE: u64 = 1;
    pub(crate) const READV: u64 = 19;
    pub(crate) const WRITEV: u64 = 20;
    pub(crate) const SENDFILE: u64 = 40;
    pub(crate) const SENDTO: u64 = 44;
    pub(crate) const RECVFROM: u64 = 45;
    pub(crate) const SENDMSG: u64 = 46;
    pub(crate) const RECVMSG: u64 = 47;
    pub(crate) const SPLICE: u64 = 275;
    pub(crate) const RECVMMSG: u64 = 299;
    pub(crate) const SENDMMSG: u64 = 307;
}

/// The same elsewhere (include/uapi/asm-generic/unistd.h).
#[cfg(not(bpf_target_arch = "x86_64"))]
pub(super) mod number {
    pub(crate) const READ: u64 = 63;
    pub(crate) const WRITE: u64 = 64;
    pub(crate) const READV: u64 = 65;
    pub(crate) const WRITEV: u64 = 66;
    pub(crate) const SENDFILE: u64 = 71;
    pub(crate) const SPLICE: u64 = 76;
    pub(crate) const SENDTO: u64 = 206;
    pub(crate) const RECVFROM: u64 = 207;
    pub(crate) const SENDMSG: u64 = 211;
    pub(crate) const RECVMSG: u64 = 212;
    pub(crate) const RECVMMSG: u64 = 243;
    pub(crate) const SENDMMSG: u64 = 269;
}

/// A call whose number says nothing of its bytes.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// What a call's second argument is.
pub(super) enum Buffer {
    /// The buffer.
    Plain,
    /// A vector of pieces; the third argument is their number.
    Vector,
    /// A `struct msghdr`.
    Message,
    /// None: bytes moved from or to a file or pipe, or in several messages at once.
    Spliced,
    /// Not known: the bytes were moved for the process, by io_uring.
    Hidden,
}

/// What the second argument of the call `number` is.
#[inline(always)]
pub(super) fn buffer(number: u64) -> Buffer {
    match number {
        number::READ | number::WRITE | number::RECVFROM | number::SENDTO => Buffer::Plain,
        number::READV | number::WRITEV => Buffer::Vector,
        number::RECVMSG | number::SENDMSG => Buffer::Message,
        number::SENDFILE | number::SPLICE | number::RECVMMSG | number::SENDMMSG => Buffer::Spliced,
        _ => Buffer::Hidden,
    }
}

/// A call as its thread made it.
pub(super) struct Call {
    /// Its number, or [`UNKNOWN`].
    pub(super) number: u64,
    /// Second argument.
    pub(super) first: u64,
    /// Third argument.
    pub(super) second: u64,
}

/// A call of the current thread moved `bytes` > 0 of the socket `sk`. `find` tells the call; it is asked only when needed.
#[inline(always)]
pub(super) fn moved(direction: u64, sk: u64, bytes: u64, find: impl FnOnce() -> Call) {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    if !is_target(tgid) {
        return;
    }
    let mut known = connection(sk);
    if let Some(connection) = &mut known {
        if connection.mode == IGNORED {
            return;
        }
        if connection.mode == WAITING && direction == RESPONSES {
            connection.spoke = 1;
            return;
        }
    } else if !is_tcp(sk) {
        return;
    }
    let Some(scan) = scan_of(direction) else { return };
    let call = find();
    // SAFETY: a helper without arguments.
    scan.now = unsafe { bpf_ktime_get_ns() };
    scan.sk = sk;
    scan.total = bytes;
    scan.at = 0;
    scan.copied = 0;
    scan.events = 0;
    scan.pieces = 0;
    scan.piece = 0;
    scan.piece_at = 0;
    scan.window_at = 0;
    scan.window_len = 0;
    scan.call = call.number;
    scan.first = call.first;
    scan.second = call.second;
    kernel::forget();
    let mut end = position::of(sk, direction);
    let connection = match known {
        Some(connection) => {
            if connection.mode == FOLLOWED {
                let expected = connection.positions[(direction & 1) as usize].wrapping_add(bytes as u32);
                if end != expected {
                    end = position::end(sk, direction, expected);
                    if end != expected {
                        position::socket_gap(sk, u64::from(end.wrapping_sub(expected)), direction);
                        kernel::forget();
                    }
                }
            }
            if connection.mode != FOLLOWED && (direction == RESPONSES || !again(connection, sk, end)) {
                return;
            }
            connection
        }
        None => {
            let Some(connection) = adopt(sk, direction) else { return };
            connection
        }
    };
    connection.positions[(direction & 1) as usize] = end;
    let dropped = connection.dropped;
    scan.machine = connection.machines[(direction & 1) as usize];
    scan.machine.begin_write();
    if direction == REQUESTS {
        scan.end_seq = u64::from(end);
    }
    kernel::forget();
    scan::walk(sk, direction);
    kernel::forget();
    if connection.dropped == dropped {
        connection.machines[(direction & 1) as usize] = scan.machine;
    }
    if direction == REQUESTS {
        connection.arrivals.drop_read(sk, scan.end_seq as u32);
    } else {
        marks::settle(connection, scan);
    }
}

/// A read up to `end` of a connection that was lost: is it followed again from here?
#[inline(always)]
fn again(connection: &mut Connection, sk: u64, end: u32) -> bool {
    if connection.mode == IGNORED {
        return false;
    }
    if !begins_request() {
        connection.arrivals.drop_read(sk, end);
        return false;
    }
    if connection.spoke == 0 {
        // A request before anything was said to the last: which answer is whose can't be told any more.
        connection.mode = IGNORED;
        return false;
    }
    connection.machines = [Machine::requests(), Machine::responses()];
    connection.positions[1] = position::of(sk, RESPONSES);
    connection.mode = FOLLOWED;
    true
}

/// A socket that is not known, used by a target: a connection older than the probe, or one of the target as a client. The
/// first is followed as soon as a request begins, also on a port that user space could not find; the second never begins one.
#[inline(always)]
fn adopt(sk: u64, direction: u64) -> Option<&'static mut Connection> {
    let port = local_port(sk);
    let listening = PORTS.get_ptr(port).is_some();
    let begins = direction == REQUESTS && begins_request();
    if !listening && (!begins || measured((bpf_get_current_pid_tgid() >> 32) as u32) == Some(PORTS_ONLY)) {
        return None;
    }
    // SAFETY: a helper without arguments.
    let connection = create(sk, port, unsafe { bpf_ktime_get_ns() })?;
    connection.arrivals.begin_unknown(sk);
    if begins {
        return Some(connection);
    }
    let scan = scan_of(REQUESTS)?;
    if direction == REQUESTS && scan.window_len > 2 && matches!(scan.window[0], 0x14..=0x17) && scan.window[1] == 3 {
        loss::socket_undecoded(sk, u64::from(UNDECODED_TLS), direction);
    } else {
        loss::socket_undecoded(sk, u64::from(UNDECODED_MID_STREAM), direction);
    }
    None
}

/// Does the call begin with a method?
#[inline(always)]
fn begins_request() -> bool {
    if socket_load(REQUESTS) != 0 {
        return false;
    }
    let Some(scan) = scan_of(REQUESTS) else { return false };
    scan.window_len >= 4
        && matches!(
            &[scan.window[0], scan.window[1], scan.window[2], scan.window[3]],
            b"GET " | b"POST" | b"HEAD" | b"PUT " | b"DELE" | b"OPTI" | b"PATC" | b"CONN" | b"TRAC"
        )
}

/// A new entry in `CONNECTIONS`, followed.
#[inline(always)]
pub(super) fn create(sk: u64, port: u32, now: u64) -> Option<&'static mut Connection> {
    let template = CONNECTION_NEW.get_ptr(0)?;
    // SAFETY: the template is never written; the map copies it.
    if CONNECTIONS.insert(sk, unsafe { &*template }, 0).is_err() {
        lost::count(SOCKET_MAP_FULL);
        return None;
    }
    let connection = connection(sk)?;
    // SAFETY: a helper without arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    // Unique: a CPU needs more than 16 ns to come here again.
    connection.id = (now >> 4) << 12 | u64::from(cpu & 0xfff);
    connection.local_port = port;
    connection.positions = [position::of(sk, REQUESTS), position::of(sk, RESPONSES)];
    connection.machines = [Machine::requests(), Machine::responses()];
    connection.mode = FOLLOWED;
    Some(connection)
}

/// Is it a TCP socket?
#[inline(always)]
fn is_tcp(sk: u64) -> bool {
    matches!(kernel::read::<u16>(sk, &SKC_FAMILY), Some(AF_INET | AF_INET6))
        && kernel::read::<u16>(sk, &SK_PROTOCOL) == Some(IPPROTO_TCP)
}

/// The socket's local port.
#[inline(always)]
pub(super) fn local_port(sk: u64) -> u32 {
    kernel::read::<u16>(sk, &SKC_NUM).map_or(0, u32::from)
}

/// Is a connection to that port measured from its establishment on?
#[inline(always)]
pub(super) fn is_measured(port: u32) -> bool {
    SOCKET_ALL.load() != 0 || PORTS.get_ptr(port).is_some()
}
