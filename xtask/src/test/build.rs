//! Builds the tests once, and runs their binaries.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{report::Outcome, tally::Tally};
use crate::{setup::bpf_toolchain::PACKAGE, workspace};

/// One target for all, so that binaries can be linked statically while build scripts and macros are not.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const PROFILE: &str = "proof";

/// What `cargo xtask test` builds.
pub(crate) struct Built {
    /// The kernel tests, a static binary.
    pub(crate) kernel: PathBuf,
    /// The end-to-end tests, where there are any.
    pub(crate) e2e: Option<PathBuf>,
    /// The agent.
    pub(crate) agent: PathBuf,
}

/// `cargo VERB` with everything static, in the one profile.
fn cargo(verb: &str) -> Result<Command> {
    let mut cargo = workspace::cargo()?;
    cargo
        .args([verb, "--profile", PROFILE, "--target", TARGET])
        // The guests have no libraries.
        .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("RUSTFLAGS");
    Ok(cargo)
}

/// Builds the agent and the tests that need a kernel.
pub(crate) fn build() -> Result<Built> {
    let agent = executables(cargo("build")?.args(["--package", "tailcomb"]))?;
    let tests = executables(cargo("test")?.args(["--package", "tailcomb-tests", "--tests", "--no-run"]))?;
    let find = |list: &[(String, PathBuf)], name: &str| {
        list.iter().find(|(target, _)| target == name).map(|(_, executable)| executable.clone())
    };
    Ok(Built {
        kernel: find(&tests, "kernel").context("the package tailcomb-tests has no test `kernel`")?,
        e2e: find(&tests, "e2e"),
        agent: find(&agent, "tailcomb").context("the package tailcomb has no binary `tailcomb`")?,
    })
}

/// The pure tests, which need neither root nor the BPF toolchain.
///
/// `plain`: built as `cargo test` builds them, where nothing else is going to be built.
pub(crate) fn pure(plain: bool, cases: &[String]) -> Result<Outcome> {
    let mut command = if plain {
        let mut plain = workspace::cargo()?;
        plain.arg("test");
        plain
    } else {
        cargo("test")?
    };
    command.args(["--workspace", "--no-fail-fast", "--exclude", PACKAGE]);
    // The kernel and end-to-end tests have steps of their own.
    command.args(["--lib", "--bins", "--"]).args(cases);
    run(&mut command)
}

/// Runs one test binary as cargo would, in its package's folder.
pub(crate) fn binary(executable: &Path, cases: &[String], environment: &[(&str, String)]) -> Result<Outcome> {
    let mut command = Command::new(executable);
    command.current_dir(workspace::root()?.join("tests")).args(cases);
    command.envs(environment.iter().map(|(key, value)| (key, value)));
    run(&mut command)
}

/// Runs tests with their output passed on, and counts them.
fn run(command: &mut Command) -> Result<Outcome> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting the tests")?;
    let mut output = String::new();
    let stdout = child.stdout.take().context("the tests' output is a pipe")?;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        writeln!(std::io::stdout(), "{line}")?;
        output.push_str(&line);
        output.push('\n');
    }
    let status = child.wait()?;
    let tally = Tally::of(&output);
    Ok(match (status.success(), tally.finished) {
        (true, true) => Outcome::Passed(tally),
        (true, false) => Outcome::Failed("ended well without a result".to_owned(), tally),
        (false, _) if tally.failed > 0 => Outcome::Failed(format!("{} failed", tally.failed), tally),
        (false, _) => Outcome::Failed(format!("ended with {status}"), tally),
    })
}

/// Runs a cargo command that builds, and lists the executables by the name of their target.
fn executables(command: &mut Command) -> Result<Vec<(String, PathBuf)>> {
    let output = command
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    if !output.status.success() {
        bail!("the build failed: see above");
    }
    let messages = output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let found = messages.filter_map(|message: serde_json::Value| {
        let executable = message["executable"].as_str()?;
        Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(executable)))
    });
    Ok(found.collect())
}
