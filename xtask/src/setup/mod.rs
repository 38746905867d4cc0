//! `cargo xtask setup`: finds or installs what the eBPF programs are built with.
//!
//! `core` for the BPF target is built from source, so a compiler with its own `rust-src` is needed, and a bpf-linker on the
//! same LLVM. What is found is proved by building the programs, then recorded for `agent/build.rs`.

#[path = "../../../agent/bpf_toolchain.rs"]
pub(crate) mod bpf_toolchain;
mod choose;
mod compiler;
mod linker;

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use self::{
    bpf_toolchain::Toolchain,
    choose::{AptFacts, Candidate, Facts, PassedOver, candidates},
    compiler::{Compiler, rustup},
};
pub(crate) use choose::Way;

use crate::{
    apt,
    command::{run, run_within, say},
    workspace,
};

/// rust-src is 4 MB; who can't fetch it in this time is offline in effect.
const FETCH_LIMIT: Duration = Duration::from_secs(120);
/// Debian's compiler with its source, and a cargo of its age.
const APT_COMPILER: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];

/// Returns the BPF toolchain, after finding or installing one where the record names none that works.
///
/// `only` restricts the ways to come by a compiler. Quick where the record still holds.
pub(crate) fn ensure(only: Option<Way>) -> Result<Toolchain> {
    if let Some(toolchain) = recorded(only) {
        let (name, linker, llvm) = (&toolchain.rustup_name, toolchain.linker.display(), &toolchain.llvm);
        say(format!("BPF toolchain: {name} with {linker} (LLVM {llvm}), as recorded in {}", Toolchain::record_path().display()));
        return Ok(toolchain);
    }
    say("no BPF toolchain on record: looking for a compiler with rust-src and a linker on its LLVM");
    let (found, mut passed) = candidates(&facts()?, only);
    for one in &passed {
        say(format!("passed over {one}"));
    }
    for candidate in found {
        say(format!("taking toolchain {} ({})", candidate.toolchain, reason(&candidate)));
        match obtain(&candidate).and_then(|toolchain| prove(&toolchain).map(|()| toolchain)) {
            Ok(toolchain) => {
                record(&toolchain, candidate.way)?;
                return Ok(toolchain);
            }
            Err(error) => {
                say(format!("that failed: {error:#}"));
                passed.push(PassedOver { what: candidate.toolchain, why: format!("{error:#}") });
            }
        }
    }
    let reasons: Vec<String> = passed.iter().map(|one| format!("  - {one}")).collect();
    bail!(
        "no BPF toolchain can be had:\n{}\nGive rustup a network, or run as root on Debian, or see docs/toolchain.md",
        reasons.join("\n")
    )
}

/// The toolchain on record, if compiler and linker are still there and on one LLVM.
fn recorded(only: Option<Way>) -> Option<Toolchain> {
    let path = Toolchain::record_path();
    let toolchain = Toolchain::read(&path)?;
    let same_way = only.is_none_or(|way| fs::read_to_string(&path).is_ok_and(|text| text.contains(&format!("way={way:?}\n"))));
    same_way.then_some(())?;
    let compiler = Compiler::ask(&toolchain.rustup_name, false, false);
    let problem = match &compiler {
        None => Some("its compiler does not run any more".to_owned()),
        Some(compiler) if !compiler.has_source => Some("its rust-src is gone".to_owned()),
        Some(compiler) if compiler.llvm != toolchain.llvm => {
            Some(format!("its compiler moved from LLVM {} to LLVM {}", toolchain.llvm, compiler.llvm))
        }
        Some(_) if linker::llvm_of(&toolchain.linker).is_some_and(|llvm| llvm != toolchain.llvm) => {
            Some(format!("its linker is not on LLVM {}", toolchain.llvm))
        }
        Some(_) if !linker::runs(&toolchain.linker) => Some("its linker does not start any more".to_owned()),
        Some(_) => None,
    };
    if let Some(problem) = &problem {
        say(format!("the toolchain on record, {}, is of no use: {problem}", toolchain.rustup_name));
    }
    problem.is_none().then_some(toolchain)
}

fn facts() -> Result<Facts> {
    let dev: Vec<String> = linker::SUPPORTED_LLVM.iter().map(|llvm| format!("llvm-{llvm}-dev")).collect();
    let refused = match (apt::is_here(), apt::may_install()) {
        (false, _) => Some("this machine has no apt".to_owned()),
        (true, false) => Some("apt needs root".to_owned()),
        (true, true) => None,
    };
    if refused.is_none() {
        apt::refresh_lists();
    }
    let available = apt::available(&dev.iter().map(String::as_str).chain(APT_COMPILER).collect::<Vec<_>>());
    Ok(Facts {
        compilers: Compiler::all()?,
        linkers: linker::present(),
        llvms: linker::installed_llvm(),
        llvm_named: std::env::var_os("LLVM_PREFIX").is_some(),
        apt: AptFacts {
            refused,
            llvms: linker::SUPPORTED_LLVM
                .into_iter()
                .filter(|llvm| available.contains(format!("llvm-{llvm}-dev").as_str()))
                .collect(),
            compiler: APT_COMPILER.iter().all(|package| available.contains(package)),
        },
    })
}

