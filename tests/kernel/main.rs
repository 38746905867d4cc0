//! Tests on a running kernel: real loads, real disks, real sockets. The same binary, linked statically, runs on the kernels
//! of the matrix (`cargo xtask test`).

mod block;
mod load;
mod targets;

use std::process::ExitCode;

fn main() -> ExitCode {
    if targets::serve_if_told() {
        return ExitCode::SUCCESS;
    }
    tailcomb_tests::case::run(&[load::CASES, block::CASES, targets::CASES].concat())
}
