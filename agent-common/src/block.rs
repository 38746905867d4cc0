//! ABI of the `block` probe: histograms of block I/O by device and operation.
//!
//! Kernel side: `agent-ebpf/src/block/`. User side: `agent/src/probes/block.rs`. Definitions: `docs/probes/block.md`.

use crate::{bucket::KERNEL_SLOTS, shared};

/// Operation of a [`Key`]: read.
pub const READ: u8 = 0;
/// Operation of a [`Key`]: write, zone append.
pub const WRITE: u8 = 1;
/// Operation of a [`Key`]: discard, secure erase.
pub const DISCARD: u8 = 2;
/// Operation of a [`Key`]: everything else that carries a bio (write zeroes, write same, zone management).
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
    /// Largest value in ns, since the start. Not atomic: where two CPUs of a shard complete within the same few ns, the
    /// larger of the two may be missed.
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
shared!(Count, 64);

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
    /// As in [`Key`].
    pub device: u32,
    /// As in [`Key`].
    pub operation: u8,
    /// [`ACTIVE`], [`REQUEUED`], …
    pub flags: u8,
    /// Always 0.
    pub padding: u16,
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

/// Entries of `BLOCK_COUNT` and `BLOCK_LATENCY`: a device that reads and writes on all shards and flushes takes 24.
pub const MAX_KEYS: u32 = 2048;
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
