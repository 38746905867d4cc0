//! What a scan for targets costs on a node with many processes: CPU time of the scanning thread.

use std::{
    fmt::Write,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use tailcomb::attribute::{
    scan::{InKernel, ROUNDS, Scanner, YOUNG},
    targets::Target,
};

use crate::{Effort, load::Server, summary};

/// Processes beside those that the machine has.
const PROCESSES: usize = 2_000;

/// Ended with this.
struct Crowd(Vec<Child>);

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // An error means that it ended already.
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// Scans for `auto` and for `port:` among [`PROCESSES`] idle processes.
pub(crate) fn measure(effort: Effort) -> Result<String> {
    let mut crowd = Crowd(Vec::with_capacity(PROCESSES));
    for _ in 0..PROCESSES {
        let mut command = Command::new("sleep");
        crowd.0.push(command.arg("3600").stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("starting `sleep`")?);
    }
    let server = Server::start()?;
    let mut text = format!(
        "## Scan for targets, {PROCESSES} more processes\n\n| target | first scan, ms of CPU | each scan after, ms of CPU: median (range) |\n|---|---:|---:|\n"
    );
    let targets = [
        ("`auto`", Target::Auto),
        ("`port:`", Target::Port(server.port)),
        ("`pid:` of the parent of all of them", Target::Pid(std::process::id())),
    ];
    for (name, target) in targets {
        let mut scanner = Scanner::new(vec![target])?;
        let mut kernel = InKernel::default();
        let mut cost = |kernel: &mut InKernel| -> Result<f64> {
            let before = cpu_ms()?;
            let changes = scanner.scan(kernel)?;
            let passed = cpu_ms()? - before;
            kernel.processes.extend(changes.added_processes);
            kernel.ports.extend(changes.added_ports.iter().map(|port| port.port));
            Ok(passed)
        };
        let first = cost(&mut kernel)?;
        for _ in 0..YOUNG {
            cost(&mut kernel)?;
        }
        let scans = effort.rounds.max(3) * ROUNDS as usize;
        let mut steady = (0..scans).map(|_| cost(&mut kernel)).collect::<Result<Vec<f64>>>()?;
        let _ = writeln!(text, "| {name} | {first:.1} | {} |", summary(&mut steady));
    }
    Ok(text)
}

fn cpu_ms() -> Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    Ok(time.tv_sec() as f64 * 1e3 + time.tv_nsec() as f64 / 1e6)
}
