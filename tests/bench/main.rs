//! What tailcomb costs, in figures: `cargo xtask bench`.
//!
//! Everything is compared within one run, with the agent and without it by turns; medians with the range beside them. These
//! are figures to print and to read, no test asserts them.

mod disk;
mod load;
mod probe;
mod program;
mod requests;
mod scan;
mod syscalls;

use std::time::Duration;

use anyhow::{Result, bail};

/// How long the parts run.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// Alternations of with and without.
    pub rounds: usize,
    /// Length of one measurement.
    pub span: Duration,
}

/// One part of the figures, as text.
type Measure = fn(Effort) -> Result<String>;

/// Every part, in the order in which they are printed.
const PARTS: [(&str, Measure); 5] = [
    ("syscalls", syscalls::measure),
    ("requests", requests::measure),
    ("probe", probe::measure),
    ("disk", disk::measure),
    ("scan", scan::measure),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The server of the load runs in a process of its own, as a target does.
    if let [role, port] = arguments.as_slice()
        && role == "--serve"
    {
        return load::serve(port.parse()?);
    }
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let chosen: Vec<&str> = arguments.iter().map(String::as_str).filter(|argument| *argument != "--quick").collect();
    if let Some(unknown) = chosen.iter().find(|name| PARTS.iter().all(|(part, _)| part != *name)) {
        bail!(
            "unknown argument {unknown}; usage: cargo xtask bench [--quick] [PART]…, with the parts {}",
            PARTS.map(|(name, _)| name).join(", ")
        );
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("the benchmark loads eBPF programs: run it as root");
    }
    let effort = if quick {
        Effort { rounds: 3, span: Duration::from_secs(3) }
    } else {
        Effort { rounds: 9, span: Duration::from_secs(10) }
    };
    for (name, measure) in PARTS {
        if chosen.is_empty() || chosen.contains(&name) {
            println!("{}", measure(effort)?);
        }
    }
    Ok(())
}

/// Median of the values, with the least and the greatest: `12.3 (11.9 … 14.0)`.
pub(crate) fn summary(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    let (Some(least), Some(greatest)) = (values.first(), values.last()) else { return "none".to_owned() };
    format!("{:.1} ({least:.1} … {greatest:.1})", median(values))
}

/// Median of sorted values.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}
