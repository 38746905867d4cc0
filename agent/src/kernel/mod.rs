//! What this kernel and these privileges give.
//!
//! Asked by trying, never by version number: type layouts from BTF, tracepoint layouts from tracefs, privileges from the
//! process itself.

pub mod btf;
pub mod object;
pub mod privilege;
pub mod tracefs;
