//! Counters and histograms of a series: a device and operation.
//!
//! They lie in arrays, where a look-up is a few instructions, and are found by open addressing: the series' places are tried in
//! turn. A hash map says whose a place is, because only there can two CPUs not take the same one; it is asked once a shard.

use core::arch::asm;

use aya_ebpf::{
    Global,
    bindings::BPF_NOEXIST,
    helpers::bpf_get_smp_processor_id,
    macros::map,
    maps::{Array, HashMap},
};
use tailcomb_common::{
    block::{self, Count, Latency, MAX_SERIES, PLACES, SHARDS},
    bucket::{self, KERNEL_OVERFLOW},
    lost::BLOCK_MAP_FULL,
};

use crate::lost;

/// Series by slot: an entry exists from the series' first request on.
#[map]
static BLOCK_SLOT: HashMap<u32, u64> = HashMap::with_max_entries(MAX_SERIES, 0);

/// Read each second. By slot and shard, as many as the loader finds CPUs for.
#[map]
static BLOCK_COUNT: Array<Count> = Array::with_max_entries(MAX_SERIES * SHARDS, 0);

/// Read where `completed` moved. By slot and shard, likewise.
#[map]
static BLOCK_LATENCY: Array<Latency> = Array::with_max_entries(MAX_SERIES * SHARDS, 0);

/// How many shards there are: a power of two.
#[unsafe(no_mangle)]
static BLOCK_SHARDS: Global<u32> = Global::new(SHARDS);

/// Position of this CPU's shard of a slot in both arrays.
#[inline(always)]
fn position(slot: u32) -> u32 {
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    slot * BLOCK_SHARDS.load() + (cpu & (BLOCK_SHARDS.load() - 1))
}

/// This shard's counters in `slot`, if it marked them as those of `series`.
#[inline(always)]
fn at(slot: u32, series: u64) -> Option<*mut Count> {
    let counters = BLOCK_COUNT.get_ptr_mut(position(slot))?;
    // SAFETY: a value of BLOCK_COUNT.
    (unsafe { (*counters).series } == series).then_some(counters)
}

/// The same, if `slot` is that of `series`; marks them: the first time in a shard.
#[inline(always)]
fn mark(slot: u32, series: u64) -> Option<*mut Count> {
    // SAFETY: the value is one word that is written once.
    if unsafe { BLOCK_SLOT.get(&slot) } != Some(&series) {
        return None;
    }
    let counters = BLOCK_COUNT.get_ptr_mut(position(slot))?;
    // SAFETY: a value of BLOCK_COUNT. Whoever writes here meanwhile writes the same.
    unsafe { (*counters).series = series };
    Some(counters)
}

/// The counters of a series that got `slot`; `None` where its device is gone since, and another has the slot.
#[inline(always)]
pub(super) fn counters(slot: u32, series: u64) -> Option<*mut Count> {
    at(slot, series).or_else(|| mark(slot, series))
}

/// Slot and counters of `series`, which gets its place where it has none; `None` is counted as lost.
#[inline(always)]
pub(super) fn find(series: u64) -> Option<(u32, *mut Count)> {
    let mut n = 0;
    while n < PLACES {
        let slot = block::place(series, n);
        if let Some(counters) = at(slot, series) {
            return Some((slot, counters));
        }
        n += 1;
    }
    claim(series)
}

#[inline(always)]
fn claim(series: u64) -> Option<(u32, *mut Count)> {
    let mut n = 0;
    while n < PLACES {
        let slot = block::place(series, n);
        // Fails where the slot is taken: by another series, or by this one in another shard.
        let _ = BLOCK_SLOT.insert(&slot, &series, u64::from(BPF_NOEXIST));
        if let Some(counters) = mark(slot, series) {
            return Some((slot, counters));
        }
        n += 1;
    }
    lost::count(BLOCK_MAP_FULL);
    None
}

/// The histograms beside the counters in `slot`.
#[inline(always)]
pub(super) fn histograms(slot: u32) -> Option<*mut Latency> {
    BLOCK_LATENCY.get_ptr_mut(position(slot))
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

/// Counts one value of `ns` in a phase.
///
/// # Safety
/// `latency` must point to a map value, and `phase` be below `PHASES`.
#[inline(always)]
pub(super) unsafe fn record(latency: *mut Latency, phase: usize, ns: u64) {
    let mut slot = bucket::kernel_slot(ns) as u64;
    // The compiler knows the bound and drops a test for it; the verifier does not know it. So the compiler has to forget.
    // SAFETY: a register is masked with more than it can hold.
    unsafe { asm!("{0} &= 0xff", inout(reg) slot, options(pure, nomem, nostack)) };
    if slot > KERNEL_OVERFLOW as u64 {
        slot = KERNEL_OVERFLOW as u64;
    }
    // SAFETY: the caller's promise, and `slot` is within `counts`.
    unsafe {
        add((&raw mut (*latency).counts[phase]).cast::<u64>().add(slot as usize), 1);
        add(&raw mut (*latency).sum_ns[phase], ns);
        if (*latency).max_ns[phase] < ns {
            (*latency).max_ns[phase] = ns;
        }
    }
}
