//! Describes one read of the agent itself, so that it can compare what it asked for with what the probe saw.

use aya_ebpf::{helpers::bpf_get_current_pid_tgid, macros::map, maps::Array};
use tailcomb_common::block::{READ, RequestState, SELF_TEST, SelfTest};

use super::layout::Request;

#[map]
static BLOCK_SELFTEST: Array<SelfTest> = Array::with_max_entries(1, 0);

/// Writes down the request if it is the read that the self-test waits for.
#[inline(always)]
pub(super) fn describe(request: Request, device: u32, operation: u8) -> bool {
    let Some(test) = BLOCK_SELFTEST.get_ptr_mut(0) else { return false };
    // SAFETY: the value is written here by one task only, the self-test's own.
    let test = unsafe { &mut *test };
    if test.tgid == 0 || operation != READ || test.state != 0 || test.tgid != (bpf_get_current_pid_tgid() >> 32) as u32 {
        return false;
    }
    test.device = device;
    test.sector = request.sector();
    test.bytes = u64::from(request.bytes());
    test.state = 1;
    true
}

/// That read completed.
#[inline(always)]
pub(super) fn completed(done: &RequestState) {
    if done.flags & SELF_TEST != 0
        && let Some(test) = BLOCK_SELFTEST.get_ptr_mut(0)
    {
        // SAFETY: one word, written here only.
        unsafe { (*test).state = 2 };
    }
}
