//! Which toolchain to take: decided from facts alone, so that every machine can be tried in a test.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
};

use clap::ValueEnum;

use super::{compiler::Compiler, linker::SUPPORTED_LLVM};

/// The ways to a compiler with `rust-src`, in the order they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// A toolchain of rustup that has rust-src.
    Existing,
    /// Let rustup fetch rust-src for the active toolchain.
    Rustup,
    /// Debian's packages, linked as rustup toolchain `bpf`.
    Apt,
}

/// What the machine has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The toolchains, the active one first.
    pub(crate) compilers: Vec<Compiler>,
    /// Built linkers by the major of their LLVM.
    pub(crate) linkers: BTreeMap<u32, PathBuf>,
    /// Installed LLVMs with headers, by major.
    pub(crate) llvms: BTreeMap<u32, PathBuf>,
    /// Did the user name the LLVM (`LLVM_PREFIX`)? Then no other is installed.
    pub(crate) llvm_named: bool,
    /// What apt could install; `Err` with the reason where it may not or is not there.
    pub(crate) apt: AptFacts,
}

/// What apt could bring.
#[derive(Clone, Debug, Default)]
pub(crate) struct AptFacts {
    /// Why nothing can be installed.
    pub(crate) refused: Option<String>,
    /// LLVM majors with a `-dev` package.
    pub(crate) llvms: BTreeSet<u32>,
    /// Is there a current compiler with its source?
    pub(crate) compiler: bool,
}

/// Where the linker for one LLVM comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LlvmSource {
    /// It is built already.
    Linker(PathBuf),
    /// Build it on this installed LLVM.
    Prefix(PathBuf),
    /// Install LLVM with apt, then build it.
    Apt,
}

/// One toolchain that could be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// How the compiler is come by.
    pub(crate) way: Way,
    /// The toolchain's name for rustup.
    pub(crate) toolchain: String,
    /// Its LLVM and the linker's source; `None` where that is known only once the compiler is installed.
    pub(crate) llvm: Option<(u32, LlvmSource)>,
}

/// One that could not, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PassedOver {
    /// The toolchain or the way.
    pub(crate) what: String,
    /// The reason, with the remedy where there is one.
    pub(crate) why: String,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.what, self.why)
    }
}

/// The candidates in the order to try them, and what was passed over.
pub(crate) fn candidates(facts: &Facts, only: Option<Way>) -> (Vec<Candidate>, Vec<PassedOver>) {
    let (mut found, mut passed) = (Vec::new(), Vec::new());
    let wanted = |way| only.is_none_or(|only| only == way);
    for compiler in facts.compilers.iter().filter(|_| wanted(Way::Existing)) {
        let what = format!("{} (Rust {}, LLVM {})", compiler.name, compiler.release, compiler.llvm);
        match if compiler.has_source { llvm_source(facts, compiler.llvm) } else { Err("has no rust-src".to_owned()) } {
            Ok(source) => found.push(candidate(Way::Existing, compiler, source)),
            Err(why) => passed.push(PassedOver { what, why }),
        }
    }
    // What needs no building goes first; otherwise the order stays.
    found.sort_by_key(|candidate| !matches!(candidate.llvm, Some((_, LlvmSource::Linker(_)))));
    if wanted(Way::Rustup) {
        match by_rustup(facts) {
            Ok(candidate) => found.push(candidate),
            Err(why) => passed.push(PassedOver { what: "rustup component add rust-src".to_owned(), why }),
        }
    }
    if wanted(Way::Apt) {
        let refused = facts.apt.refused.clone();
        match refused.or_else(|| (!facts.apt.compiler).then(|| "apt has no rustc-web with rust-web-src".to_owned())) {
            None => found.push(Candidate { way: Way::Apt, toolchain: "bpf".to_owned(), llvm: None }),
            Some(why) => passed.push(PassedOver { what: "Debian's rustc-web".to_owned(), why }),
        }
    }
    (found, passed)
}

fn candidate(way: Way, compiler: &Compiler, source: LlvmSource) -> Candidate {
    Candidate { way, toolchain: compiler.name.clone(), llvm: Some((compiler.llvm, source)) }
}

fn by_rustup(facts: &Facts) -> Result<Candidate, String> {
    let active = facts.compilers.iter().find(|compiler| compiler.active).ok_or("no toolchain is active")?;
    if !active.managed {
        return Err(format!("the active toolchain {} is a linked one, rustup can't add to it", active.name));
    }
    llvm_source(facts, active.llvm).map(|source| candidate(Way::Rustup, active, source))
}

