//! Counters and histograms of a device and operation.

use core::arch::asm;

use aya_ebpf::{
    bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST},
    helpers::bpf_get_smp_processor_id,
    macros::map,
    maps::{Array, HashMap},
};
use tailcomb_common::{
    block::{Count, Histogram, Key, Latency, MAX_KEYS, SHARDS},
    bucket::{self, KERNEL_OVERFLOW},
    lost::BLOCK_MAP_FULL,
};

use crate::lost;

/// Read each second; a key exists from the first request on.
#[map]
static BLOCK_COUNT: HashMap<Key, Count> = HashMap::with_max_entries(MAX_KEYS, BPF_F_NO_PREALLOC);

/// Allocated on the first completion of its key, because a value is 7 KiB.
#[map]
static BLOCK_LATENCY: HashMap<Key, Latency> = HashMap::with_max_entries(MAX_KEYS, BPF_F_NO_PREALLOC);

/// What a new `BLOCK_LATENCY` value is copied from: too large for the stack. Never written.
#[map]
static BLOCK_ZERO: Array<Latency> = Array::with_max_entries(1, 0);

/// The key of this CPU's shard.
#[inline(always)]
pub(super) fn key(device: u32, operation: u8) -> Key {
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    Key { device, operation, shard: (cpu & (SHARDS - 1)) as u8, padding: 0 }
}

/// The counters of `key`, made where they are missing; `None` is counted as lost.
#[inline(always)]
pub(super) fn counters(key: &Key) -> Option<*mut Count> {
    if let Some(found) = BLOCK_COUNT.get_ptr_mut(key) {
        return Some(found);
    }
    // Another CPU may have made it meanwhile: then this fails and the look-up finds that one.
    let _ = BLOCK_COUNT.insert(key, &Count::default(), u64::from(BPF_NOEXIST));
    let made = BLOCK_COUNT.get_ptr_mut(key);
    if made.is_none() {
        lost::count(BLOCK_MAP_FULL);
    }
    made
}

/// The histograms of `key`, made where they are missing; `None` is counted as lost.
#[inline(always)]
pub(super) fn histograms(key: &Key) -> Option<*mut Latency> {
    if let Some(found) = BLOCK_LATENCY.get_ptr_mut(key) {
        return Some(found);
    }
    if let Some(zero) = BLOCK_ZERO.get(0) {
        let _ = BLOCK_LATENCY.insert(key, zero, u64::from(BPF_NOEXIST));
    }
    let made = BLOCK_LATENCY.get_ptr_mut(key);
    if made.is_none() {
        lost::count(BLOCK_MAP_FULL);
    }
    made
}

/// Adds to a counter that other CPUs add to as well.
///
/// # Safety
/// `counter` must point into a map value.
#[inline(always)]
pub(super) unsafe fn add(counter: *mut u64, by: u64) {
    // SAFETY: the caller's promise; without a fetched result this is BPF_XADD, which every kernel of interest has.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) by, options(nostack)) };
}

/// Counts one value of `ns`.
///
/// # Safety
/// `histogram` must point into a map value.
#[inline(always)]
pub(super) unsafe fn record(histogram: *mut Histogram, ns: u64) {
    let mut slot = bucket::kernel_slot(ns) as u64;
    // The compiler knows the bound and drops a test for it; the verifier does not know it. So the compiler has to forget.
    // SAFETY: a register is masked with more than it can hold.
    unsafe { asm!("{0} &= 0xff", inout(reg) slot, options(pure, nomem, nostack)) };
    if slot > KERNEL_OVERFLOW as u64 {
        slot = KERNEL_OVERFLOW as u64;
    }
    // SAFETY: the caller's promise, and `slot` is within `counts`.
    unsafe {
        add((&raw mut (*histogram).counts).cast::<u64>().add(slot as usize), 1);
        add(&raw mut (*histogram).sum_ns, ns);
        if (*histogram).max_ns < ns {
            (*histogram).max_ns = ns;
        }
    }
}
