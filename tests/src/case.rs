//! Test cases that know what they need, so that nothing is skipped without a word.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};
use nix::unistd::geteuid;
use tailcomb::kernel::object;

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

/// Runs the cases as `cargo test` would, one after another: they share the kernel.
///
/// A case whose needs are not met is shown as ignored with the reason; under `CI=true` it fails with that reason.
#[must_use]
pub fn run(cases: &[Case]) -> ExitCode {
    let mut arguments = Arguments::from_args();
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