fn reason(candidate: &Candidate) -> &'static str {
    match candidate.way {
        Way::Existing => "it has rust-src",
        Way::Rustup => "no toolchain with rust-src can be used, so rustup is asked to fetch it",
        Way::Apt => "rustup has none, so Debian's compiler with its source is linked as toolchain `bpf`",
    }
}

/// Brings the compiler, then the linker on its LLVM.
fn obtain(candidate: &Candidate) -> Result<Toolchain> {
    let name = &candidate.toolchain;
    match candidate.way {
        Way::Existing => {}
        Way::Rustup => {
            let mut add = rustup(&["component", "add", "rust-src", "--toolchain", name]).context("rustup is gone")?;
            // Once is enough: the next way is open.
            run_within(add.env("RUSTUP_MAX_RETRIES", "0"), FETCH_LIMIT).context("rustup could not fetch rust-src")?;
        }
        Way::Apt => {
            apt::ensure_newest(&APT_COMPILER.map(str::to_owned), "building core for BPF with Debian's compiler")?;
            let mut link = rustup(&["toolchain", "link", name, "/usr"]).context("rustup is gone")?;
            run(link.stdin(Stdio::null()))?;
        }
    }
    let compiler = Compiler::ask(name, false, false).with_context(|| format!("toolchain {name} does not run"))?;
    ensure!(compiler.has_source, "toolchain {name} has no rust-src after all");
    let llvm = compiler.llvm;
    let source = match candidate.llvm.clone() {
        Some((known, source)) if known == llvm => source,
        // Only now is it known which LLVM the compiler is on.
        _ => choose::llvm_source(&facts()?, llvm).map_err(anyhow::Error::msg)?,
    };
    Ok(Toolchain { rustup_name: name.clone(), linker: linker::build(llvm, &source)?, llvm })
}

/// Builds the programs; a linker on a wrong LLVM, or a compiler without its source, shows here and not in the agent.
fn prove(toolchain: &Toolchain) -> Result<()> {
    say("proving it by building the eBPF programs");
    let target_dir = workspace::target_dir()?.join("ebpf");
    let mut build = toolchain.cargo("build", &workspace::root()?, &target_dir, std::env::consts::ARCH);
    run(build.arg("--quiet").stdin(Stdio::null())).context("the eBPF programs do not build with it")?;
    let object = Toolchain::object(&target_dir);
    let bytes = fs::read(&object).with_context(|| format!("reading {}", object.display()))?;
    ensure!(bytes.windows(5).any(|window| window == b".BTF\0"), "the object has no type information (.BTF section)");
    Ok(())
}

fn record(toolchain: &Toolchain, way: Way) -> Result<()> {
    let path = Toolchain::record_path();
    let Toolchain { rustup_name, linker, llvm } = toolchain;
    let text = format!("toolchain={rustup_name}\nlinker={}\nllvm={llvm}\nway={way:?}\n", linker.display());
    // build.rs builds anew when the file changes, so it changes only when its content does.
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("the record lies in a folder")?)?;
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    say(format!("BPF toolchain ready, recorded in {}", path.display()));
    Ok(())
}

/// `cargo clippy` for the eBPF package, in a pass of its own.
pub(crate) fn lint(toolchain: &Toolchain) -> Result<()> {
    let name = &toolchain.rustup_name;
    let has_clippy = || {
        let mut ask = rustup(&["run", name, "cargo", "clippy", "--version"])?;
        ask.stderr(Stdio::null()).output().ok().filter(|output| output.status.success()).map(drop)
    };
    if has_clippy().is_none() {
        let debian = Compiler::ask(name, false, false).is_some() && name == "bpf";
        ensure!(debian, "toolchain {name} has no clippy: rustup component add clippy --toolchain {name}");
        apt::ensure_installed(&["rust-web-clippy".to_owned()], "linting the eBPF programs with Debian's compiler")?;
    }
    let target_dir = workspace::target_dir()?.join("ebpf");
    let mut clippy: Command = toolchain.cargo("clippy", &workspace::root()?, &target_dir, std::env::consts::ARCH);
    run(clippy.args(["--quiet", "--", "-D", "warnings"]))
}
