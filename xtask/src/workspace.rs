//! Where things are: the workspace, its target folder, the user's cache.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::command::stdout_of;

/// The workspace's root folder.
pub(crate) fn root() -> Result<PathBuf> {
    // Where xtask was built; cargo sets the variable again at run time, in case the checkout has moved since.
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    Ok(manifest.parent().context("xtask lies in a workspace")?.to_owned())
}

/// Cargo's target folder, wherever configuration and environment have put it.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let mut cargo = cargo()?;
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&stdout_of(&mut cargo)?)?;
    let folder = metadata["target_directory"].as_str().context("cargo metadata names no target_directory")?;
    Ok(PathBuf::from(folder))
}

/// `cargo` in the workspace, on the toolchain that runs this program.
pub(crate) fn cargo() -> Result<Command> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()?);
    // Set by the outer cargo about xtask itself; a test must not take it for its own.
    cargo.env_remove("CARGO_MANIFEST_DIR");
    Ok(cargo)
}
