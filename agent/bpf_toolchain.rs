//! The BPF toolchain on record, and how it is called.
//!
//! One file for the two that must agree: `build.rs` reads the record and builds the object; `cargo xtask` writes the record,
//! proves it with the same build, and lints with the same flags. Nothing but the standard library is used.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The package that holds the eBPF programs.
pub(crate) const PACKAGE: &str = "tailcomb-ebpf";

/// Set by the outer cargo for its own compiler; none of it may reach the inner one.
const OUTER: [&str; 8] = [
    "RUSTC",
    "RUSTDOC",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "RUSTUP_TOOLCHAIN",
    "CARGO",
];

/// A compiler with its own `rust-src`, and a linker on the same LLVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toolchain {
    /// Its name for `rustup run`.
    pub(crate) rustup_name: String,
    /// The `bpf-linker` program.
    pub(crate) linker: PathBuf,
    /// Major version of the LLVM in both.
    pub(crate) llvm: u32,
}

impl Toolchain {
    /// Where `cargo xtask setup` says what it found: lines `key=value` in the user's cache folder.
    pub(crate) fn record_path() -> PathBuf {
        cache_dir().join("bpf-toolchain")
    }

    /// Reads a record; `None` where there is none, or its linker is gone.
    pub(crate) fn read(record: &Path) -> Option<Self> {
        let text = fs::read_to_string(record).ok()?;
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned));
        let linker = PathBuf::from(value("linker")?);
        linker.is_file().then_some(())?;
        Some(Self { rustup_name: value("toolchain")?, linker, llvm: value("llvm")?.parse().ok()? })
    }

    /// `cargo <verb>` for the eBPF package, as every build of it must be called.
    ///
    /// `arch` is the agent's architecture as in `CARGO_CFG_TARGET_ARCH`: it decides the layout of the kernel's registers.
    pub(crate) fn cargo(&self, verb: &str, root: &Path, target_dir: &Path, arch: &str) -> Command {
        let mut cargo = Command::new("rustup");
        cargo
            .args(["run", &self.rustup_name, "cargo", verb, "--release", "--package", PACKAGE])
            .args(["--target", "bpfel-unknown-none", "-Z", "build-std=core", "--target-dir"])
            .arg(target_dir)
            .current_dir(root);
        for key in OUTER {
            cargo.env_remove(key);
        }
        cargo
            .env("CARGO_ENCODED_RUSTFLAGS", format!("--cfg=bpf_target_arch=\"{arch}\"\x1f-Cdebuginfo=2\x1f-Clink-arg=--btf"))
            .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &self.linker)
            // core is built from source, which a stable compiler permits only so.
            .env("RUSTC_BOOTSTRAP", "1");
        cargo
    }

    /// Where [`Self::cargo`] with `build` leaves the object.
    pub(crate) fn object(target_dir: &Path) -> PathBuf {
        target_dir.join("bpfel-unknown-none/release").join(PACKAGE)
    }
}

/// The folder for what is found, fetched or built once a user: `$XDG_CACHE_HOME/tailcomb`, else `~/.cache/tailcomb`.
pub(crate) fn cache_dir() -> PathBuf {
    env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .unwrap_or_else(|| PathBuf::from("/var/cache"))
        .join("tailcomb")
}

/// Finds LLVM's major version in what `rustc -Vv` prints.
pub(crate) fn llvm_major(version: &str) -> Option<u32> {
    version.lines().find_map(|line| line.strip_prefix("LLVM version: ")?.split('.').next()?.trim().parse().ok())
}
