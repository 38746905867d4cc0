//! The probes: what is hooked, whether it holds, and what it brings.
//!
//! [`table`] lists every program and what it needs of the kernel; [`resolve`] looks those needs up; [`loader`] loads and
//! attaches each program alone and gives it a [`verdict`].

pub mod block;
pub mod loader;
pub mod lost;
pub mod resolve;
pub mod run_time;
pub mod skipped;
pub mod socket;
pub mod table;
pub mod verdict;
