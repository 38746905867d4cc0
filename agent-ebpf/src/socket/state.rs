//! Maps of the probe and their values. All of them are preallocated: the programs run in places where memory can't be had.

use aya_ebpf::{
    Global,
    macros::map,
    maps::{Array, HashMap, PerCpuArray, RingBuf},
};
use tailcomb_common::{
    http1::Machine,
    socket::{HEAD_BYTES, RequestRecord},
};

use super::arrival::Arrivals;
use crate::kernel::masked;

/// 1: every process is a target, whatever `TGIDS` and `PORTS` say.
#[unsafe(no_mangle)]
pub(super) static SOCKET_ALL: Global<u32> = Global::new(0);

/// Processes that are measured; the value is [`PORTS_ONLY`] where only what is in [`PORTS`] is measured of it. Filled by user
/// space, by fork, and by `listen` on a claimed port.
#[map]
pub(super) static TGIDS: HashMap<u32, u32> = HashMap::with_max_entries(16_384, 0);

/// Value in [`TGIDS`]: it is a target for its port alone.
pub(super) const PORTS_ONLY: u32 = 1;

/// Local TCP ports on which targets listen; the value is [`CLAIMS`] where the port itself is the target.
#[map]
pub(super) static PORTS: HashMap<u32, u32> = HashMap::with_max_entries(4096, 0);

/// Value in [`PORTS`]: who listens on it becomes a target.
pub(super) const CLAIMS: u32 = 1;

/// Connections by `struct sock`, from their establishment to their destruction.
#[map]
pub(super) static CONNECTIONS: HashMap<u64, Connection> = HashMap::with_max_entries(16_384, 0);

/// A new connection is copied from here: it is too large for the stack.
#[map]
pub(super) static CONNECTION_NEW: Array<Connection> = Array::with_max_entries(1, 0);

/// Requests that wait behind others on their connection.
#[map]
pub(super) static PIPELINED: HashMap<Place, Pipelined> = HashMap::with_max_entries(8192, 0);

/// A new one is copied from here.
#[map]
pub(super) static PIPELINED_NEW: Array<Pipelined> = Array::with_max_entries(1, 0);

/// Where a program keeps its place while it walks over the bytes of a call: one for each direction, since a program can be
/// interrupted by another, but never by itself.
#[map]
pub(super) static SCANS: PerCpuArray<Scan> = PerCpuArray::with_max_entries(2, 0);

/// Records for user space.
#[map]
pub(super) static RECORDS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// Direction: towards the server. Position in [`SCANS`] and [`Connection::machines`].
pub(super) const REQUESTS: u64 = 0;
/// Direction: from the server.
pub(super) const RESPONSES: u64 = 1;

/// Requests of a connection that are kept at once, the one that is being answered included; a power of two.
pub(super) const DEPTH: usize = 32;

/// [`Connection::mode`]: not followed (any further).
pub(super) const IGNORED: u32 = 0;
/// [`Connection::mode`]: followed from its first byte on, or from a request's first byte.
pub(super) const FOLLOWED: u32 = 1;
/// [`Connection::mode`]: lost, or first seen in the middle; followed from the next request on that begins after a response.
pub(super) const WAITING: u32 = 2;

/// One connection of a server. What most calls need comes first, in few cache lines.
#[repr(C)]
pub(super) struct Connection {
    /// Unique while the agent runs.
    pub(super) id: u64,
    /// [`IGNORED`], [`FOLLOWED`], [`WAITING`].
    pub(super) mode: u32,
    /// Requests that began.
    pub(super) asked: u32,
    /// Responses that ended.
    pub(super) answered: u32,
    /// The request that is kept in `record`, if it is in progress: one that began when nothing else was. All others are in
    /// [`PIPELINED`].
    pub(super) first: u32,
    /// By direction: position in the TCP stream behind the last call that was seen.
    pub(super) positions: [u32; 2],
    /// By direction.
    pub(super) machines: [Machine; 2],
    /// Times that it was given up; a walk that spans one leaves its machine behind.
    pub(super) dropped: u32,
    /// 1: a request was put into [`PIPELINED`].
    pub(super) pipelines: u32,
    /// While [`WAITING`]: 1 = the server has written something since.
    pub(super) spoke: u32,
    /// The server's local port.
    pub(super) local_port: u32,
    /// Bytes and when they became readable.
    pub(super) arrivals: Arrivals,
    /// The first request ever that began while another was in progress, and how far the server had written then; since
    /// `pipelines` was last 0.
    pub(super) begun_by: u32,
    pub(super) begun: u32,
    /// What responses depend on, by request at its number modulo [`DEPTH`].
    pub(super) kinds: [u8; DEPTH],
    /// When the connection was cut; 0 = it was not.
    pub(super) cut_ns: u64,
    /// How far the server had written then.
    pub(super) cut_at: u64,
    /// The request `first`.
    pub(super) record: RequestRecord,
    /// Never written: the verifier can't know that a head's offset and length together stay within the record, which ends
    /// with the head.
    pub(super) slack: [u8; SLACK],
}

