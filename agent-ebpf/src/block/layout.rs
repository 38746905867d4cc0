//! Fields of `struct request`, `struct bio` and what they point to, read through the typed pointers that `tp_btf` gives.
//!
//! The verifier knows the types behind the arguments of a BTF tracepoint, so a field is one load that can't fault instead of a
//! call of `bpf_probe_read_kernel`. It accepts that only at a constant offset: the offsets are globals in `.rodata`.

use core::{arch::asm, ptr};

use aya_ebpf::{EbpfContext, Global, programs::BtfTracePointContext};
use tailcomb_common::block::{DISCARD, OTHER, READ, WRITE};

use crate::kernel::ABSENT;

/// A global that the loader sets (`agent/src/probes/block.rs`).
macro_rules! from_btf {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        static $name: Global<u32> = Global::new(ABSENT);
    )*};
}
from_btf! {
    REQUEST_Q REQUEST_DISK QUEUE_DISK REQUEST_FLAGS REQUEST_LEN REQUEST_SECTOR REQUEST_BIO
    BIO_FLAGS BIO_NEXT BIO_PRIVATE BIO_DISK BIO_BDEV BDEV_DISK DISK_MAJOR DISK_MINOR
    OP_BITS OP_READ OP_WRITE OP_FLUSH OP_DISCARD OP_ERASE OP_APPEND OP_DRV_IN OP_DRV_OUT OP_SCSI_IN OP_SCSI_OUT
}

/// A `u64` argument of a tracepoint at a position that is known here.
///
/// In assembly, because a load that the compiler moves behind the choice of a position would have a variable offset into the
/// context, which the verifier of 5.10 refuses.
macro_rules! load_argument {
    ($ctx:expr, $offset:literal) => {{
        let value: u64;
        // SAFETY: the context of a BTF tracepoint is an array of its arguments; the verifier checks its bounds.
        unsafe { asm!(concat!("{0} = *(u64 *)({1} + ", $offset, ")"), out(reg) value, in(reg) $ctx.as_ptr(), options(readonly, nostack)) };
        value
    }};
}

/// The argument at the position that the loader found; the verifier drops the other branches.
#[inline(always)]
pub(super) fn argument(ctx: &BtfTracePointContext, position: &Global<u32>) -> *const u8 {
    let address = match position.load() {
        0 => load_argument!(ctx, 0),
        1 => load_argument!(ctx, 8),
        _ => load_argument!(ctx, 16),
    };
    address as *const u8
}

/// `(error, nr_bytes)` of `block_rq_complete`: the two arguments behind the request.
#[inline(always)]
pub(super) fn outcome(ctx: &BtfTracePointContext, position: &Global<u32>) -> (bool, u32) {
    let (error, bytes) = match position.load() {
        0 => (load_argument!(ctx, 8), load_argument!(ctx, 16)),
        _ => (load_argument!(ctx, 16), load_argument!(ctx, 24)),
    };
    // `int` or `blk_status_t`: both are 0 where all went well, and neither fills more than the low 32 bits.
    (error as u32 != 0, bytes as u32)
}

/// A field of the struct at `base`.
///
/// `base` must be a pointer the verifier knows the type of: an argument, or a field read by this function.
#[inline(always)]
fn field<T: Copy>(base: *const u8, offset: &Global<u32>) -> T {
    // SAFETY: the verifier accepts the load only inside the struct; a bad address reads as 0 rather than fault.
    unsafe { ptr::read_volatile(base.add(offset.load() as usize).cast::<T>()) }
}

/// `struct request *`
#[derive(Clone, Copy)]
pub(super) struct Request(pub(super) *const u8);

impl Request {
    pub(super) fn address(self) -> u64 {
        self.0 as u64
    }

    #[inline(always)]
    pub(super) fn kind(self) -> Kind {
        kind(field(self.0, &REQUEST_FLAGS))
    }

    /// Bytes that are still to complete.
    #[inline(always)]
    pub(super) fn bytes(self) -> u32 {
        field(self.0, &REQUEST_LEN)
    }

    #[inline(always)]
    pub(super) fn sector(self) -> u64 {
        field(self.0, &REQUEST_SECTOR)
    }

    #[inline(always)]
    pub(super) fn bio(self) -> Bio {
        Bio(field(self.0, &REQUEST_BIO))
    }

    /// Number of the whole disk; `None` for a request without a disk.
    #[inline(always)]
    pub(super) fn device(self) -> Option<u32> {
        let disk: *const u8 = if REQUEST_DISK.load() != ABSENT {
            field(self.0, &REQUEST_DISK)
        } else {
            let queue: *const u8 = field(self.0, &REQUEST_Q);
            if queue.is_null() {
                return None;
            }
            field(queue, &QUEUE_DISK)
        };
        number(disk)
    }
}

/// `struct bio *`
#[derive(Clone, Copy)]
pub(super) struct Bio(pub(super) *const u8);

impl Bio {
    pub(super) fn address(self) -> u64 {
        self.0 as u64
    }

    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    #[inline(always)]
    pub(super) fn kind(self) -> Kind {
        kind(field(self.0, &BIO_FLAGS))
    }

    /// For a bio that was split off: the one it was split from.
    #[inline(always)]
    pub(super) fn private(self) -> u64 {
        field(self.0, &BIO_PRIVATE)
    }

    #[inline(always)]
    pub(super) fn next(self) -> Self {
        Self(field(self.0, &BIO_NEXT))
    }

    /// Number of the whole disk.
    #[inline(always)]
    pub(super) fn device(self) -> Option<u32> {
        let disk: *const u8 = if BIO_DISK.load() != ABSENT {
            field(self.0, &BIO_DISK)
        } else {
            let partition: *const u8 = field(self.0, &BIO_BDEV);
            if partition.is_null() {
                return None;
            }
            field(partition, &BDEV_DISK)
        };
        number(disk)
    }
}

/// `major << 20 | first_minor` of a `struct gendisk *`.
#[inline(always)]
fn number(disk: *const u8) -> Option<u32> {
    if disk.is_null() {
        return None;
    }
    let major: u32 = field(disk, &DISK_MAJOR);
    let minor: u32 = field(disk, &DISK_MINOR);
    Some(major << 20 | minor)
}

/// What a request or a bio is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An I/O, with its operation as in `Key`.
    Data(u8),
    /// A FLUSH request of the flush machinery.
    Flush,
    /// A driver's own command: not counted, as in `/sys/block/*/stat`.
    Passthrough,
}

#[inline(always)]
fn kind(flags: u32) -> Kind {
    let op = flags & ((1 << (OP_BITS.load() & 31)) - 1);
    if op == OP_READ.load() {
        Kind::Data(READ)
    } else if op == OP_WRITE.load() || op == OP_APPEND.load() {
        Kind::Data(WRITE)
    } else if op == OP_FLUSH.load() {
        Kind::Flush
    } else if op == OP_DISCARD.load() || op == OP_ERASE.load() {
        Kind::Data(DISCARD)
    } else if op == OP_DRV_IN.load() || op == OP_DRV_OUT.load() || op == OP_SCSI_IN.load() || op == OP_SCSI_OUT.load() {
        Kind::Passthrough
    } else {
        Kind::Data(OTHER)
    }
}
