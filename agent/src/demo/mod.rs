//! The demo's workload: a little inference server, its clients, and a metrics writer that flushes to the same disk.
//!
//! All of it is real: sockets, HTTP, disk reads that wait, writes that are synced. Only the model is missing: its time to
//! compute is slept, drawn from a seeded distribution. It runs in three processes of its own (`demo-server`, `demo-load`,
//! `demo-metrics`: this binary under other names), so that the agent that measures them is not among them.
//!
//! | file | what |
//! |---|---|
//! | `place.rs` | which folder: it must lie on a real disk |
//! | `index.rs` | the file that the server reads past the page cache, block after block |
//! | `server.rs`, `timing.rs` | the server and the times it takes |
//! | `load.rs`, `client.rs` | arrivals at their own pace, and one request as a client sees it |
//! | `flusher.rs` | the metrics writer |
//! | `role.rs`, `worker.rs` | the processes, from the inside and from the outside |
//! | `truth.rs` | what the clients and the writer saw: the figures to compare the agent's with |
//! | `workload.rs` | the whole, for the command and for tests |
//!
//! No file has a name for longer than it takes to open it: the kernel removes them however a process ends.

mod client;
mod flusher;
mod index;
mod load;
pub mod place;
pub mod report;
pub mod role;
mod server;
mod timing;
pub mod truth;
mod worker;
pub mod workload;

pub use workload::{DemoError, Options, Running, Workload};