/// Two lengths below 256, less a head.
const SLACK: usize = 320;
const _: () = assert!(HEAD_BYTES + SLACK >= 2 * 255, "a copy into a head could leave the map's value");

/// Key of [`PIPELINED`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The connection's key.
    pub(super) sk: u64,
    /// The request's number modulo [`DEPTH`].
    pub(super) slot: u64,
}

/// A request that waits behind others.
#[repr(C)]
pub(super) struct Pipelined {
    /// Its number: what is left of an earlier one must not be taken for it.
    pub(super) number: u64,
    /// What is known of it.
    pub(super) record: RequestRecord,
    /// As in [`Connection`].
    pub(super) slack: [u8; SLACK],
}

/// Pieces of a call's buffer that are known at once.
pub(super) const PIECES: usize = 24;
/// Bytes of user memory read at once; a power of two.
pub(super) const WINDOW: u64 = 1024;

/// A piece of user memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) base: u64,
    pub(super) len: u64,
}

/// Where a walk over the bytes of one call is. Positions are bytes from the first byte of the call.
#[repr(C)]
pub(super) struct Scan {
    /// The connection's key.
    pub(super) sk: u64,
    /// When the call had moved its bytes.
    pub(super) now: u64,
    /// The machine of this direction, put back into the connection at the end.
    pub(super) machine: Machine,
    /// Bytes that the call moved.
    pub(super) total: u64,
    /// How far they are dealt with.
    pub(super) at: u64,
    /// How far the head at hand is copied into its record; requests only.
    pub(super) copied: u64,
    /// Events since the marks were last set; responses only.
    pub(super) events: u64,
    /// Position in the TCP stream behind the call's last byte; requests only.
    pub(super) end_seq: u64,
    /// Position of the window, and how much of it is filled.
    pub(super) window_at: u64,
    pub(super) window_len: u64,
    /// The system call's number, and its second and third argument.
    pub(super) call: u64,
    pub(super) first: u64,
    pub(super) second: u64,
    /// The vector of pieces: where the rest of it is, and how many it has. 0 = the list is all there is.
    pub(super) vector: u64,
    pub(super) unlisted: u64,
    /// Pieces in the list; 0 = there is no buffer to read.
    pub(super) pieces: u64,
    /// The piece at hand, and the position of its first byte.
    pub(super) piece: u64,
    pub(super) piece_at: u64,
    /// The pieces, and room so that masked positions stay inside.
    pub(super) list: [Piece; PIECES + 8],
    /// The window, and room so that masked positions stay inside.
    pub(super) window: [u8; 2 * WINDOW as usize],
}

/// The connection of a `struct sock`.
#[inline(always)]
pub(super) fn connection(sk: u64) -> Option<&'static mut Connection> {
    // SAFETY: entries go in `tcp_destroy_sock`, when no call on the socket is left, and fields are written by one direction
    // each; the reference does not outlive the program.
    CONNECTIONS.get_ptr_mut(sk).map(|connection| unsafe { &mut *connection })
}

/// The record of the request `number`, which is in progress; `None` where there was no room for it.
#[inline(always)]
pub(super) fn record(connection: &mut Connection, sk: u64, number: u32) -> Option<&mut RequestRecord> {
    if connection.first == number {
        return Some(&mut connection.record);
    }
    if connection.pipelines == 0 {
        return None;
    }
    // SAFETY: as in `connection`.
    let pipelined = PIPELINED.get_ptr_mut(place(sk, number)).map(|pipelined| unsafe { &mut *pipelined })?;
    (pipelined.number == u64::from(number)).then_some(&mut pipelined.record)
}

/// Where that request is kept when it waits behind another.
#[inline(always)]
pub(super) fn place(sk: u64, number: u32) -> Place {
    Place { sk, slot: slot(number) as u64 }
}

/// Position of a request's number in `kinds` and [`Place`].
#[inline(always)]
pub(super) fn slot(number: u32) -> usize {
    // The second mask is for the compiler, which does not look into the first.
    masked::<{ DEPTH as u64 - 1 }>(u64::from(number)) as usize & (DEPTH - 1)
}

/// This CPU's walk in a direction.
#[inline(always)]
pub(super) fn scan(direction: u64) -> Option<&'static mut Scan> {
    // SAFETY: see SCANS: nobody else uses it until this program ends.
    SCANS.get_ptr_mut(direction as u32).map(|scan| unsafe { &mut *scan })
}

/// Is that process measured?
#[inline(always)]
pub(super) fn is_target(tgid: u32) -> bool {
    SOCKET_ALL.load() != 0 || TGIDS.get_ptr(tgid).is_some()
}

/// The value of a process in [`TGIDS`].
#[inline(always)]
pub(super) fn measured(tgid: u32) -> Option<u32> {
    // SAFETY: the value is one word.
    TGIDS.get_ptr(tgid).map(|value| unsafe { *value })
}
