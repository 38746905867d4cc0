//! tailcomb's chores: the BPF toolchain, tests, other kernels. `cargo xtask --help` lists them.

mod apt;
mod command;
mod lint;
mod setup;
mod test;
mod vm;
mod workspace;

use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

/// tailcomb's chores.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Find or install the BPF toolchain; quick when all is there.
    Setup {
        /// Come by the compiler in this way only.
        #[arg(long, value_enum)]
        only: Option<setup::Way>,
    },
    /// Set up, build, and run `tailcomb demo` with these arguments.
    Demo {
        /// As for `tailcomb demo`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the tests, after setting up what they need.
    Test(test::Options),
    /// Set up, build for release, and print what the agent costs.
    Bench {
        /// As for the benchmark: `--quick`, and the names of parts.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Check the format and run clippy, on user space and on the eBPF programs.
    Lint,
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Setup { only } => setup::ensure(only).map(drop),
        Chore::Demo { arguments } => demo(&arguments),
        Chore::Test(options) => test::test(&options),
        Chore::Bench { arguments } => bench(&arguments),
        Chore::Lint => lint::lint(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Without the backtrace that anyhow would add under RUST_BACKTRACE: the message is for whoever runs the chore.
        Err(error) => {
            eprintln!("xtask: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn demo(arguments: &[String]) -> Result<()> {
    run_released(&["--package", "tailcomb"], "tailcomb", &[&["demo".to_owned()], arguments].concat())
}

fn bench(arguments: &[String]) -> Result<()> {
    run_released(&["--package", "tailcomb", "--package", "tailcomb-tests", "--bins"], "bench", arguments)
}

/// Sets up, builds for release, and runs one of the binaries.
fn run_released(build: &[&str], binary: &str, arguments: &[String]) -> Result<()> {
    setup::ensure(None)?;
    command::say("building for release (the first time some minutes)");
    command::run(workspace::cargo()?.args(["build", "--release"]).args(build))?;
    let release = workspace::target_dir()?.join("release");
    let mut command = Command::new(release.join(binary));
    command::run(command.args(arguments).env("TAILCOMB_BIN", release.join("tailcomb")))
}
