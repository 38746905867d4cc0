//! Commands that ask a running agent.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use tailcomb_tests::{agent::binary, case::Case};

use crate::served::Served;

pub(crate) const CASES: &[Case] = &[
    Case { name: "slow_prints_the_slowest_with_their_parts", needs: &[], run: slow_prints_the_slowest_with_their_parts },
    Case { name: "slow_says_what_is_wrong", needs: &[], run: slow_says_what_is_wrong },
];

fn slow(arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
    let output = Command::new(binary()?).arg("slow").args(arguments).stdin(Stdio::null()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

fn slow_prints_the_slowest_with_their_parts() -> Result<()> {
    let served = Served::start()?;
    served.request("/health", 60, 1_000_000, None);
    served.request("/v1/chat/completions", 1, 2_500_000_000, Some(1_500_000_000));
    served.reads(&[]);
    let url = format!("http://{}", served.address);
    let (code, out, err) = slow(&["--connect", &url, "--since", "5m", "-n", "3"])?;
    ensure!(code == Some(0), "{code:?}: {err}");
    let lines: Vec<&str> = out.lines().collect();
    ensure!(lines.len() >= 4 && lines[0].contains("total") && lines[0].contains("wait"), "{out}");
    for part in ["2.50 s", "20 µs", "1.50 s", "1.00 s", "stream", "POST /v1/chat/completions", "server[1]"] {
        ensure!(lines[1].contains(part), "the slowest is first, with {part}: {out}");
    }
    ensure!(lines[2].contains("/health") && lines[3].contains("/health"), "{out}");
    Ok(())
}

fn slow_says_what_is_wrong() -> Result<()> {
    let (code, _, err) = slow(&["--since", "yesterday"])?;
    ensure!(code == Some(2) && err.contains("10m"), "{code:?}: {err}");
    let (code, _, err) = slow(&["-n", "0"])?;
    ensure!(code == Some(2), "{code:?}: {err}");
    let (code, _, err) = slow(&["--connect", "https://127.0.0.1:1"])?;
    ensure!(code == Some(2) && err.contains("http://HOST:PORT"), "{code:?}: {err}");
    let (code, _, err) = slow(&["--connect", "http://127.0.0.1:1"])?;
    ensure!(code == Some(1) && err.contains("tailcomb run") && err.contains("--connect"), "{code:?}: {err}");
    Ok(())
}
