//! Configuration: a TOML file, then the environment, then flags; the later one wins.
//!
//! Every field stands in [`field::FIELDS`] with its meaning; the sample file and `--print-config` are made from that list.

pub mod field;
mod load;
pub mod unknown;
mod values;

use std::{net::SocketAddr, path::PathBuf};

pub use load::{ConfigError, Overrides, load};
use serde::{Deserialize, Serialize};
pub use values::parse_listen;

use crate::attribute::{scan::Scanner, targets};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// All settings of `tailcomb run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// See [`field::FIELDS`], as for all of them.
    #[serde(deserialize_with = "values::deserialize_listen")]
    pub listen: SocketAddr,
    /// Names accepted in `Host`, beside the built-in ones.
    pub allowed_hosts: Vec<String>,
    /// Which servers are measured.
    pub targets: Vec<String>,
    /// Log filter.
    pub log_level: String,
    /// Log format.
    pub log_format: LogFormat,
    /// Share of the machine's CPU time that the probes may take.
    pub max_overhead: f64,
    /// Where the start-up self-test writes its 4 KiB.
    pub state_dir: PathBuf,
    /// Size of the ring buffer in MiB, a power of two.
    pub ring_buffer_mib: u32,
    /// Most label sets kept at once.
    pub series_budget: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9809)),
            allowed_hosts: Vec::new(),
            targets: vec!["auto".to_owned()],
            log_level: "info".to_owned(),
            log_format: LogFormat::Text,
            max_overhead: 0.02,
            state_dir: PathBuf::from("/var/lib/tailcomb"),
            ring_buffer_mib: 4,
            series_budget: 2000,
        }
    }
}

impl Config {
    /// Checks what types alone can't say.
    ///
    /// # Errors
    /// The field and what is wrong with its value.
    pub fn validate(&self) -> Result<(), (&'static str, String)> {
        if !(0.0001..=1.0).contains(&self.max_overhead) {
            return Err(("max_overhead", format!("{} is not between 0.0001 and 1", self.max_overhead)));
        }
        if !self.ring_buffer_mib.is_power_of_two() || self.ring_buffer_mib > 1024 {
            return Err(("ring_buffer_mib", format!("{} is not a power of two from 1 to 1024", self.ring_buffer_mib)));
        }
        if self.series_budget < 10 || self.series_budget > 1_000_000 {
            return Err(("series_budget", format!("{} is not between 10 and 1000000", self.series_budget)));
        }
        if self.targets.is_empty() {
            return Err(("targets", "the list is empty; leave it out for `auto`".to_owned()));
        }
        let parsed = targets::parse_all(&self.targets).map_err(|error| ("targets", error.to_string()))?;
        if let Err(error) = Scanner::new(parsed) {
            return Err(("targets", error.to_string()));
        }
        for host in &self.allowed_hosts {
            values::check_host(host).map_err(|why| ("allowed_hosts", why))?;
        }
        values::check_log_level(&self.log_level).map_err(|why| ("log_level", why))
    }

    /// This configuration as a file that `--config` reads, every field with its meaning.
    #[must_use]
    pub fn to_commented_toml(&self) -> String {
        let values = toml::Table::try_from(self).unwrap_or_default();
        let mut text =
            String::from("# Configuration of tailcomb. Each field is shown with its meaning; all of them have defaults.\n");
        for field in field::FIELDS {
            let Some(value) = values.get(field.name) else { continue };
            text.push('\n');
            for line in field.meaning.lines() {
                text.push_str(&format!("# {line}\n"));
            }
            text.push_str(&format!("# Environment: {}\n{} = {value}\n", field.variable(), field.name));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_fields_is_the_struct() {
        let values = toml::Table::try_from(Config::default()).expect("the default serialises");
        let mut listed: Vec<&str> = field::FIELDS.iter().map(|field| field.name).collect();
        let mut present: Vec<&str> = values.keys().map(String::as_str).collect();
        listed.sort_unstable();
        present.sort_unstable();
        assert_eq!(listed, present);
    }

    #[test]
    fn what_is_printed_reads_back_as_the_same() {
        let config =
            Config { targets: vec!["port:8000".to_owned(), "comm:vllm".to_owned()], max_overhead: 0.05, ..Config::default() };
        let read: Config = toml::from_str(&config.to_commented_toml()).expect("own output is valid");
        assert_eq!(read, config);
    }

    #[test]
    fn the_default_is_valid_and_bad_values_are_named() {
        assert_eq!(Config::default().validate(), Ok(()));
        let bad = |config: Config| config.validate().expect_err("bad").0;
        assert_eq!(bad(Config { max_overhead: 0.0, ..Config::default() }), "max_overhead");
        assert_eq!(bad(Config { max_overhead: f64::NAN, ..Config::default() }), "max_overhead");
        assert_eq!(bad(Config { ring_buffer_mib: 3, ..Config::default() }), "ring_buffer_mib");
        assert_eq!(bad(Config { ring_buffer_mib: 0, ..Config::default() }), "ring_buffer_mib");
        assert_eq!(bad(Config { targets: Vec::new(), ..Config::default() }), "targets");
        assert_eq!(bad(Config { targets: vec!["prt:1".to_owned()], ..Config::default() }), "targets");
        assert_eq!(bad(Config { targets: vec!["unix:/run/x.sock".to_owned()], ..Config::default() }), "targets");
        assert_eq!(bad(Config { targets: vec!["prt:80".to_owned()], ..Config::default() }), "targets");
        assert_eq!(bad(Config { allowed_hosts: vec!["http://node-7/".to_owned()], ..Config::default() }), "allowed_hosts");
        assert_eq!(bad(Config { log_level: "zzz".to_owned(), ..Config::default() }), "log_level");
        assert_eq!(bad(Config { log_level: "tailcomb=loud".to_owned(), ..Config::default() }), "log_level");
    }
}
