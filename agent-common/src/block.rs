//! ABI of the `block` probe: histograms of block I/O by device and operation.
//!
//! Kernel side: `agent-ebpf/src/block/`. User side: `agent/src/probes/block.rs`. Definitions: `docs/probes/block.md`.

use crate::{bucket::KERNEL_SLOTS, shared};

/// Operation of a [`series`]: read.
pub const READ: u8 = 0;
/// Operation of a [`series`]: write, zone append.
pub const WRITE: u8 = 1;
/// Operation of a [`series`]: discard, secure erase.
pub const DISCARD: u8 = 2;
/// Operation of a [`series`]: everything else that carries a bio (write zeroes, write same, zone management).
pub const OTHER: u8 = 3;
/// Operation of a [`series`] whose phases belong to the device as a whole: [`FLUSH`].
pub const DEVICE_WIDE: u8 = 4;

/// Phase of an I/O: `block_bio_queue` of its first bio → `block_getrq`.
pub const SUBMIT_WAIT: usize = 0;
/// Phase of an I/O: `block_getrq` → first `block_rq_issue`.
pub const QUEUE: usize = 1;
/// Phase of an I/O: first `block_rq_issue` → last `block_rq_complete`.
pub const DEVICE: usize = 2;
/// All of an I/O: `block_bio_queue` → last `block_rq_complete`.
pub const TOTAL: usize = 3;
/// Phase of [`DEVICE_WIDE`]: a FLUSH request, issue → complete.
pub const FLUSH: usize = 0;
/// Number of histograms in one [`Latency`].
pub const PHASES: usize = 4;

/// Counters are kept in at most this many copies and added up by the reader: CPU n counts in copy n mod their number.
pub const SHARDS: u32 = 8;

/// How many copies there are: not more than CPUs, and a power of two. The loader sets the global `BLOCK_SHARDS` to it.
#[must_use]
pub const fn shards(cpus: usize) -> u32 {
    match cpus {
        0 | 1 => 1,
        2 => 2,
        3 | 4 => 4,
        _ => SHARDS,
    }
}

/// Most series: 32 devices with every operation take 160.
pub const MAX_SERIES: u32 = 256;
/// How many places in the maps a series may have. With 160 of 256 taken, one in three million finds none.
pub const PLACES: u32 = 32;

/// Marks a device and operation as a series, so that 0 is none.
const SERIES: u64 = 1 << 40;

/// A device (`major << 20 | minor` of the whole disk, as the kernel holds it) and an operation ([`READ`] … [`DEVICE_WIDE`]).
#[must_use]
#[inline(always)]
pub const fn series(device: u32, operation: u8) -> u64 {
    SERIES | (operation as u64) << 32 | device as u64
}

/// Device and operation of a series.
#[must_use]
pub const fn device_and_operation(series: u64) -> (u32, u8) {
    #[expect(clippy::cast_possible_truncation, reason = "the parts are cut out")]
    (series as u32, (series >> 32) as u8)
}

/// The `n`-th slot (0 … 255) that is tried for a series. Which one it got stands in the map `BLOCK_SLOT`.
#[must_use]
#[inline(always)]
pub const fn place(series: u64, n: u32) -> u32 {
    // Fibonacci hashing; the step is odd, so that every slot is reached.
    let hash = (series.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32;
    (hash >> 16).wrapping_add(n.wrapping_mul(hash & 0xffff | 1)) & (MAX_SERIES - 1)
}

/// The histograms of one series in one shard: one value of the map `BLOCK_LATENCY`, so one system call reads them all.
/// Phases are [`SUBMIT_WAIT`], [`QUEUE`], [`DEVICE`], [`TOTAL`]; of a [`DEVICE_WIDE`] series: [`FLUSH`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Exact sum of all values in ns, by phase.
    pub sum_ns: [u64; PHASES],
    /// Largest value in ns since the start, by phase. Not atomic: where two CPUs of a shard complete within the same few ns,
    /// the larger of the two may be missed.
    pub max_ns: [u64; PHASES],
    /// Counts by slot of [`crate::bucket`], by phase.
    pub counts: [[u64; KERNEL_SLOTS]; PHASES],
}
shared!(Latency, 7296);

impl Latency {
    /// Nothing counted.
    pub const EMPTY: Self = Self { sum_ns: [0; PHASES], max_ns: [0; PHASES], counts: [[0; KERNEL_SLOTS]; PHASES] };
}

/// Counters of one series in one shard: one value of the map `BLOCK_COUNT`, read each second; a changed `completed` says that
/// [`Latency`] changed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Whose they are; 0 where the series had no request in this shard.
    pub series: u64,
    /// Requests begun. In flight = the sum over shards of `started − completed − vanished`.
    pub started: u64,
    /// Requests completed, each once.
    pub completed: u64,
    /// Requests that ended without a completion of their own: merged into another, or an empty flush that became a FLUSH
    /// request.
    pub vanished: u64,
    /// Bytes of all completions.
    pub bytes: u64,
    /// Requests that the device failed.
    pub errors: u64,
    /// Bios merged into a request that existed.
    pub merges: u64,
    /// Requests given back to the queue after their issue.
    pub requeues: u64,
    /// Completions of a part of a request.
    pub partial: u64,
}
shared!(Count, 72);

