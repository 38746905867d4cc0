//! `cargo xtask lint`: format and clippy, as review expects them.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{
    command::{run, say},
    setup, workspace,
};

/// Format, then clippy for everything but the eBPF crate, then clippy for that crate with the BPF toolchain.
pub(crate) fn lint() -> Result<()> {
    say("format");
    run(workspace::cargo()?.args(["fmt", "--all", "--check"])).context("run `cargo fmt --all`")?;
    say("clippy, user space");
    let mut clippy = workspace::cargo()?;
    clippy.args(["clippy", "--quiet", "--workspace", "--exclude", setup::bpf_toolchain::PACKAGE, "--all-targets"]);
    run(clippy.args(["--", "-D", "warnings"]))?;
    // One pass over both trips over the eBPF crate's panic handler.
    say("clippy, eBPF programs");
    setup::lint(&setup::ensure(None)?)
}

/// Why it can't be run here; `None` where it can.
pub(crate) fn missing() -> Option<String> {
    let has = |tool: &str| {
        let asked = |cargo: &mut Command| cargo.args([tool, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        workspace::cargo().is_ok_and(|mut cargo| asked(&mut cargo).is_ok_and(|status| status.success()))
    };
    let lacks: Vec<_> =
        [("fmt", "rustfmt"), ("clippy", "clippy")].iter().filter(|(tool, _)| !has(tool)).map(|pair| pair.1).collect();
    (!lacks.is_empty()).then(|| format!("not installed: rustup component add {}", lacks.join(" ")))
}
