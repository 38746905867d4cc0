//! `tailcomb demo` from its start to its end.

use std::{
    fs,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use nix::{errno::Errno, sys::signal::killpg, unistd::Pid};
use tailcomb_tests::{
    agent::binary,
    case::{Case, Need, Tier},
    disk::{number_of, real_folder},
};

pub(crate) const CASES: &[Case] = &[Case { name: "whole_demo_counts_what_its_clients_count", needs: &[Need::Kernel], run: demo }];

/// The number that stands before `after`.
fn number_before(text: &str, after: &str) -> Result<u64> {
    let (before, _) = text.split_once(after).with_context(|| format!("no `{after}` in:\n{text}"))?;
    let digits = before.trim_end().rsplit(|symbol: char| !symbol.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().with_context(|| format!("no number before `{after}` in:\n{text}"))
}

fn demo() -> Result<()> {
    let folder = tempfile::tempdir_in(real_folder()?)?;
    number_of(folder.path())?;
    let mut child = Command::new(binary()?);
    child
        .args(["demo", "--listen", "127.0.0.1:0", "--dir"])
        .arg(folder.path())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // As it is by default, 90 s with a flush each 6 s, where there is time for that.
    if Tier::of_this_run() != Tier::Long {
        child.args(["--duration", "15s", "--period", "5s"]);
    }
    let child = child.spawn().context("starting the demo")?;
    let group = Pid::from_raw(child.id().cast_signed());
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {error}{text}", output.status);

    for panel in ["Requests, arrival to end (", "submitted to complete ("] {
        ensure!(text.contains(panel), "no panel `{panel}`:\n{text}");
    }
    let in_heatmap = number_before(&text, " requests)")?;
    let ios = number_before(&text, " I/Os)")?;
    ensure!(ios > 0, "no I/O in the heatmap:\n{text}");
    let line = text.lines().find(|line| line.starts_with("Requests   ")).context("no line of requests")?;
    let (seen, health) = (number_before(line, " and ")?, number_before(line, " health checks seen")?);
    let (_, clients) = line.split_once("clients had ").context("no word of the clients")?;
    let (answers, health_answers) = (number_before(clients, " and ")?, number_before(clients, " answers")?);
    ensure!((seen, health) == (answers, health_answers), "the probes have another count than the clients:\n{text}");
    ensure!(number_before(clients, " failures")? == 0 && number_before(clients, " not sent")? == 0, "{line}");
    // 80 a second by default; the last ones end after the last column.
    ensure!(seen > 600 && health > 0 && in_heatmap <= seen && in_heatmap > seen * 9 / 10, "{in_heatmap} drawn:\n{text}");
    let flushes = text.lines().find(|line| line.starts_with("Flushes    ")).context("no line of flushes")?;
    ensure!(number_before(flushes, " of ")? >= 2, "{flushes}");
    // Ends that this kernel does not show (docs/journal/0002) are the one thing that a run may lose, and few of them.
    let lost = text.lines().find_map(|line| line.strip_prefix("Lost       ")).context("no line of losses")?;
    let unseen = if text.contains(" in block: unseen_end:") { number_before(&text, " in block: unseen_end:")? } else { 0 };
    ensure!(lost == unseen.to_string() && unseen * 100 <= ios, "something was lost:\n{text}");

    let left: Vec<_> = fs::read_dir(folder.path())?.collect::<Result<_, _>>()?;
    ensure!(left.is_empty(), "files are left: {left:?}");
    ensure!(killpg(group, None) == Err(Errno::ESRCH), "processes of the demo are left");
    Ok(())
}
