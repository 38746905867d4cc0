//! tailcomb's kernel programs. One file or folder a probe; maps and globals stand beside the programs that use them.
//!
//! Offsets, enum values and argument positions are globals in `.rodata`, set by the loader from this kernel's BTF
//! (`agent/src/probes/table.rs` lists them): the verifier sees them as constants and drops what is not needed.
#![feature(asm_experimental_arch)]
#![no_std]
#![no_main]

mod block;
mod kernel;
mod lost;
mod socket;

use aya_ebpf::{macros::map, maps::Array};

/// The ABI version, in its `max_entries`: the agent reads it before it loads anything.
#[map]
static ABI: Array<u32> = Array::with_max_entries(tailcomb_common::ABI_VERSION, 0);

/// The kernel lets only GPL-compatible programs call some helpers; the object is under both licences.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
