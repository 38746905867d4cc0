//! Builds the eBPF object and leaves it in `OUT_DIR/tailcomb-ebpf`, for `include_bytes!`.
//!
//! `cargo xtask setup` records which compiler and which linker to use (see [`record_path`]). Without that record an empty
//! file is left instead, so that checks, lints and pure tests run anywhere, and the agent says at start what is missing.
//! aya-build is not used: it takes the linker and RUSTC_BOOTSTRAP from the environment of this process only.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const PACKAGE: &str = "tailcomb-ebpf";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = out.join(PACKAGE);
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let root = manifest.parent().expect("the agent lives in a workspace");
    for source in
        ["agent-ebpf/src", "agent-ebpf/Cargo.toml", "agent-common/src", "agent-common/Cargo.toml", "Cargo.toml", "Cargo.lock"]
    {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    println!("cargo::rerun-if-env-changed=XDG_CACHE_HOME");

    let record = record_path();
    println!("cargo::rerun-if-changed={}", record.display());
    let Some(toolchain) = Toolchain::read(&record) else {
        println!("cargo::warning=built without eBPF: run `cargo xtask setup`, then build again");
        fs::write(&object, []).expect("OUT_DIR can be written");
        return;
    };
    let built = toolchain.build(root, &target_dir(&out));
    fs::copy(&built, &object).unwrap_or_else(|error| panic!("copying {}: {error}", built.display()));
}

/// Where `cargo xtask setup` says what it found: lines `key=value` in the user's cache folder.
fn record_path() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .unwrap_or_else(|| PathBuf::from("/var/cache"));
    cache.join("tailcomb/bpf-toolchain")
}

/// One target folder for the object, whatever the agent's own profile and target: `…/target/ebpf`.
fn target_dir(out: &Path) -> PathBuf {
    // OUT_DIR is <target>[/<triple>]/<profile>/build/<package>/out.
    let above_profile = out.ancestors().nth(4).expect("OUT_DIR lies in a target folder");
    let triple = above_profile.file_name().is_some_and(|name| name.to_string_lossy().contains("-linux-"));
    let target = if triple { above_profile.parent().expect("a triple lies in a target folder") } else { above_profile };
    target.join("ebpf")
}

struct Toolchain {
    rustup_name: String,
    linker: PathBuf,
}

impl Toolchain {
    fn read(record: &Path) -> Option<Self> {
        let text = fs::read_to_string(record).ok()?;
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned));
        let linker = PathBuf::from(value("linker")?);
        linker.is_file().then_some(Self { rustup_name: value("toolchain")?, linker })
    }

    /// Runs the build and returns the object's path.
    fn build(&self, root: &Path, target_dir: &Path) -> PathBuf {
        let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
        let mut cargo = Command::new("rustup");
        cargo
            .args(["run", &self.rustup_name, "cargo", "build", "--quiet", "--release", "--package", PACKAGE])
            .args(["--target", "bpfel-unknown-none", "-Z", "build-std=core", "--target-dir"])
            .arg(target_dir)
            .current_dir(root)
            .env("CARGO_ENCODED_RUSTFLAGS", format!("--cfg=bpf_target_arch=\"{arch}\"\x1f-Cdebuginfo=2\x1f-Clink-arg=--btf"))
            .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &self.linker)
            .env("RUSTC_BOOTSTRAP", "1");
        // eBPF diagnostics belong in debug builds only: they cost instructions and a ring buffer.
        if env::var("PROFILE").is_ok_and(|profile| profile == "debug") && env::var_os("CARGO_FEATURE_EBPF_LOG").is_some() {
            cargo.args(["--features", "log"]);
        }
        // Set by the outer cargo for its own compiler.
        for key in [
            "RUSTC",
            "RUSTDOC",
            "RUSTC_WRAPPER",
            "RUSTC_WORKSPACE_WRAPPER",
            "RUSTFLAGS",
            "CARGO_BUILD_TARGET",
            "RUSTUP_TOOLCHAIN",
            "CARGO",
        ] {
            cargo.env_remove(key);
        }
        let output = cargo.output().unwrap_or_else(|error| panic!("running {cargo:?}: {error}"));
        if !output.status.success() {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
            panic!("the eBPF programs did not build (toolchain {}): see above", self.rustup_name);
        }
        for line in String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.contains("warning")) {
            println!("cargo::warning=eBPF: {line}");
        }
        target_dir.join("bpfel-unknown-none/release").join(PACKAGE)
    }
}
