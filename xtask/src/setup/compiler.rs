//! The Rust compilers that rustup knows.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{command::stdout_of, setup::bpf_toolchain::llvm_major};

/// One toolchain as it is on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiler {
    /// Its name for `rustup run`.
    pub(crate) name: String,
    /// Its version, as `1.96.0`.
    pub(crate) release: String,
    /// Major version of its LLVM.
    pub(crate) llvm: u32,
    /// Has it the sources of `core`?
    pub(crate) has_source: bool,
    /// Is it the one that plain `cargo` runs?
    pub(crate) active: bool,
    /// Is it rustup's own, so that components can be added? One that was linked is not.
    pub(crate) managed: bool,
}

impl Compiler {
    /// Asks one toolchain; `None` where it does not run.
    pub(crate) fn ask(name: &str, active: bool, managed: bool) -> Option<Self> {
        let version = stdout_of(rustup(&["run", name, "rustc", "-Vv"]).as_mut()?).ok()?;
        let sysroot = stdout_of(rustup(&["run", name, "rustc", "--print", "sysroot"]).as_mut()?).ok()?;
        let core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs");
        let (release, llvm) = (release(&version)?, llvm_major(&version)?);
        Some(Self { name: name.to_owned(), release, llvm, has_source: core.is_file(), active, managed })
    }

    /// All toolchains that run, the active one first.
    ///
    /// # Errors
    /// Without rustup.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let mut list = rustup(&["toolchain", "list", "-v"])
            .context("the BPF toolchain is chosen among rustup's, and there is no rustup here: install it (https://rustup.rs)")?;
        let home = stdout_of(rustup(&["show", "home"]).as_mut().context("rustup is gone")?)?;
        let active = rustup(&["show", "active-toolchain"]).and_then(|mut command| stdout_of(&mut command).ok());
        let active = active.as_deref().and_then(|text| text.split_whitespace().next()).unwrap_or_default();
        let listed = listed(&stdout_of(&mut list)?);
        let own = Path::new(home.trim()).join("toolchains");
        let mut compilers: Vec<Self> = listed
            .iter()
            // An alias (`1.95.0` for what is `stable` too) is shown with the other's folder.
            .filter(|(name, folder)| !folder.starts_with(&own) || *folder == own.join(name))
            .filter_map(|(name, folder)| Self::ask(name, name == active, folder.starts_with(&own)))
            .collect();
        compilers.sort_by_key(|compiler| !compiler.active);
        Ok(compilers)
    }
}

/// `rustup` with these arguments; `None` where it is not installed.
pub(crate) fn rustup(arguments: &[&str]) -> Option<Command> {
    let mut command = Command::new(crate::command::on_path("rustup")?);
    command.args(arguments);
    Some(command)
}

/// Names and folders of `rustup toolchain list -v`: `NAME [(active, default)] FOLDER`.
fn listed(text: &str) -> Vec<(String, PathBuf)> {
    let line = |line: &str| {
        let name = line.split_whitespace().next()?;
        let folder = &line[line.find('/')?..];
        Some((name.to_owned(), PathBuf::from(folder.trim_end())))
    };
    text.lines().filter_map(line).collect()
}

/// The compiler's version in what `rustc -Vv` prints.
fn release(version: &str) -> Option<String> {
    version.lines().find_map(|line| line.strip_prefix("release: ")).map(|release| release.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str = "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\nbinary: rustc\n\
        host: x86_64-unknown-linux-gnu\nrelease: 1.96.0\nLLVM version: 22.1.8\n";

    #[test]
    fn the_version_and_the_llvm_are_read() {
        assert_eq!(release(DEBIAN).as_deref(), Some("1.96.0"));
        assert_eq!(llvm_major(DEBIAN), Some(22));
        assert_eq!(llvm_major("release: 1.96.0\n"), None, "a compiler with another back end has no LLVM line");
        assert_eq!(llvm_major("LLVM version: 23.1.4-rust-1.101.0-nightly\n"), Some(23));
    }

    #[test]
    fn the_list_is_read_with_and_without_marks() {
        let text = "stable-x86_64-unknown-linux-gnu (active, default) /home/a b/.rustup/toolchains/stable-x86_64-unknown-linux-gnu\n\
            bpf /usr\nno toolchain\n";
        let found = listed(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].0, "stable-x86_64-unknown-linux-gnu");
        assert!(found[0].1.starts_with("/home/a b/.rustup"));
        assert_eq!(found[1], ("bpf".to_owned(), PathBuf::from("/usr")));
    }
}
