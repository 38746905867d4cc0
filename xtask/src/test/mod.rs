//! `cargo xtask test`: pure tests, lint, kernel tests on the running kernel and on those of the matrix, end-to-end tests.

mod build;
mod machine;
mod matrix;
mod report;
mod tally;

use std::{fs, path::Path, time::Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use nix::unistd::geteuid;

pub(crate) use self::tally::Tally;
use self::{
    build::Built,
    report::{Outcome, Report, Step},
};
use crate::{command::say, lint, setup, workspace};

/// How much is run, and how long cases take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// The edit loop: no guests, no downloads.
    Fast,
    /// What CI runs.
    Ci,
    /// Everything as written.
    Long,
}

impl Tier {
    /// As in `TAILCOMB_TEST_TIER`, by which the cases know how long to run.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Ci => "ci",
            Self::Long => "long",
        }
    }
}

/// Which tests to run. Without a choice of steps, all of the tier.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The edit loop: no guests, no downloads.
    #[arg(long, conflicts_with = "long")]
    fast: bool,
    /// Every case in its full length; the result is written to docs/test-results/long.md.
    #[arg(long)]
    long: bool,
    /// Only the pure tests (and other steps chosen).
    #[arg(long)]
    pure: bool,
    /// Only the kernel tests on the running kernel (and other steps chosen).
    #[arg(long)]
    kernel: bool,
    /// Only the kernel tests in guests, `--vm=5.10,6.1` in some of them (and other steps chosen).
    #[arg(long, value_name = "SERIES", num_args = 0..=1, require_equals = true, value_delimiter = ',')]
    vm: Option<Vec<String>>,
    /// Only the end-to-end tests (and other steps chosen).
    #[arg(long)]
    e2e: bool,
    /// Only cases whose name contains one of these.
    cases: Vec<String>,
}

impl Options {
    fn tier(&self) -> Tier {
        match (self.fast, self.long) {
            (true, _) => Tier::Fast,
            (_, true) => Tier::Long,
            _ => Tier::Ci,
        }
    }

    fn all_steps(&self) -> bool {
        !(self.pure || self.kernel || self.vm.is_some() || self.e2e)
    }
}

/// Runs what was chosen and prints the table.
///
/// # Errors
/// When a step failed; under `CI=true` also when a required one was skipped.
pub(crate) fn test(options: &Options) -> Result<()> {
    let tier = options.tier();
    let strict = std::env::var_os("CI").is_some_and(|value| value == "true");
    let mut run = Run { options, tier, report: Report::default() };
    run.steps()?;
    let table = run.report.table(strict);
    println!("\n{table}");
    if tier == Tier::Long && options.all_steps() && options.cases.is_empty() {
        write_result(&table)?;
    }
    if run.report.failed(strict) { bail!("tests failed: see the table") } else { Ok(()) }
}

struct Run<'a> {
    options: &'a Options,
    tier: Tier,
    report: Report,
}

impl Run<'_> {
    fn steps(&mut self) -> Result<()> {
        let all = self.options.all_steps();
        let cases = &self.options.cases;
        let root = geteuid().is_root();
        // First, so that every later build has the programs in it and none is done twice.
        let ready = root && self.step("set-up", || setup::ensure(None).map(|_| Outcome::Passed(Tally::default())));
        if all || self.options.pure {
            self.step("pure tests", || build::pure(!ready, cases));
        }
        if all && self.tier != Tier::Fast && cases.is_empty() {
            self.lint(ready);
        }
        if !(all || self.options.kernel || self.options.vm.is_some() || self.options.e2e) {
            return Ok(());
        }
        if !ready {
            let reason = if root { "there is no BPF toolchain" } else { "they need root" };
            self.skip("kernel tests, guests, end-to-end tests", reason);
            return Ok(());
        }
        if self.tier != Tier::Fast {
            // What could not be installed is missed by the steps and cases that need it, and named there.
            self.step("packages", || {
                Ok(machine::install().map_or_else(
                    |error| Outcome::Skipped { reason: format!("{error:#}"), required: true },
                    |()| Outcome::Passed(Tally::default()),
                ))
            });
        }
        let mut built = None;
        self.step("build", || {
            built = Some(build::build()?);
            Ok(Outcome::Passed(Tally::default()))
        });
        match built {
            Some(built) => self.with(&built),
            None => Ok(()),
        }
    }

    fn with(&mut self, built: &Built) -> Result<()> {
        let all = self.options.all_steps();
        let cases = &self.options.cases;
        let disk = machine::disk_folder(&workspace::target_dir()?)?;
        let mut environment = vec![
            ("TAILCOMB_TEST_TIER", self.tier.word().to_owned()),
            ("TAILCOMB_BIN", built.agent.display().to_string()),
            ("PATH", machine::path_with_unpacked()?),
        ];
        if let Some(disk) = &disk {
            environment.push(("TAILCOMB_TEST_DISK", disk.path().display().to_string()));
        }
        if all || self.options.kernel {
            self.step(&format!("kernel {} (running)", machine::release()), || build::binary(&built.kernel, cases, &environment));
        }
        if self.tier == Tier::Fast && self.options.vm.is_none() {
            if all {
                self.report.steps.push(skipped("guests", "not in --fast", false));
            }
        } else if all || self.options.vm.is_some() {
            let chosen = self.options.vm.as_deref().unwrap_or_default();
            let steps = matrix::run(&built.kernel, chosen, self.tier, cases)?;
            self.report.steps.extend(steps);
        }
        if all || self.options.e2e {
            match &built.e2e {
                Some(e2e) => drop(self.step("end-to-end tests", || build::binary(e2e, cases, &environment))),
                None => self.skip("end-to-end tests", "the package tailcomb-tests has no test `e2e`"),
            }
        }
        Ok(())
    }

    /// Runs one step; its error is its failure. Says whether the next can follow.
    fn step(&mut self, name: &str, run: impl FnOnce() -> Result<Outcome>) -> bool {
        say(format!("== {name}"));
        let started = Instant::now();
        let outcome = run().unwrap_or_else(|error| {
            say(format!("{name}: {error:#}"));
            Outcome::Failed(format!("{error:#}"), Tally::default())
        });
        let ok = matches!(outcome, Outcome::Passed(_));
        self.report.steps.push(Step { name: name.to_owned(), outcome, took: started.elapsed() });
        ok
    }

    /// Not required: a toolchain without clippy tests as well.
    fn lint(&mut self, ready: bool) {
        match lint::missing().or_else(|| (!ready).then(|| "there is no BPF toolchain".to_owned())) {
            Some(reason) => self.report.steps.push(skipped("lint", &reason, false)),
            None => drop(self.step("lint", || lint::lint().map(|()| Outcome::Passed(Tally::default())))),
        }
    }

    fn skip(&mut self, name: &str, reason: &str) {
        say(format!("{name}: skipped: {reason}"));
        self.report.steps.push(skipped(name, reason, true));
    }
}

fn skipped(name: &str, reason: &str, required: bool) -> Step {
    let outcome = Outcome::Skipped { reason: reason.to_owned(), required };
    Step { name: name.to_owned(), outcome, took: std::time::Duration::ZERO }
}

fn write_result(table: &str) -> Result<()> {
    let path = workspace::root()?.join("docs/test-results/long.md");
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let text = format!(
        "# Result of `cargo xtask test --long`\n\n{}, kernel {}, {} CPUs.\n\n{table}",
        machine::date()?,
        machine::release(),
        std::thread::available_parallelism().map_or(1, usize::from),
    );
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}
