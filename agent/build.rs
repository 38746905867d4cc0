//! Builds the eBPF object and leaves it in `OUT_DIR/tailcomb-ebpf`, for `include_bytes!`.
//!
//! `cargo xtask setup` records which compiler and which linker to use. Without that record an empty file is left instead, so
//! that checks, lints and pure tests run anywhere, and the agent says at start what is missing.
//! aya-build is not used: it takes the linker and RUSTC_BOOTSTRAP from the environment of this process only.

mod bpf_toolchain;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use bpf_toolchain::{PACKAGE, Toolchain, llvm_major};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = out.join(PACKAGE);
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let root = manifest.parent().expect("the agent lives in a workspace");
    for source in [
        "agent/build.rs",
        "agent/bpf_toolchain.rs",
        "agent-ebpf/src",
        "agent-ebpf/Cargo.toml",
        "agent-common/src",
        "agent-common/Cargo.toml",
        "Cargo.toml",
        "Cargo.lock",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    println!("cargo::rerun-if-env-changed=XDG_CACHE_HOME");

    let record = Toolchain::record_path();
    println!("cargo::rerun-if-changed={}", record.display());
    let Some(toolchain) = Toolchain::read(&record) else {
        println!("cargo::warning=built without eBPF: run `cargo xtask setup`, then build again");
        fs::write(&object, []).expect("OUT_DIR can be written");
        return;
    };
    let built = build(&toolchain, root, &target_dir(&out));
    fs::copy(&built, &object).unwrap_or_else(|error| panic!("copying {}: {error}", built.display()));
}

/// One target folder for the object, whatever the agent's own profile and target: `…/target/ebpf`.
fn target_dir(out: &Path) -> PathBuf {
    // OUT_DIR is <target>[/<triple>]/<profile>/build/<package>/out.
    let above_profile = out.ancestors().nth(4).expect("OUT_DIR lies in a target folder");
    let triple = above_profile.file_name().is_some_and(|name| name.to_string_lossy().contains("-linux-"));
    let target = if triple { above_profile.parent().expect("a triple lies in a target folder") } else { above_profile };
    target.join("ebpf")
}

/// Runs the build and returns the object's path.
fn build(toolchain: &Toolchain, root: &Path, target_dir: &Path) -> PathBuf {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    // The compiler may have been updated since the record was written; on another LLVM it can still link, with broken BTF.
    match compiler_llvm(toolchain) {
        Some(llvm) if llvm == toolchain.llvm => {}
        Some(llvm) => panic!(
            "toolchain {} is on LLVM {llvm} now, the bpf-linker on record on LLVM {}: run `cargo xtask setup`",
            toolchain.rustup_name, toolchain.llvm
        ),
        None => panic!("toolchain {} on record does not run any more: run `cargo xtask setup`", toolchain.rustup_name),
    }
    let mut cargo = toolchain.cargo("build", root, target_dir, &arch);
    cargo.arg("--quiet");
    // eBPF diagnostics belong in builds of the dev profile only: they cost instructions and a ring buffer.
    if env::var("OPT_LEVEL").is_ok_and(|level| level == "0") {
        cargo.args(["--features", "log"]);
    }
    let output = cargo.output().unwrap_or_else(|error| panic!("running {cargo:?}: {error}"));
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        panic!("the eBPF programs did not build (toolchain {}): see above", toolchain.rustup_name);
    }
    for line in String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.contains("warning")) {
        println!("cargo::warning=eBPF: {line}");
    }
    Toolchain::object(target_dir)
}

/// The LLVM major version of the compiler as it is now; `None` where it does not run.
fn compiler_llvm(toolchain: &Toolchain) -> Option<u32> {
    let output = Command::new("rustup").args(["run", &toolchain.rustup_name, "rustc", "-Vv"]).output().ok()?;
    llvm_major(&String::from_utf8_lossy(&output.stdout))
}
