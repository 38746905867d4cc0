//! `cargo xtask lint`: format and clippy, as review expects them.

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
