//! ABI of the `block` probe: histograms of block I/O by device and operation.
//!
//! Kernel side: `agent-ebpf/src/block.rs`. User side: `agent/src/probes/block.rs`. Definitions: `docs/probes/block.md`.

use crate::{bucket::KERNEL_SLOTS, shared};

/// Operation of a [`Key`]: read.
pub const READ: u8 = 0;
/// Operation of a [`Key`]: write.
pub const WRITE: u8 = 1;
/// Operation of a [`Key`]: discard, secure erase.
pub const DISCARD: u8 = 2;
/// Operation of a [`Key`]: everything else that carries a bio (write zeroes, zone management).
pub const OTHER: u8 = 3;
/// Operation of a [`Key`] whose phases belong to the device as a whole: [`FLUSH`].
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

/// Counters are kept in at most this many copies, one per `cpu mod SHARDS`, and added up by the reader.
pub const SHARDS: u32 = 8;

/// Key of the maps `BLOCK_COUNT` and `BLOCK_LATENCY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Device number as the kernel holds it: `major << 20 | minor`, of the whole disk.
    pub device: u32,
    /// [`READ`], [`WRITE`], [`DISCARD`], [`OTHER`] or [`DEVICE_WIDE`].
    pub operation: u8,
    /// `cpu mod SHARDS`.
    pub shard: u8,
    /// Always 0.
    pub padding: u16,
}
shared!(Key, 8);

/// One exact histogram of durations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Histogram {
    /// Exact sum of all values in ns.
    pub sum_ns: u64,
    /// Largest value in ns, since the start.
    pub max_ns: u64,
    /// Counts by slot of [`crate::bucket`].
    pub counts: [u64; KERNEL_SLOTS],
}
shared!(Histogram, 1824);

/// The histograms of one key: one value of the map `BLOCK_LATENCY`, so one system call reads them all.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// By phase: [`SUBMIT_WAIT`], [`QUEUE`], [`DEVICE`], [`TOTAL`]; under [`DEVICE_WIDE`]: [`FLUSH`].
    pub phases: [Histogram; PHASES],
}
shared!(Latency, 7296);

/// Counters of one key: one value of the map `BLOCK_COUNT`, read each second; a changed `completed` says that [`Latency`] changed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Requests begun. In flight = the sum over shards of `started − completed − vanished`.
    pub started: u64,
    /// Requests completed, each once.
    pub completed: u64,
    /// Requests that ended without a completion of their own (merged into another).
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
shared!(Count, 64);

/// The one value of the map `BLOCK_SELFTEST`: user space writes `tgid`; the kernel writes the rest at that process' first read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelfTest {
    /// Process whose next read is to be described; 0 = none.
    pub tgid: u32,
    /// Device of that read, as in [`Key`].
    pub device: u32,
    /// First sector (512 bytes) of that read, on the whole disk.
    pub sector: u64,
    /// Bytes that read asked for.
    pub bytes: u64,
    /// 1 = described at its start, 2 = completed too.
    pub state: u64,
}
shared!(SelfTest, 32);
