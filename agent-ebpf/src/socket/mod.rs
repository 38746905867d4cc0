//! The `socket` probe: HTTP/1.1 requests as their servers see them. See `docs/probes/socket.md`.
//!
//! | file | what |
//! |---|---|
//! | `programs.rs` | hooks of kernels that have `sock_recv_length` and `sock_send_length` (6.3 and later) |
//! | `legacy.rs` | the same on kernels without them: enter and exit of the system calls |
//! | `lifecycle.rs` | connections and processes come and go |
//! | `call.rs` | one system call that moved bytes: whose it is, where its bytes lie |
//! | `scan.rs` | the byte machine walked over those bytes |
//! | `marks.rs` | what the machine said becomes marks, and marks a record |
//! | `loss.rs` | what is not measured |
//! | `position.rs` | bytes that moved unseen |
//! | `arrival.rs` | when bytes became readable |
//! | `state.rs` | maps and their values |

mod arrival;
mod call;
mod legacy;
mod lifecycle;
mod loss;
mod marks;
mod position;
mod programs;
mod scan;
mod state;
