//! What the probes cost a process that they do not measure.

use std::{
    fs::File,
    hint::black_box,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::unistd::{getppid, read, write};
use tailcomb::probes::loader::{self, Options};

use crate::{Effort, median, summary};

/// ns a call of each kind.
#[derive(Clone, Copy, Default)]
struct Costs {
    read: f64,
    write: f64,
    other: f64,
}

/// A table of ns a call, with and without the probes.
pub(crate) fn measure(effort: Effort) -> Result<String> {
    let span = effort.span / 20;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        without.push(costs(span)?);
        let loaded = loader::load(&Options::default())?;
        with.push(costs(span)?);
        drop(loaded);
    }
    let mut text = String::from(
        "## A process that is not measured\n\n| call | without, ns | with, ns | added, ns |\n|---|---:|---:|---:|\n",
    );
    for (name, pick) in [
        ("read(/dev/zero), 1 byte", (|c: &Costs| c.read) as fn(&Costs) -> f64),
        ("write(/dev/null), 1 byte", |c| c.write),
        ("getppid()", |c| c.other),
    ] {
        let mut off: Vec<f64> = without.iter().map(pick).collect();
        let mut on: Vec<f64> = with.iter().map(pick).collect();
        // Neighbours in time are compared with each other.
        let mut added: Vec<f64> = off.iter().zip(&on).map(|(off, on)| on - off).collect();
        added.sort_by(f64::total_cmp);
        text.push_str(&format!("| {name} | {} | {} | {:+.0} |\n", summary(&mut off), summary(&mut on), median(&added)));
    }
    Ok(text)
}

fn costs(span: Duration) -> Result<Costs> {
    let zero = File::open("/dev/zero").context("/dev/zero")?;
    let null = File::options().write(true).open("/dev/null").context("/dev/null")?;
    let mut byte = [0u8; 1];
    Ok(Costs {
        read: ns_a_call(span, || black_box(read(zero.as_fd(), &mut byte)).is_ok()),
        write: ns_a_call(span, || black_box(write(null.as_fd(), &[0])).is_ok()),
        other: ns_a_call(span, || black_box(getppid()).as_raw() >= 0),
    })
}

/// The least of several batches: the one that was disturbed least.
fn ns_a_call(span: Duration, mut call: impl FnMut() -> bool) -> f64 {
    const BATCH: u32 = 20_000;
    let end = Instant::now() + span;
    let mut best = f64::INFINITY;
    while Instant::now() < end {
        let begun = Instant::now();
        for _ in 0..BATCH {
            assert!(call(), "the call under measurement failed");
        }
        best = best.min(begun.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH));
    }
    best
}
