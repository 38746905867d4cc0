//! The commands. What they share stands here: arguments, exit codes, logging.

mod check;
mod connect;
mod demo;
mod run;
mod slow;

use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};

use tracing::level_filters::LevelFilter;

use crate::config::{
    self, Config, ConfigError, LogFormat,
    field::{CONFIG, PREFIX},
    unknown::{UnknownVariable, unknown_variables},
};

/// Done.
const OK: u8 = 0;
/// It did not work.
const FAILED: u8 = 1;
/// Bad usage, configuration or input.
const BAD_USAGE: u8 = 2;

/// How long the HTTP server is waited for at the end: a little longer than it gives an answer under way.
const GRACE: Duration = Duration::from_millis(1200);

/// Which LLM requests on this node were slow, and was it the disk?
#[derive(Parser)]
#[command(name = "tailcomb", version, about, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The agent: probes, metrics and API over HTTP.
    #[command(after_help = "Example: tailcomb run --target port:8000 --listen 127.0.0.1:9809")]
    Run(Run),
    /// A real little inference server under load, and a disk that is flushed to, as the probes see them.
    #[command(after_help = "Example: tailcomb demo --duration 2m --period 10s --dir /var/tmp")]
    Demo(demo::Demo),
    /// What this kernel and these privileges allow, probe by probe.
    #[command(after_help = "Example: tailcomb check --strict")]
    Check {
        /// Exit 1 where any required probe does not work; without this only where no probe can be loaded at all.
        #[arg(long)]
        strict: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// The slowest requests themselves, with their time split.
    #[command(after_help = "Example: tailcomb slow --since 5m -n 20")]
    Slow(slow::Slow),
}

#[derive(Args)]
struct Run {
    #[command(flatten)]
    settings: Settings,
    /// Print the configuration that results from file, environment and flags, every field with its meaning, and exit.
    #[arg(long)]
    print_config: bool,
}

/// Flags of the configuration; each has a field of the same name in the file.
#[derive(Args, Default)]
struct Settings {
    /// TOML file to read first [env: TAILCOMB_CONFIG].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port of the HTTP server [default: 127.0.0.1:9809].
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Which servers are measured: auto, port:8000, comm:NAME, pid:N, cgroup:PATH, all; repeatable [default: auto].
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<String>,
    /// A name accepted in the Host header; repeatable.
    #[arg(long = "allowed-host", value_name = "HOST")]
    allowed_hosts: Vec<String>,
    /// Least level of log lines: off, error, warn, info, debug, trace; from debug on for tailcomb's own alone. Or by module:
    /// warn,aya=debug [default: info].
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// How log lines look [default: text].
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
    /// Share of the machine's CPU time that the probes may take [default: 0.02].
    #[arg(long, value_name = "SHARE")]
    max_overhead: Option<f64>,
    /// Folder for the start-up self-test's file [default: /var/lib/tailcomb].
    #[arg(long, value_name = "FOLDER")]
    state_dir: Option<PathBuf>,
    /// Size of the ring buffer in MiB, a power of two [default: 4].
    #[arg(long, value_name = "MIB")]
    ring_buffer_mib: Option<u32>,
    /// Most label sets kept at once [default: 2000].
    #[arg(long, value_name = "N")]
    series_budget: Option<u32>,
}

impl Settings {
    /// The configuration out of file, environment and these flags, and the variables that look like settings and are none.
    fn load(&self) -> Result<(Config, Vec<UnknownVariable>), ConfigError> {
        let mut flags = config::Overrides::new();
        let list = |items: &[String]| toml::Value::Array(items.iter().cloned().map(toml::Value::String).collect());
        flags.extend(self.listen.clone().map(|listen| ("listen", toml::Value::String(listen))));
        flags.extend((!self.targets.is_empty()).then(|| ("targets", list(&self.targets))));
        flags.extend((!self.allowed_hosts.is_empty()).then(|| ("allowed_hosts", list(&self.allowed_hosts))));
        flags.extend(self.log_level.clone().map(|level| ("log_level", toml::Value::String(level))));
        flags.extend(self.log_format.and_then(|format| toml::Value::try_from(format).ok()).map(|format| ("log_format", format)));
        flags.extend(self.max_overhead.map(|share| ("max_overhead", toml::Value::Float(share))));
        flags.extend(self.state_dir.as_ref().map(|dir| ("state_dir", toml::Value::String(dir.display().to_string()))));
        flags.extend(self.ring_buffer_mib.map(|mib| ("ring_buffer_mib", toml::Value::Integer(mib.into()))));
        flags.extend(self.series_budget.map(|budget| ("series_budget", toml::Value::Integer(budget.into()))));
        let environment = environment()?;
        let unknown = unknown_variables(&environment);
        let from_environment = environment.iter().find(|(name, _)| name == CONFIG).map(|(_, path)| PathBuf::from(path));
        let config = config::load(self.config.as_deref().or(from_environment.as_deref()), environment, flags)?;
        Ok((config, unknown))
    }
}

