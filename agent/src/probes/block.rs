//! The `block` probe, user side: what its programs need of the kernel, and how its maps are read.

mod read;
pub mod selftest;

pub use read::{BlockReader, ReadError};
use tailcomb_common::{block, bucket::KERNEL_SLOTS};

use super::table::{Attach, Need, Probe, Program, Source, argument, field, optional_field};

/// An operation or flag number, from the enum that older kernels call `req_opf`.
const fn operation(global: &'static str, names: &'static [(&'static str, &'static str)], optional: bool) -> Need {
    Need { global, source: Source::Enumerator(names), optional }
}

/// What tells operations apart and finds the disk's number.
const COMMON: [Need; 13] = [
    field("DISK_MAJOR", &["gendisk.major"]),
    field("DISK_MINOR", &["gendisk.first_minor"]),
    // The first flag stands right above the operation: its number is how many bits that has.
    operation("OP_BITS", &[("req_flag_bits", "__REQ_FAILFAST_DEV")], false),
    operation("OP_READ", &[("req_op", "REQ_OP_READ"), ("req_opf", "REQ_OP_READ")], false),
    operation("OP_WRITE", &[("req_op", "REQ_OP_WRITE"), ("req_opf", "REQ_OP_WRITE")], false),
    operation("OP_FLUSH", &[("req_op", "REQ_OP_FLUSH"), ("req_opf", "REQ_OP_FLUSH")], false),
    operation("OP_DISCARD", &[("req_op", "REQ_OP_DISCARD"), ("req_opf", "REQ_OP_DISCARD")], false),
    operation("OP_ERASE", &[("req_op", "REQ_OP_SECURE_ERASE"), ("req_opf", "REQ_OP_SECURE_ERASE")], true),
    operation("OP_APPEND", &[("req_op", "REQ_OP_ZONE_APPEND"), ("req_opf", "REQ_OP_ZONE_APPEND")], true),
    operation("OP_DRV_IN", &[("req_op", "REQ_OP_DRV_IN"), ("req_opf", "REQ_OP_DRV_IN")], false),
    operation("OP_DRV_OUT", &[("req_op", "REQ_OP_DRV_OUT"), ("req_opf", "REQ_OP_DRV_OUT")], false),
    // Commands of SCSI alone, up to 5.13.
    operation("OP_SCSI_IN", &[("req_op", "REQ_OP_SCSI_IN"), ("req_opf", "REQ_OP_SCSI_IN")], true),
    operation("OP_SCSI_OUT", &[("req_op", "REQ_OP_SCSI_OUT"), ("req_opf", "REQ_OP_SCSI_OUT")], true),
];

/// What is read of a request. Its disk: `rq_disk` up to 5.16, then by way of its queue.
const REQUEST: [Need; 7] = [
    field("REQUEST_FLAGS", &["request.cmd_flags"]),
    field("REQUEST_LEN", &["request.__data_len"]),
    field("REQUEST_SECTOR", &["request.__sector"]),
    field("REQUEST_BIO", &["request.bio"]),
    field("REQUEST_Q", &["request.q"]),
    optional_field("REQUEST_DISK", &["request.rq_disk"]),
    optional_field("QUEUE_DISK", &["request_queue.disk"]),
];
const REQUEST_DISK: &[&str] = &["REQUEST_DISK", "QUEUE_DISK"];

/// What is read of a bio. Its disk: `bi_disk` up to 5.11, then by way of its block device.
const BIO: [Need; 6] = [
    field("BIO_FLAGS", &["bio.bi_opf"]),
    field("BIO_NEXT", &["bio.bi_next"]),
    field("BIO_PRIVATE", &["bio.bi_private"]),
    optional_field("BIO_DISK", &["bio.bi_disk"]),
    optional_field("BIO_BDEV", &["bio.bi_bdev"]),
    optional_field("BDEV_DISK", &["block_device.bd_disk"]),
];
const BIO_DISK: &[&str] = &["BIO_DISK", "BIO_BDEV"];

const IO_START: &str = "block_io_start";
const HAS_IO_START: Need = Need { global: "HAS_IO_START", source: Source::HasTracepoint(IO_START), optional: false };

/// Needs of a program that sees a request, and through it a bio.
const fn of_request(position: Need) -> [Need; 28] {
    let mut needs = [HAS_IO_START; 28];
    needs[1] = position;
    let mut i = 0;
    while i < COMMON.len() {
        needs[2 + i] = COMMON[i];
        i += 1;
    }
    i = 0;
    while i < REQUEST.len() {
        needs[15 + i] = REQUEST[i];
        i += 1;
    }
    i = 0;
    while i < BIO.len() {
        needs[22 + i] = BIO[i];
        i += 1;
    }
    needs
}

