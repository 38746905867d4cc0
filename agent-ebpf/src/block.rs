//! The `block` probe: see `docs/probes/block.md`.

use aya_ebpf::{
    Global,
    macros::{btf_tracepoint, map},
    maps::HashMap,
    programs::BtfTracePointContext,
};
use tailcomb_common::block::{Count, Key};

use crate::{kernel, lost};

#[unsafe(no_mangle)]
static BLOCK_RQ_ISSUE_RQ: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static REQUEST_Q: Global<u32> = Global::new(0);

#[map]
static BLOCK_COUNT: HashMap<Key, Count> = HashMap::with_max_entries(1024, 0);

#[btf_tracepoint(function = "block_rq_issue")]
fn block_rq_issue(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the loader set the position of the request among the arguments.
    let request: u64 = unsafe { if BLOCK_RQ_ISSUE_RQ.load() == 1 { ctx.arg(1) } else { ctx.arg(0) } };
    let queue: Option<u64> = kernel::read(request, &REQUEST_Q);
    if queue.is_none() {
        lost::count(tailcomb_common::lost::BLOCK_UNMATCHED);
    }
    let key = Key { device: 0, operation: 0, shard: 0, padding: 0 };
    let _ = BLOCK_COUNT.insert(&key, &Count::default(), 0);
    0
}
