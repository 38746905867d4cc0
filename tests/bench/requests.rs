//! The agent at 1 000 requests a second.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use tailcomb_tests::agent::Agent;

use crate::{Effort, load, program::Account};

const RATE: f64 = 1000.0;
const CONNECTIONS: u32 = 16;

/// CPU and memory of the agent, and what the probes cost a request.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn measure(effort: Effort) -> Result<String> {
    let server = load::Server::start()?;
    let agent = Agent::start(&["--target", &format!("pid:{}", server.pid())])?;
    load::drive(server.port, CONNECTIONS, RATE, Duration::from_secs(2))?;
    // First as it runs every day, without the account.
    let cpu_before = agent.cpu_time()?;
    let span = effort.span * 2;
    load::drive(server.port, CONNECTIONS, RATE, span)?;
    let cpu = agent.cpu_time()? - cpu_before;
    let share = cpu.as_secs_f64() / span.as_secs_f64() * 100.0;
    let memory = agent.resident_bytes()? as f64 / 1e6;
    let account = Account::open(agent.pid())?;
    let answered = load::drive(server.port, CONNECTIONS, RATE, effort.span)?;
    let usage = account.usage("socket");
    thread::sleep(Duration::from_secs(1));
    let counted = agent.counted("http_server_request_duration_seconds_count")?;
    ensure!(counted > 0.0, "the agent counted no request");
    Ok(format!(
        "## {RATE:.0} requests a second\n\nagent: {share:.2} % of a core, {memory:.1} MB resident; {counted:.0} requests counted\n\n{}",
        usage.table(answered, "request")
    ))
}
