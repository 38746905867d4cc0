//! When bytes became readable: positions in the TCP stream with times, so that a request that waits behind another has its
//! own arrival.

use aya_ebpf::{Global, helpers::bpf_ktime_get_ns, macros::raw_tracepoint, programs::RawTracePointContext};

use super::state::{Connection, IGNORED, connection};
use crate::kernel;

#[unsafe(no_mangle)]
static TCP_RCV_NXT: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SKB_LEN: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SKB_DATA: Global<u32> = Global::new(0);

/// Entries of a connection; a power of two.
const ENTRIES: usize = 8;

/// Bytes from `seq` on were readable at `time_ns`, up to the next entry's.
#[repr(C)]
#[derive(Clone, Copy)]
struct Arrival {
    time_ns: u64,
    seq: u32,
    padding: u32,
}

/// The arrivals of one connection: written where segments come in (`head`), dropped where bytes are read (`tail`).
#[repr(C)]
pub(super) struct Arrivals {
    head: u32,
    tail: u32,
    /// What the kernel expected next when it was last seen.
    expected: u32,
    /// 1: entries were missed since the last one, because there was no room.
    missed: u32,
    entries: [Arrival; ENTRIES],
}

/// Limits a position to the entries, in a way the verifier of 5.10 follows.
#[inline(always)]
fn slot(position: u32) -> usize {
    // The second mask is for the compiler, which does not look into the first.
    kernel::masked::<{ ENTRIES as u64 - 1 }>(u64::from(position)) as usize & (ENTRIES - 1)
}

impl Arrivals {
    /// A connection is there, from now on.
    #[inline(always)]
    pub(super) fn begin(&mut self, sk: u64, now: u64) {
        let next = kernel::read::<u32>(sk, &TCP_RCV_NXT).unwrap_or(0);
        self.head = 1;
        self.tail = 0;
        self.expected = next;
        self.missed = 0;
        self.entries[0] = Arrival { time_ns: now, seq: next, padding: 0 };
    }

    /// A connection older than the probe: nothing is known of what it has received.
    #[inline(always)]
    pub(super) fn begin_unknown(&mut self, sk: u64) {
        self.head = 0;
        self.tail = 0;
        self.expected = kernel::read::<u32>(sk, &TCP_RCV_NXT).unwrap_or(0);
        self.missed = 0;
    }

    /// Bytes from `seq` on are readable.
    #[inline(always)]
    fn push(&mut self, seq: u32, now: u64) {
        if self.head.wrapping_sub(self.tail) >= ENTRIES as u32 {
            self.missed = 1;
            return;
        }
        self.entries[slot(self.head)] = Arrival { time_ns: now, seq, padding: 0 };
        self.head = self.head.wrapping_add(1);
    }

    /// When the byte at `seq` became readable; `None` where that was not seen.
    #[inline(always)]
    pub(super) fn of(&self, seq: u32) -> Option<u64> {
        let mut time = 0;
        let mut last = 0;
        for step in 0..kernel::turns::<{ ENTRIES as u64 }>() {
            let position = self.tail.wrapping_add(step as u32);
            if position == self.head {
                break;
            }
            let entry = self.entries[slot(position)];
            if seq.wrapping_sub(entry.seq) as i32 >= 0 {
                time = entry.time_ns;
                last = position.wrapping_add(1);
            }
        }
        // Beyond the last entry something was missed: the byte may be of that.
        let unsure = self.missed != 0 && last == self.head;
        (time != 0 && !unsure).then_some(time)
    }

    /// The application has read up to `seq`: what lies before is forgotten.
    #[inline(always)]
    pub(super) fn drop_read(&mut self, sk: u64, seq: u32) {
        for _ in 0..kernel::turns::<{ ENTRIES as u64 }>() {
            let next = self.tail.wrapping_add(1);
            if self.head.wrapping_sub(next) as i32 <= 0 {
                break;
            }
            if (seq.wrapping_sub(self.entries[slot(next)].seq) as i32) < 0 {
                break;
            }
            self.tail = next;
        }
        if self.missed != 0 && kernel::read::<u32>(sk, &TCP_RCV_NXT) == Some(seq) {
            // All is read: from here on nothing is missing again, but no entry left says anything of what comes.
            self.missed = 0;
            self.tail = self.head;
        }
    }
}

#[inline(always)]
fn followed(sk: u64) -> Option<&'static mut Connection> {
    connection(sk).filter(|connection| connection.mode != IGNORED)
}

/// Data was queued (kernel 6.3 and later): exactly when it became readable.
#[raw_tracepoint(tracepoint = "sk_data_ready")]
fn sk_data_ready(ctx: RawTracePointContext) -> i32 {
    let sk: u64 = ctx.arg(0);
    if let Some(connection) = followed(sk)
        && let Some(next) = kernel::read::<u32>(sk, &TCP_RCV_NXT)
    {
        let arrivals = &mut connection.arrivals;
        let from = arrivals.expected;
        if next != from {
            arrivals.expected = next;
            // SAFETY: a helper without arguments.
            arrivals.push(from, unsafe { bpf_ktime_get_ns() });
        }
    }
    0
}

/// A segment comes in, and is about to be queued: kernels without `sk_data_ready`.
#[raw_tracepoint(tracepoint = "tcp_probe")]
fn tcp_probe(ctx: RawTracePointContext) -> i32 {
    let sk: u64 = ctx.arg(0);
    let skb: u64 = ctx.arg(1);
    if let Some(connection) = followed(sk)
        && let Some(next) = kernel::read::<u32>(sk, &TCP_RCV_NXT)
        && has_data(skb)
    {
        let arrivals = &mut connection.arrivals;
        arrivals.expected = next;
        // SAFETY: a helper without arguments.
        arrivals.push(next, unsafe { bpf_ktime_get_ns() });
    }
    0
}

/// Does a segment carry data? Its length counts the TCP header, whose own length is in the upper half of byte 12, in words.
#[inline(always)]
fn has_data(skb: u64) -> bool {
    let len = kernel::read::<u32>(skb, &SKB_LEN).unwrap_or(0);
    let Some(header) = kernel::read::<u64>(skb, &SKB_DATA) else { return false };
    let words = kernel::read_at::<u8>(header + 12).unwrap_or(0) >> 4;
    len > u32::from(words) * 4
}
