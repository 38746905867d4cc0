//! The agent as a whole, as its users meet it: its binary, its port, a real Prometheus.

mod commands;
mod crowd;
mod demo;
mod edges;
mod ends;
mod exposition;
mod faults;
mod prometheus;
mod schema;
mod scraped;
mod served;
mod traffic;
mod whole;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Err(error) = tailcomb_tests::child::serve_if_told(traffic::script) {
        eprintln!("the server of a case: {error:#}");
        return ExitCode::FAILURE;
    }
    match edges::be_if_told() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the server of a case: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    tailcomb_tests::case::run(
        &[
            scraped::CASES,
            exposition::CASES,
            commands::CASES,
            faults::CASES,
            whole::CASES,
            ends::CASES,
            crowd::CASES,
            edges::CASES,
            demo::CASES,
        ]
        .concat(),
    )
}
