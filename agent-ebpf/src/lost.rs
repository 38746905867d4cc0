//! Counts what was seen and not counted. Positions and labels: `tailcomb_common::lost`.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use tailcomb_common::lost::REASONS;

#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(REASONS.len() as u32, 0);

/// One more lost sample of the reason at `position`.
#[inline(always)]
pub(crate) fn count(position: u32) {
    count_many(position, 1);
}

/// So many more of them.
#[inline(always)]
pub(crate) fn count_many(position: u32, more: u64) {
    #[cfg(feature = "log")]
    diagnose(position);
    if let Some(counter) = LOST.get_ptr_mut(position) {
        // SAFETY: the value belongs to this CPU, and programs do not preempt one another in the middle of an addition
        // often enough to matter: at worst one lost sample is counted once instead of twice.
        unsafe { *counter += more };
    }
}

/// Says so in the agent's log. Not inlined: the text and its framing are verified apart from the caller.
#[cfg(feature = "log")]
#[inline(never)]
fn diagnose(position: u32) {
    aya_log_ebpf::debug!((), "lost a sample, reason {}", position);
}
