//! The eBPF object inside this binary.

use tailcomb_common::ABI_VERSION;

/// The object as built by `build.rs`, at an address that ELF readers accept.
static OBJECT: &[u8] = {
    #[repr(C, align(32))]
    struct Aligned<B: ?Sized>(B);
    const ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/tailcomb-ebpf")));
    &ALIGNED.0
};

/// Why the object can't be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ObjectError {
    /// `build.rs` found no BPF toolchain.
    #[error("built without eBPF: run `cargo xtask setup`, then build again")]
    Missing,
    /// Both halves must come from one build.
    #[error("the eBPF object speaks ABI {found}, this agent speaks {ABI_VERSION}: build both from one checkout")]
    Abi {
        /// The object's version.
        found: u32,
    },
}

/// The object's bytes.
///
/// # Errors
/// [`ObjectError::Missing`] when the agent was built without the BPF toolchain.
pub fn bytes() -> Result<&'static [u8], ObjectError> {
    if OBJECT.is_empty() { Err(ObjectError::Missing) } else { Ok(OBJECT) }
}

/// Compares the object's ABI version (the size of its map `ABI`) with this agent's.
///
/// # Errors
/// [`ObjectError::Abi`] when they differ.
pub const fn check_abi(found: u32) -> Result<(), ObjectError> {
    if found == ABI_VERSION { Ok(()) } else { Err(ObjectError::Abi { found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_abi_is_refused_by_name() {
        assert_eq!(check_abi(ABI_VERSION), Ok(()));
        let error = check_abi(ABI_VERSION + 1).expect_err("another version");
        assert!(error.to_string().contains("build both from one checkout"), "{error}");
    }
}