/// Needs of a program that sees a bio alone.
const fn of_bio(position: Need) -> [Need; 21] {
    let mut needs = [HAS_IO_START; 21];
    needs[1] = position;
    let mut i = 0;
    while i < COMMON.len() {
        needs[2 + i] = COMMON[i];
        i += 1;
    }
    i = 0;
    while i < BIO.len() {
        needs[15 + i] = BIO[i];
        i += 1;
    }
    needs
}

const COMPLETE: &[Need] = &of_request(argument("RQ_COMPLETE_RQ", "block_rq_complete", "request"));
const MERGE: &[Need] = &of_request(argument("RQ_MERGE_RQ", "block_rq_merge", "request"));
const REQUEUE: &[Need] = &of_request(argument("RQ_REQUEUE_RQ", "block_rq_requeue", "request"));
const ISSUE: &[Need] = &of_request(argument("RQ_ISSUE_RQ", "block_rq_issue", "request"));
const INSERT: &[Need] = &of_request(argument("RQ_INSERT_RQ", "block_rq_insert", "request"));
const START: &[Need] = &of_request(argument("IO_START_RQ", IO_START, "request"));
const BIO_QUEUE: &[Need] = &of_bio(argument("BIO_QUEUE_BIO", "block_bio_queue", "bio"));
const BACKMERGE: &[Need] = &of_bio(argument("BACKMERGE_BIO", "block_bio_backmerge", "bio"));
const FRONTMERGE: &[Need] = &of_bio(argument("FRONTMERGE_BIO", "block_bio_frontmerge", "bio"));
const GETRQ: &[Need] = &of_bio(argument("GETRQ_BIO", "block_getrq", "bio"));

const fn on(hook: &'static str, needs: &'static [Need], one_of: &'static [&'static str]) -> Program {
    Program { name: hook, attach: Attach::Btf(hook), needs, one_of, unless: None, core: true }
}

/// Global: how many shards there are.
pub(super) const SHARDS: &str = "BLOCK_SHARDS";
/// Maps with a value for each series and shard.
pub(super) const SHARDED: [&str; 2] = [read::COUNT, read::LATENCY];

/// The probe's row in the table.
///
/// The order is that of attachment: who ends a request first, who begins one last. The other way round, a request that begins
/// while programs are being attached would never end.
pub(crate) const PROBE: Probe = Probe {
    name: "block",
    required: true,
    shows: "disk latency by device, operation and phase",
    programs: &[
        on("block_rq_complete", COMPLETE, REQUEST_DISK),
        on("block_rq_merge", MERGE, REQUEST_DISK),
        on("block_rq_requeue", REQUEUE, REQUEST_DISK),
        on("block_rq_issue", ISSUE, REQUEST_DISK),
        on("block_bio_backmerge", BACKMERGE, BIO_DISK),
        on("block_bio_frontmerge", FRONTMERGE, BIO_DISK),
        on("block_bio_queue", BIO_QUEUE, BIO_DISK),
        on(IO_START, START, REQUEST_DISK),
        Program { unless: Some(IO_START), ..on("block_rq_insert", INSERT, REQUEST_DISK) },
        Program { unless: Some(IO_START), ..on("block_getrq", GETRQ, BIO_DISK) },
    ],
};

/// Label `operation`, and the device as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// `read`
    Read,
    /// `write`
    Write,
    /// `discard`
    Discard,
    /// `other`
    Other,
    /// Figures of the device as a whole (flushes).
    DeviceWide,
}

/// One cumulative histogram, shards added up: slots of `tailcomb_common::bucket`, 225 = above 64 s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseHistogram {
    /// Exact sum in ns.
    pub sum_ns: u64,
    /// Largest value in ns.
    pub max_ns: u64,
    /// Counts by kernel slot.
    pub counts: Box<[u64; KERNEL_SLOTS]>,
}

/// Everything of one device and operation since the probe's start, shards added up.
#[derive(Clone, Debug)]
pub struct BlockSeries {
    /// Device number as the kernel holds it (`major << 20 | minor`).
    pub device: u32,
    /// Operation.
    pub operation: Operation,
    /// Counters.
    pub count: block::Count,
    /// Histograms by phase: [`block::SUBMIT_WAIT`] … [`block::TOTAL`], or [`block::FLUSH`]; a phase without samples has none.
    pub phases: [Option<PhaseHistogram>; block::PHASES],
}

/// All series at one moment.
#[derive(Clone, Debug, Default)]
pub struct BlockSnapshot {
    /// CLOCK_MONOTONIC ns at which it was read.
    pub at_ns: u64,
    /// Its series, by device and operation.
    pub series: Vec<BlockSeries>,
}
