//! What the kernel tests and the end-to-end tests share: cases, and what they need of the machine.

pub mod agent;
pub mod case;
pub mod child;
pub mod disk;
pub mod http;
