//! The agent as a whole, as its users meet it: its binary, its port, a real Prometheus.

mod commands;
mod exposition;
mod faults;
mod prometheus;
mod schema;
mod scraped;
mod served;

use std::process::ExitCode;

fn main() -> ExitCode {
    tailcomb_tests::case::run(&[scraped::CASES, exposition::CASES, commands::CASES, faults::CASES].concat())
}
