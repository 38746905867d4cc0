//! The fields of the configuration as data: name and meaning.

/// One field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in the file; the flag is the same with dashes, the environment variable [`Field::variable`].
    pub name: &'static str,
    /// What it means, with its unit.
    pub meaning: &'static str,
}

impl Field {
    /// Its environment variable: `TAILCOMB_` and the name in capitals.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_uppercase())
    }
}

/// Prefix of all environment variables.
pub const PREFIX: &str = "TAILCOMB_";
/// The variable that names the file, where `--config` does not.
pub const CONFIG: &str = "TAILCOMB_CONFIG";

/// All fields, in the order in which they are printed.
pub const FIELDS: &[Field] = &[
    Field { name: "listen", meaning: "Address and port of the HTTP server." },
    Field {
        name: "allowed_hosts",
        meaning: "Names accepted in the Host header, beside IP literals, localhost and this node's own name.\nIn the environment: separated by commas.",
    },
    Field {
        name: "targets",
        meaning: "Which servers are measured: auto, port:8000, comm:NAME, pid:N, cgroup:PATH, all.\nSeveral add up; any explicit one replaces auto. In the environment: separated by commas.",
    },
    Field {
        name: "log_level",
        meaning: "Least level of log lines: off, error, warn, info, debug or trace. debug and trace are for tailcomb's own lines, those\nof the libraries in it stay at info. By module, where each counts as given: info,tailcomb::export=debug,aya=debug.",
    },
    Field { name: "log_format", meaning: "text or json." },
    Field {
        name: "max_overhead",
        meaning: "Share of the machine's CPU time that the probes may take (0.02 = 2 %). Beyond it for 30 s, the costliest\noptional probe is detached.",
    },
    Field { name: "state_dir", meaning: "Folder in which the start-up self-test writes, reads and removes a file of 4 KiB." },
    Field { name: "ring_buffer_mib", meaning: "Size in MiB of the ring buffer between kernel and agent, a power of two." },
    Field { name: "series_budget", meaning: "Most label sets kept at once; beyond it values are counted under `other`." },
];

/// The known name closest to `name`, if one is close.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(name.len()) / 2)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_its_field_and_nonsense_finds_none() {
        let names = || FIELDS.iter().map(|field| field.name);
        assert_eq!(nearest("target", names()), Some("targets"));
        assert_eq!(nearest("max-overhead", names()), Some("max_overhead"));
        assert_eq!(nearest("qqqqqqqq", names()), None);
    }
}
