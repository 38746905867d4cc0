//! What the agent shows: metrics for Prometheus, JSON for people and tools.
//!
//! [`catalogue`] lists every metric as data, [`collector`] fills them from the store, [`http`] serves them.

pub mod access;
pub mod api;
pub mod catalogue;
pub mod collector;
pub mod http;
pub mod native;
pub mod negotiate;
pub mod page;
pub mod parameters;
mod places;
pub mod process;
pub mod serve;

#[cfg(test)]
mod tests;
