//! Reading kernel memory at offsets that the loader set.

use aya_ebpf::{Global, helpers::bpf_probe_read_kernel};

/// Value of an offset that this kernel does not have.
pub(crate) const ABSENT: u32 = u32::MAX;

/// Reads a `T` at `base + offset`; `None` where that memory is not readable.
#[inline(always)]
pub(crate) fn read<T: Copy>(base: u64, offset: &Global<u32>) -> Option<T> {
    // SAFETY: bpf_probe_read_kernel checks the address and fails rather than fault.
    unsafe { bpf_probe_read_kernel((base + u64::from(offset.load())) as *const T) }.ok()
}
