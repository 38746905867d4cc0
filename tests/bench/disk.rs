//! The agent at the disk's full speed.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use tailcomb_tests::agent::Agent;

use crate::{Effort, median, program::Account, summary};

const FILE_BYTES: u64 = 256 << 20;
const BLOCK: usize = 4096;
const THREADS: u64 = 8;

/// I/Os a second with and without, the agent's CPU, and what the probes cost an I/O.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn measure(effort: Effort) -> Result<String> {
    let folder = std::env::var_os("TAILCOMB_TEST_DISK").map_or_else(|| std::path::PathBuf::from("."), Into::into);
    let file = tempfile::NamedTempFile::new_in(&folder).context("a file for the load")?;
    fill(file.path())?;
    let (mut without, mut with, mut ratios, mut shares) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let span = effort.span / 2;
    for _ in 0..effort.rounds {
        let off = reads(file.path(), span)? as f64 / span.as_secs_f64();
        let agent = Agent::start(&["--target", "port:1"])?;
        let cpu_before = agent.cpu_time()?;
        let on = reads(file.path(), span)? as f64 / span.as_secs_f64();
        shares.push((agent.cpu_time()? - cpu_before).as_secs_f64() / span.as_secs_f64() * 100.0);
        without.push(off);
        with.push(on);
        ratios.push(on / off);
    }
    let agent = Agent::start(&["--target", "port:1"])?;
    let account = Account::open(agent.pid())?;
    let operations = reads(file.path(), span)?;
    let usage = account.usage("block");
    drop(agent);
    ratios.sort_by(f64::total_cmp);
    Ok(format!(
        "## Direct 4 KiB reads at full speed, {THREADS} threads\n\nI/Os a second: {} without, {} with, ratio {:.3}; agent: {} % of a core\n\n{}",
        summary(&mut without),
        summary(&mut with),
        median(&ratios),
        summary(&mut shares),
        usage.table(operations, "I/O")
    ))
}

fn fill(path: &Path) -> Result<()> {
    let mut file = File::options().write(true).open(path)?;
    let block = vec![0x5au8; 1 << 20];
    for _ in 0..FILE_BYTES / block.len() as u64 {
        file.write_all(&block)?;
    }
    file.sync_all().context("writing the load's file")
}

/// A page-aligned block: O_DIRECT wants its buffers aligned.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

/// Reads at scattered places for `span`; how many.
fn reads(path: &Path, span: Duration) -> Result<u64> {
    let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|seed| {
                let (stop, total) = (&stop, &total);
                scope.spawn(move || -> Result<()> {
                    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_DIRECT).open(path).context("O_DIRECT")?;
                    let mut block = Box::new(Aligned([0; BLOCK]));
                    let mut state = seed + 1;
                    while !stop.load(Ordering::Relaxed) {
                        // A linear congruential generator: enough to scatter.
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let place = (state >> 20) % (FILE_BYTES / BLOCK as u64) * BLOCK as u64;
                        file.read_exact_at(&mut block.0, place)?;
                        total.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        thread::sleep(span);
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| anyhow::anyhow!("a reader panicked"))?)
    })?;
    Ok(total.load(Ordering::Relaxed))
}
