//! The kernel tests on the kernels of the matrix, two guests at a time.

use std::{
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    Tier,
    report::{Outcome, Step},
    tally::Tally,
};
use crate::{
    command::{on_path, say},
    vm::{Guest, Image, Kernel, MATRIX, Series, Unavailable, Verdict},
};

/// An emulated guest keeps a core busy.
const AT_ONCE: usize = 2;

/// Runs `tests` on the chosen kernels (all where `chosen` is empty).
pub(crate) fn run(tests: &Path, chosen: &[String], tier: Tier, cases: &[String]) -> Result<Vec<Step>> {
    if let Some(unknown) = chosen.iter().find(|name| MATRIX.iter().all(|series| series.name != name.as_str())) {
        bail!("no kernel {unknown} in the matrix; there are {}", MATRIX.map(|series| series.name).join(", "));
    }
    let wanted = MATRIX.iter().filter(|series| chosen.is_empty() || chosen.iter().any(|name| name == series.name));
    let image = match image(tests) {
        Ok(image) => image,
        Err(error) => return Ok(wanted.map(|series| step(series, Instant::now(), missing(&error))).collect()),
    };
    // A case prints its name before it runs and its outcome after: this is the longest one case may take, emulated.
    let silence = Duration::from_secs(if tier == Tier::Long { 1200 } else { 240 });
    let guest = Guest { image: &image, tier, cases, silence };
    let queue: Mutex<Vec<&Series>> = Mutex::new(wanted.rev().collect());
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(series) = queue.lock().unwrap_or_else(PoisonError::into_inner).pop() else { break };
                    let started = Instant::now();
                    let outcome = boot(series, &guest);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((series.name, step(series, started, outcome)));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(name, _)| MATRIX.iter().position(|series| series.name == *name));
    Ok(done.into_iter().map(|(_, step)| step).collect())
}

fn image(tests: &Path) -> Result<Image> {
    on_path("qemu-system-x86_64").context("qemu-system-x86_64 is not installed (package qemu-system-x86)")?;
    let busybox = on_path("busybox").context("busybox is not installed (package busybox-static)")?;
    Ok(Image { tests: fs::read(tests)?, busybox: fs::read(busybox)? })
}

fn missing(error: &anyhow::Error) -> Outcome {
    Outcome::Skipped { reason: format!("{error:#}"), required: true }
}

fn boot(series: &Series, guest: &Guest) -> Outcome {
    let kernel = match series.kernel() {
        Ok(kernel) => kernel,
        Err(Unavailable::NotServed(reason)) => return Outcome::Skipped { reason, required: false },
        Err(Unavailable::NotFetched(reason)) => return Outcome::Skipped { reason, required: true },
    };
    say(format!("booting kernel {}", series.name));
    let verdict = match run_guest(series, guest, &kernel) {
        Ok(verdict) => verdict,
        Err(error) => return Outcome::Failed(format!("{error:#}"), Tally::default()),
    };
    let mut text = format!("---- guest {} ({})\n", series.name, verdict.kernel.as_deref().unwrap_or("did not boot"));
    for note in &verdict.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push_str(verdict.output.trim());
    if let Some(failure) = &verdict.failure {
        text.push_str(&format!("\nFAILED: {failure}"));
    }
    // One call, so that two guests' lines don't mix.
    println!("{text}\n----");
    let nothing_ran = verdict.tally.passed == 0 && guest.cases.is_empty();
    match verdict.failure {
        Some(failure) => Outcome::Failed(failure, verdict.tally),
        None if nothing_ran => Outcome::Failed("no case ran".to_owned(), verdict.tally),
        None => Outcome::Passed(verdict.tally),
    }
}

/// A guest that does not come as far as the first case has tested nothing: it is booted once more, and that is said.
fn run_guest(series: &Series, guest: &Guest, kernel: &Kernel) -> Result<Verdict> {
    let verdict = guest.run(kernel)?;
    if verdict.started {
        return Ok(verdict);
    }
    say(format!("guest {} did not boot, once more: {}", series.name, verdict.failure.unwrap_or_default()));
    guest.run(kernel)
}

fn step(series: &Series, started: Instant, outcome: Outcome) -> Step {
    Step { name: format!("kernel {} (guest)", series.name), outcome, took: started.elapsed() }
}
