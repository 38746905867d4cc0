//! tailcomb's agent: see ARCHITECTURE.md for the way a sample takes.

pub mod attribute;
pub mod cli;
pub mod clock;
pub mod config;
pub mod decode;
pub mod demo;
pub mod export;
pub mod guard;
pub mod kernel;
pub mod pipeline;
pub mod probes;
pub mod render;
pub mod store;
