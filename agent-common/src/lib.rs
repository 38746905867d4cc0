//! What tailcomb's kernel and user halves share.
//!
//! Everything here is `no_std`, has no padding that is not named, and holds only integers: a shared `bool`, `char`, enum or
//! `Option` could be given a value it must not have, by the other side.
#![cfg_attr(not(test), no_std)]

pub mod block;
pub mod bucket;
pub mod http1;
pub mod lost;
pub mod socket;

/// Version of everything in this crate. The eBPF object carries it in its map `ABI`; the agent refuses an object with another.
/// Raise it with every change of a record, a map value or a meaning.
pub const ABI_VERSION: u32 = 1;

/// Marks a type as plain memory for aya's maps (user side only) and checks its size at compile time.
macro_rules! shared {
    ($type:ty, $size:expr) => {
        const _: () = assert!(core::mem::size_of::<$type>() == $size, "size of a shared record moved: raise ABI_VERSION");
        #[cfg(feature = "user")]
        #[expect(unsafe_code, reason = "aya's marker for map values")]
        // SAFETY: the type is `repr(C)`, Copy, made of integers only, with every padding byte named.
        unsafe impl aya::Pod for $type {}
    };
}
pub(crate) use shared;
