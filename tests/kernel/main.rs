//! Tests on a running kernel: real loads, real disks, real sockets. The same binary, linked statically, runs on the kernels
//! of the matrix (`cargo xtask test`).

mod block;
mod load;
mod socket;
mod targets;

use std::process::ExitCode;

fn main() -> ExitCode {
    if targets::serve_if_told() {
        return ExitCode::SUCCESS;
    }
    if let Err(error) = socket::serve_if_told() {
        eprintln!("the server of a case: {error:#}");
        return ExitCode::FAILURE;
    }
    tailcomb_tests::case::run(&[load::CASES.to_vec(), block::cases(), targets::CASES.to_vec(), socket::cases()].concat())
}
