//! tailcomb's agent: see ARCHITECTURE.md for the way a sample takes.

pub mod attribute;
pub mod decode;
pub mod kernel;
pub mod probes;