/// Runs the command line; the exit code is the contract's.
#[must_use]
pub fn main() -> ExitCode {
    // clap prints its own message and leaves with 2 on bad usage.
    let arguments = Arguments::parse();
    let result = match &arguments.command {
        Command::Run(run) => run::main(run),
        Command::Demo(flags) => demo::main(flags),
        Command::Check { strict, json } => check::main(*strict, *json),
        Command::Slow(slow) => slow::main(slow),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Nobody may be there to read it: the exit code says it too.
            let _ = writeln!(std::io::stderr(), "tailcomb: {}", message(&error));
            ExitCode::from(if error.is::<ConfigError>() { BAD_USAGE } else { FAILED })
        }
    }
}

/// The error with its causes, each said once: the messages of our modules have their cause within, those of others don't.
fn message(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |message, cause| match cause.to_string() {
        cause if message.is_empty() => cause,
        cause if message.contains(&cause) => message,
        cause => format!("{message}: {cause}"),
    })
}

/// The environment as text: a variable of another program may be any bytes, one of ours may not.
fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let mut variables = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let value = value.into_string().map_err(|_| ConfigError::Value {
            place: format!("environment variable {name}"),
            why: "it is no UTF-8 text; unset it, or write it anew".to_owned(),
        })?;
        variables.push((name.to_owned(), value));
    }
    Ok(variables)
}

/// Prints what was asked for. A reader that has gone is no error; a full disk is.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => anyhow::Context::context(result, "writing to standard output"),
    }
}

/// A level alone is for the agent's own lines: from `debug` on, the libraries that load the probes say a thousand things that only
/// their authors want to know. Modules named are taken as they are.
fn filter(log_level: &str) -> String {
    match log_level.parse::<LevelFilter>() {
        Ok(level) if level > LevelFilter::INFO => format!("info,tailcomb={level}"),
        _ => log_level.to_owned(),
    }
}

/// Log lines go to standard error: standard output is for what was asked for. A reader of the log that has gone, or a full disk,
/// costs the line and not the agent.
fn start_logging(config: &Config) {
    let filter = tracing_subscriber::EnvFilter::new(filter(&config.log_level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    // A second start in one process (tests) keeps the first one's.
    let _ = match config.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;

    use super::*;

    #[test]
    fn a_level_alone_is_for_our_own_lines() {
        for (given, filtered) in [
            ("debug", "info,tailcomb=debug"),
            ("TRACE", "info,tailcomb=trace"),
            ("info", "info"),
            ("warn", "warn"),
            ("off", "off"),
            ("info,aya=debug", "info,aya=debug"),
            ("aya_obj=trace", "aya_obj=trace"),
            ("debug,tailcomb=info", "debug,tailcomb=info"),
        ] {
            assert_eq!(filter(given), filtered, "{given}");
        }
    }

    #[test]
    fn a_cause_is_said_once() {
        let source = || io::Error::from_raw_os_error(2);
        let within = ConfigError::Unreadable { path: PathBuf::from("/x.toml"), source: source() };
        let text = message(&anyhow::Error::from(within));
        assert_eq!(text.matches("No such file").count(), 1, "{text}");
        let around = Err::<(), _>(source()).context("reading /x").context("starting").expect_err("an error");
        assert_eq!(message(&around), "starting: reading /x: No such file or directory (os error 2)");
    }
}