/// [`RequestState::slot`]: there was no room for its series, which is counted as lost already.
pub const NO_SLOT: u16 = u16::MAX;

/// [`RequestState::flags`]: it is in flight; without this bit the entry is a leftover of an earlier request.
pub const ACTIVE: u8 = 1;
/// [`RequestState::flags`]: given back to the queue after its issue.
pub const REQUEUED: u8 = 1 << 1;
/// [`RequestState::flags`]: a part of it failed.
pub const FAILED: u8 = 1 << 2;
/// [`RequestState::flags`]: it is the self-test's read.
pub const SELF_TEST: u8 = 1 << 3;

/// Value of the map `BLOCK_REQUEST`: one request, by the address of its memory, which the kernel keeps for each tag. Entries
/// stay and are used again, so that an I/O costs look-ups only. Times are ns of CLOCK_MONOTONIC.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestState {
    /// `block_bio_queue` of its first bio; 0 = not seen.
    pub queue_ns: u64,
    /// It became a request; 0 = not seen.
    pub start_ns: u64,
    /// Its first `block_rq_issue`; 0 = not issued yet.
    pub issue_ns: u64,
    /// As in [`series`].
    pub device: u32,
    /// As in [`series`].
    pub operation: u8,
    /// [`ACTIVE`], [`REQUEUED`], …
    pub flags: u8,
    /// Where its series is counted, so that it need not be looked for again; [`NO_SLOT`] = nowhere.
    pub slot: u16,
}
shared!(RequestState, 32);

/// A bio that was queued and is not a request yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QueuedBio {
    /// Its address; 0 = none.
    pub bio: u64,
    /// When it was queued, ns of CLOCK_MONOTONIC.
    pub queue_ns: u64,
}
shared!(QueuedBio, 16);

/// How many bios of a task are remembered beside the newest: a stacked device submits to the ones below from the same task.
pub const OLDER_BIOS: usize = 4;

/// Value of the map `BLOCK_TASK`: the bios that one task queued last, by thread id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TaskBios {
    /// The last one.
    pub newest: QueuedBio,
    /// Where the next one goes that is displaced from `newest`, modulo [`OLDER_BIOS`].
    pub next: u64,
    /// Those before, as a ring.
    pub older: [QueuedBio; OLDER_BIOS],
}
shared!(TaskBios, 88);

/// Value of the map `BLOCK_BIO`, on kernels without `block_io_start` only: a bio that got a request which was not seen yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct StartedBio {
    /// `block_bio_queue`; 0 = not seen.
    pub queue_ns: u64,
    /// `block_getrq`; 0 = used up.
    pub start_ns: u64,
}
shared!(StartedBio, 16);

/// Entries of `BLOCK_REQUEST`.
pub const MAX_REQUESTS: u32 = 65_536;
/// Entries of `BLOCK_TASK`.
pub const MAX_TASKS: u32 = 16_384;
/// Entries of `BLOCK_BIO`.
pub const MAX_BIOS: u32 = 16_384;

/// The one value of the map `BLOCK_SELFTEST`: user space writes `tgid`; the kernel writes the rest at that process' first read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelfTest {
    /// Process whose next read is to be described; 0 = none.
    pub tgid: u32,
    /// Device of that read, as in [`series`].
    pub device: u32,
    /// First sector (512 bytes) of that read, on the whole disk.
    pub sector: u64,
    /// Bytes that read asked for.
    pub bytes: u64,
    /// 1 = described at its start, 2 = completed too.
    pub state: u64,
}
shared!(SelfTest, 32);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_series_is_what_it_was_made_of_and_never_none() {
        for (device, operation) in [(0, READ), (254 << 20 | 16, WRITE), (u32::MAX, DEVICE_WIDE)] {
            assert_ne!(series(device, operation), 0);
            assert_eq!(device_and_operation(series(device, operation)), (device, operation));
        }
    }

    #[test]
    fn thirty_two_disks_with_every_operation_find_a_place() {
        // Disks as they are numbered: virtio and SCSI by sixteens, NVMe and loop by ones.
        for (major, step) in [(254, 16), (8, 16), (259, 1), (7, 1)] {
            let mut taken = BTreeSet::new();
            for disk in 0..32 {
                for operation in [READ, WRITE, DISCARD, OTHER, DEVICE_WIDE] {
                    let series = series((major << 20) | (disk * step), operation);
                    assert!((0..PLACES).any(|n| taken.insert(place(series, n))), "no place for {major}:{}", disk * step);
                }
            }
        }
    }

    #[test]
    fn the_places_of_a_series_differ() {
        let places: BTreeSet<_> = (0..PLACES).map(|n| place(series(259 << 20, READ), n)).collect();
        assert_eq!(places.len(), PLACES as usize);
    }
}
