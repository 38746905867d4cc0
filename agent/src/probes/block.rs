//! The `block` probe, user side.

use tailcomb_common::{block, bucket::KERNEL_SLOTS};

use super::table::{Attach, Need, Probe, Program, argument, field};

const ISSUE: &[Need] = &[argument("BLOCK_RQ_ISSUE_RQ", "block_rq_issue", "request"), field("REQUEST_Q", &["request.q"])];

/// The probe's row in the table.
pub(crate) const PROBE: Probe = Probe {
    name: "block",
    required: true,
    shows: "disk latency by device, operation and phase",
    programs: &[Program {
        name: "block_rq_issue",
        attach: Attach::Btf("block_rq_issue"),
        needs: ISSUE,
        one_of: &[],
        unless: None,
        core: true,
    }],
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
