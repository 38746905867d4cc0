//! The `socket` probe on this kernel: records against the clocks of a server and of its client.
//!
//! This process is server and client at once, and a target: that the client's side is never measured is part of every case.

mod endings;
mod framing;
mod limits;
mod observer;
mod streams;
mod undecoded;
mod unseen;

use tailcomb_tests::case::Case;

pub(crate) use observer::serve_if_told;

pub(crate) fn cases() -> Vec<Case> {
    [streams::CASES, framing::CASES, limits::CASES, endings::CASES, undecoded::CASES, unseen::CASES].concat()
}
