//! Test cases that know what they need, so that nothing is skipped without a word.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use clap::Parser;
use libtest_mimic::{Arguments, Failed, Trial};
use nix::unistd::geteuid;
use tailcomb::kernel::object;

/// How long cases take: `TAILCOMB_TEST_TIER`, as `cargo xtask test` sets it; without it the shortest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The edit loop.
    Fast,
    /// What CI runs: long cases shortened, their assertions kept.
    Ci,
    /// Everything as written.
    Long,
}

impl Tier {
    /// The one this run is of.
    #[must_use]
    pub fn of_this_run() -> Self {
        match std::env::var("TAILCOMB_TEST_TIER").as_deref() {
            Ok("long") => Self::Long,
            Ok("ci") => Self::Ci,
            _ => Self::Fast,
        }
    }
}

/// One test.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name; one that reproduces a reported fault begins with its number: `d02_…`, `r35_…`.
    pub name: &'static str,
    /// What the machine must have.
    pub needs: &'static [Need],
    /// The test itself.
    pub run: fn() -> Result<()>,
}

/// What a case needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Root, and the eBPF object in the binary.
    Kernel,
    /// Loop devices that can be made.
    Loop,
    /// A program on the PATH.
    Tool(&'static str),
    /// A file or folder of this kernel.
    Path(&'static str),
}

impl Need {
    /// Why the machine does not have it; `None` where it does.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Kernel if !geteuid().is_root() => Some("needs root".to_owned()),
            Self::Kernel => object::bytes().err().map(|error| error.to_string()),
            Self::Loop => (!Path::new("/dev/loop-control").exists()).then(|| "needs loop devices".to_owned()),
            Self::Tool(name) => {
                let found =
                    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()));
                (!found).then(|| format!("needs the program {name}"))
            }
            Self::Path(path) => (!Path::new(path).exists()).then(|| format!("needs {path}")),
        }
    }
}

/// libtest-mimic's arguments, with more than one filter, as libtest has it.
#[derive(Parser)]
struct Selection {
    #[command(flatten)]
    arguments: Arguments,
    /// Further names, or parts of them.
    #[arg(value_name = "FILTER")]
    more: Vec<String>,
}

impl Selection {
    /// The cases that any of the filters names.
    fn of(&mut self, cases: &[Case]) -> Vec<Case> {
        if self.more.is_empty() {
            return cases.to_vec();
        }
        let filters: Vec<String> = self.arguments.filter.take().into_iter().chain(self.more.drain(..)).collect();
        let exact = self.arguments.exact;
        let named =
            |case: &&Case| filters.iter().any(|filter| if exact { case.name == filter } else { case.name.contains(filter) });
        cases.iter().filter(named).copied().collect()
    }
}

/// Runs the cases as `cargo test` would, one after another: they share the kernel.
///
/// A case whose needs are not met is shown as ignored with the reason; under `CI=true` it fails with that reason.
#[must_use]
pub fn run(cases: &[Case]) -> ExitCode {
    let mut selection = Selection::parse();
    let cases = selection.of(cases);
    let mut arguments = selection.arguments;
    arguments.test_threads = Some(1);
    let strict = std::env::var_os("CI").is_some_and(|value| value == "true");
    let trials = cases.iter().map(|case| trial(*case, strict)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(case: Case, strict: bool) -> Trial {
    match case.needs.iter().find_map(|need| need.missing()) {
        None => Trial::test(case.name, move || (case.run)().map_err(|error| Failed::from(format!("{error:#}")))),
        Some(reason) if strict => {
            Trial::test(case.name, move || Err(Failed::from(format!("skipped, which CI does not accept: {reason}"))))
        }
        Some(reason) => Trial::test(case.name, || Ok(())).with_kind(format!("skipped: {reason}")).with_ignored_flag(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_filters_choose_what_any_of_them_names() {
        let cases = ["d02_a", "d03_b", "r35_c"].map(|name| Case { name, needs: &[], run: || Ok(()) });
        let chosen = |arguments: &[&str]| {
            let mut selection = Selection::parse_from([&["tests"], arguments].concat());
            let chosen: Vec<_> = selection.of(&cases).iter().map(|case| case.name).collect();
            (chosen, selection.arguments.filter)
        };
        assert_eq!(chosen(&["d0", "r35"]), (vec!["d02_a", "d03_b", "r35_c"], None));
        assert_eq!(chosen(&["--exact", "d02_a", "r35"]), (vec!["d02_a"], None));
        // One alone is left to the library, which says how many it filtered out.
        assert_eq!(chosen(&["d02"]), (vec!["d02_a", "d03_b", "r35_c"], Some("d02".to_owned())));
    }
}