/// Where a linker on exactly this LLVM can be had.
///
/// # Errors
/// The reason and the remedy. Another major is never taken: it can link, and produce broken type information.
pub(crate) fn llvm_source(facts: &Facts, llvm: u32) -> Result<LlvmSource, String> {
    if let Some(linker) = facts.linkers.get(&llvm) {
        return Ok(LlvmSource::Linker(linker.clone()));
    }
    if !SUPPORTED_LLVM.contains(&llvm) {
        return Err(format!("bpf-linker can't be built on its LLVM {llvm}, only on {SUPPORTED_LLVM:?}"));
    }
    if facts.llvm_named && !facts.llvms.contains_key(&llvm) {
        let named = facts.llvms.keys().next().map_or_else(|| "no LLVM".to_owned(), |major| format!("LLVM {major}"));
        return Err(format!("it is on LLVM {llvm}, LLVM_PREFIX is {named}: point LLVM_PREFIX at LLVM {llvm}, or unset it"));
    }
    // apt first: it also brings the libraries that LLVM itself is linked with.
    if !facts.llvm_named && facts.apt.refused.is_none() && facts.apt.llvms.contains(&llvm) {
        return Ok(LlvmSource::Apt);
    }
    if let Some(prefix) = facts.llvms.get(&llvm) {
        return Ok(LlvmSource::Prefix(prefix.clone()));
    }
    let reason = facts.apt.refused.clone().unwrap_or_else(|| format!("apt has no llvm-{llvm}-dev"));
    Err(format!("no LLVM {llvm} to build bpf-linker on ({reason}); install LLVM {llvm} with headers and set LLVM_PREFIX"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiler(name: &str, llvm: u32, has_source: bool) -> Compiler {
        let active = name == "stable";
        Compiler { name: name.to_owned(), release: "1.95.0".to_owned(), llvm, has_source, active, managed: name != "bpf" }
    }

    fn debian(compilers: Vec<Compiler>) -> Facts {
        let apt = AptFacts { refused: None, llvms: BTreeSet::from([22]), compiler: true };
        Facts { compilers, apt, ..Facts::default() }
    }

    fn ways(found: &[Candidate]) -> Vec<Way> {
        found.iter().map(|candidate| candidate.way).collect()
    }

    #[test]
    fn a_toolchain_with_source_but_no_llvm_to_be_had_is_passed_over_with_a_word() {
        let facts = debian(vec![compiler("stable", 22, false), compiler("nightly", 23, true)]);
        let (found, passed) = candidates(&facts, None);
        assert_eq!(ways(&found), [Way::Rustup, Way::Apt]);
        assert_eq!(found[0].llvm, Some((22, LlvmSource::Apt)));
        assert!(passed.iter().any(|one| one.what.starts_with("nightly") && one.why.contains("llvm-23-dev")), "{passed:?}");
        assert!(passed.iter().any(|one| one.what.starts_with("stable") && one.why.contains("rust-src")), "{passed:?}");
    }

    #[test]
    fn what_is_built_already_comes_first() {
        let mut facts = debian(vec![compiler("stable", 22, true), compiler("nightly", 23, true)]);
        facts.linkers.insert(23, PathBuf::from("/cache/23"));
        let (found, _) = candidates(&facts, None);
        assert_eq!((found[0].toolchain.as_str(), found[1].toolchain.as_str()), ("nightly", "stable"));
    }

    #[test]
    fn an_llvm_that_does_not_match_is_refused_with_the_remedy() {
        let mut facts = debian(vec![compiler("stable", 22, true)]);
        facts.llvm_named = true;
        facts.llvms.insert(14, PathBuf::from("/usr/lib/llvm-14"));
        let why = llvm_source(&facts, 22).expect_err("14 is not 22");
        assert!(why.contains("LLVM_PREFIX is LLVM 14") && why.contains("unset"), "{why}");
        facts.linkers.insert(21, PathBuf::from("/cache/21"));
        assert!(llvm_source(&facts, 22).is_err(), "a linker on another major is not taken");
    }

    #[test]
    fn an_llvm_unknown_to_the_linker_is_refused() {
        let mut facts = debian(vec![compiler("nightly", 24, true)]);
        facts.llvms.insert(24, PathBuf::from("/usr/lib/llvm-24"));
        let why = llvm_source(&facts, 24).expect_err("not supported");
        assert!(why.contains("LLVM 24"), "{why}");
    }

    #[test]
    fn without_root_an_installed_llvm_still_serves() {
        let mut facts = debian(vec![compiler("stable", 22, true)]);
        facts.apt.refused = Some("needs root".to_owned());
        assert!(llvm_source(&facts, 22).expect_err("nothing there").contains("needs root"));
        facts.llvms.insert(22, PathBuf::from("/usr/lib/llvm-22"));
        assert_eq!(llvm_source(&facts, 22), Ok(LlvmSource::Prefix(PathBuf::from("/usr/lib/llvm-22"))));
        let (found, passed) = candidates(&facts, None);
        assert_eq!(ways(&found), [Way::Existing, Way::Rustup]);
        assert!(passed.iter().any(|one| one.why.contains("needs root")), "{passed:?}");
    }

    #[test]
    fn a_linked_active_toolchain_gets_no_component() {
        let mut linked = compiler("bpf", 22, false);
        linked.active = true;
        let (found, passed) = candidates(&debian(vec![linked]), Some(Way::Rustup));
        assert!(found.is_empty());
        assert!(passed[0].why.contains("linked"), "{passed:?}");
    }

    #[test]
    fn only_one_way_leaves_the_others_alone() {
        let facts = debian(vec![compiler("stable", 22, true)]);
        assert_eq!(ways(&candidates(&facts, Some(Way::Apt)).0), [Way::Apt]);
        assert_eq!(ways(&candidates(&facts, Some(Way::Existing)).0), [Way::Existing]);
    }
}
