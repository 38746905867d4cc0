//! The `block` probe: latency of block I/O by device, operation and phase. Definitions and costs: `docs/probes/block.md`.
//!
//! Hooks: BTF tracepoints only. One clock read a hook; the same stamp ends one phase and begins the next, so that the phases of
//! a request add up to its total exactly. Oldest kernel: 5.10.
//!
//! | file | does |
//! |---|---|
//! | `submit.rs` | a bio is queued, becomes a request, or is merged into one |
//! | `request.rs` | the state of a request; it is issued, given back, merged away, completed |
//! | `task.rs` | which bio a task queued, and when |
//! | `count.rs` | counters and histograms |
//! | `selftest.rs` | describes one read of the agent's own |
//! | `layout.rs` | fields of the kernel's structs |

mod count;
mod layout;
mod request;
mod selftest;
mod submit;
mod task;
