//! Other kernels: boots Debian's kernels under emulation and runs the static test binary in them.

mod guest;
mod initramfs;
mod series;
mod verdict;

pub(crate) use guest::{Guest, Image};
pub(crate) use series::{Kernel, MATRIX, Series, Unavailable};
pub(crate) use verdict::Verdict;
