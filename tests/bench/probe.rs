//! What the `socket` probe costs a request, by its own programs alone: whatever else is loaded on this machine does not count.

use std::{
    collections::BTreeSet,
    fmt::Write,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use aya::{Ebpf, sys::Stats};
use tailcomb::probes::{
    loader::{self, Options},
    socket::SocketProbe,
    table::PROBES,
};

use crate::{Effort, load, program::runs};

/// A table: a request after the other on one connection (everything is in the caches), and 1 000 a second on 16.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn measure(effort: Effort) -> Result<String> {
    let _switch = aya::sys::enable_stats(Stats::RunTime).context("switching bpf_stats on")?;
    let server = load::Server::start()?;
    let mut loaded = loader::load(&Options::default())?;
    ensure!(loaded.is_attached("socket"), "not attached: {:?}", loaded.verdicts);
    let mut probe = SocketProbe::new(&mut loaded.ebpf)?;
    probe.targets().add_process(server.pid(), true)?;
    probe.targets().add_port(server.port, false)?;
    let own = own(&loaded.ebpf);
    let mut text = format!("## Probe time a request, head of {} bytes\n\n", load::HEAD_BYTES);
    for (name, connections, rate) in [("one after the other", 1, f64::INFINITY), ("1000 a second", 16, 1000.0)] {
        // The first of each finds nothing in place.
        load::drive(server.port, connections, rate, Duration::from_millis(300))?;
        drain(&mut probe)?;
        let (before, begun) = (runs(&own), Instant::now());
        let answered = load::drive(server.port, connections, rate, effort.span)?;
        let passed = begun.elapsed();
        let after = runs(&own);
        drain(&mut probe)?;
        let _ = writeln!(
            text,
            "{name}, {:.0} a second\n\n| program | runs a request | ns a run |\n|---|---:|---:|",
            answered as f64 / passed.as_secs_f64()
        );
        let (mut all_ns, mut all_runs) = (0.0, 0.0);
        for (name, (time, count)) in &after {
            let (time_before, count_before) = before.get(name).copied().unwrap_or_default();
            let (ns, count) = ((*time - time_before).as_nanos() as f64, (count - count_before) as f64);
            if count / answered as f64 > 0.1 {
                let _ = writeln!(text, "| `{name}` | {:.2} | {:.0} |", count / answered as f64, ns / count);
                all_ns += ns / answered as f64;
                all_runs += count / answered as f64;
            }
        }
        let _ = writeln!(
            text,
            "| **all** | {all_runs:.2} | **{all_ns:.0} ns a request**, {:.0} of them the account's |\n",
            all_runs * 31.0
        );
    }
    Ok(text)
}

/// The records go nowhere, but a full ring would cost something else than one with room.
fn drain(probe: &mut SocketProbe) -> Result<()> {
    while probe.drain(1024, |_| {}).more {}
    Ok(())
}

fn own(ebpf: &Ebpf) -> BTreeSet<u32> {
    let names = PROBES.iter().filter(|probe| probe.name == "socket").flat_map(|probe| probe.programs);
    names.filter_map(|program| Some(ebpf.program(program.name)?.info().ok()?.id())).collect()
}
