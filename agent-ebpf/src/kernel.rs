//! Reading kernel memory at offsets that the loader set, and what the verifier must be told.

use core::arch::asm;

use aya_ebpf::{Global, helpers::bpf_probe_read_kernel};

/// Value of an offset that this kernel does not have.
pub(crate) const ABSENT: u32 = u32::MAX;

/// Reads a `T` at `base + offset`; `None` where that memory is not readable.
#[inline(always)]
pub(crate) fn read<T: Copy>(base: u64, offset: &Global<u32>) -> Option<T> {
    // SAFETY: bpf_probe_read_kernel checks the address and fails rather than fault.
    unsafe { bpf_probe_read_kernel((base + u64::from(offset.load())) as *const T) }.ok()
}

/// Reads a `T` at an address; `None` where that memory is not readable.
#[inline(always)]
pub(crate) fn read_at<T: Copy>(address: u64) -> Option<T> {
    // SAFETY: as in `read`.
    unsafe { bpf_probe_read_kernel(address as *const T) }.ok()
}

/// `value & MASK`, by an instruction that the compiler can't drop: what it proves from the code around is not always proved
/// again by the verifier, above all not by that of 5.10.
#[inline(always)]
pub(crate) fn masked<const MASK: u64>(mut value: u64) -> u64 {
    // SAFETY: one register, no memory.
    unsafe { asm!("{0} &= {mask}", inout(reg) value, mask = const MASK, options(pure, nomem, nostack)) };
    value
}

/// Makes the compiler write everything back to map memory and read it again. The verifier follows constants in registers and
/// on the stack but not in map values: without this it would walk a loop once for each constant.
#[inline(always)]
pub(crate) fn forget() {
    // SAFETY: no instruction at all.
    unsafe { asm!("", options(nostack, preserves_flags)) };
}

/// `COUNT` turns, of which the compiler does not know how many they are: it does not unroll that loop. The verifier knows. (A real
/// instruction: an empty one would share its place with the next in the line information, which the kernel refuses.)
#[inline(always)]
pub(crate) fn turns<const COUNT: u64>() -> u64 {
    const { assert!(COUNT < 64) };
    masked::<63>(COUNT)
}

/// Eight bytes at any address of a map's value. The compiler would put them together one by one: BPF as such knows aligned
/// loads only, but the machines that run it here do not mind.
///
/// # Safety
/// `at` must point to eight bytes that may be read.
#[inline(always)]
pub(crate) unsafe fn eight(at: *const u8) -> u64 {
    let value;
    // SAFETY: the caller's.
    unsafe { asm!("{0} = *(u64 *)({1} + 0)", out(reg) value, in(reg) at, options(pure, readonly, nostack)) };
    value
}
