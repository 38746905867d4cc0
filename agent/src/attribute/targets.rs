//! Which processes are measured: the forms of `--target`. [`super::scan`] finds the processes.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::Serialize;

/// Longest command name in the kernel, bytes.
const COMM_BYTES: usize = 15;
/// Every form that can be measured, for messages: `unix:` can't yet.
const FORMS: &str = "auto, port:8000, comm:NAME, pid:N, cgroup:PATH, all";
/// What stands before the colon.
const KINDS: [&str; 5] = ["port", "comm", "pid", "cgroup", "unix"];
/// Forms without a colon.
const WORDS: [&str; 2] = ["auto", "all"];

/// One `--target`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Inference servers found by their command lines, see [`super::engine`].
    Auto,
    /// Whoever listens on this TCP port, in any network namespace.
    Port(u16),
    /// Processes of this command name, cut as the kernel cuts it.
    Comm(String),
    /// One process, in the agent's pid namespace.
    Pid(u32),
    /// Processes in this cgroup or below, path as in `/proc/PID/cgroup`.
    Cgroup(String),
    /// Whoever listens on this unix socket.
    Unix(PathBuf),
    /// Every process.
    All,
}

/// Why a target can't be read. Each message says what it is, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No such form.
    #[error("target `{target}`: {hint}; the forms are {FORMS}")]
    Unknown {
        /// As given.
        target: String,
        /// What was probably meant.
        hint: String,
    },
    /// Nothing after the colon.
    #[error("target `{target}` has nothing after the colon; write for example `{example}`")]
    Empty {
        /// As given.
        target: String,
        /// A right one.
        example: &'static str,
    },
    /// `auto` and `all` take no value.
    #[error("target `{target}` takes no value; write `{word}` alone")]
    NoValue {
        /// As given.
        target: String,
        /// The word.
        word: &'static str,
    },
    /// A number out of range, or none.
    #[error("target `{target}`: `{value}` is not a {what}; write for example `{example}`")]
    Number {
        /// As given.
        target: String,
        /// The part that is wrong.
        value: String,
        /// What it should be.
        what: &'static str,
        /// A right one.
        example: &'static str,
    },
    /// A path that does not begin at the root.
    #[error("target `{target}`: the path must begin with `/`; write `{remedy}`")]
    Relative {
        /// As given.
        target: String,
        /// A right one.
        remedy: String,
    },
    /// A path of the mount instead of the cgroup's.
    #[error("target `{target}`: write the path as in /proc/PID/cgroup, without the mount point: `cgroup:{remedy}`")]
    Mounted {
        /// As given.
        target: String,
        /// The path without `/sys/fs/cgroup`.
        remedy: String,
    },
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let target = || text.to_owned();
        let Some((kind, value)) = text.split_once(':') else {
            return match text {
                "auto" => Ok(Self::Auto),
                "all" => Ok(Self::All),
                _ => Err(TargetError::Unknown { target: target(), hint: guess(text) }),
            };
        };
        if let Some(word) = WORDS.into_iter().find(|word| *word == kind) {
            return Err(TargetError::NoValue { target: target(), word });
        }
        if !KINDS.contains(&kind) {
            let address = address_port(text).map(|port| format!("did you mean `port:{port}`?"));
            let near = || {
                nearest(kind).map_or_else(
                    || format!("there is no kind `{kind}`"),
                    |near| format!("there is no kind `{kind}`, did you mean `{near}`?"),
                )
            };
            let hint = address.unwrap_or_else(near);
            return Err(TargetError::Unknown { target: target(), hint });
        }
        let example = match kind {
            "port" => "port:8000",
            "comm" => "comm:llama-server",
            "pid" => "pid:4711",
            "cgroup" => "cgroup:/system.slice/vllm.service",
            _ => "unix:/run/llama.sock",
        };
        if value.is_empty() {
            return Err(TargetError::Empty { target: target(), example });
        }
        let number = |what| TargetError::Number { target: target(), value: value.to_owned(), what, example };
        match kind {
            "port" => {
                let port = value.parse().ok().filter(|port| *port != 0);
                port.map(Self::Port).ok_or_else(|| number("TCP port (1 to 65535)"))
            }
            "pid" => {
                let pid = value.parse().ok().filter(|pid| (1..=4_194_304).contains(pid));
                pid.map(Self::Pid).ok_or_else(|| number("process id (1 to 4194304)"))
            }
            "comm" => Ok(Self::Comm(cut(value))),
            _ if !value.starts_with('/') => Err(TargetError::Relative { target: target(), remedy: format!("{kind}:/{value}") }),
            "cgroup" => match value.strip_prefix("/sys/fs/cgroup") {
                Some(inside) if inside.is_empty() || inside.starts_with('/') => {
                    Err(TargetError::Mounted { target: target(), remedy: format!("/{}", inside.trim_start_matches('/')) })
                }
                _ => Ok(Self::Cgroup(value.to_owned())),
            },
            _ => Ok(Self::Unix(PathBuf::from(value))),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => out.write_str("auto"),
            Self::Port(port) => write!(out, "port:{port}"),
            Self::Comm(name) => write!(out, "comm:{name}"),
            Self::Pid(pid) => write!(out, "pid:{pid}"),
            Self::Cgroup(path) => write!(out, "cgroup:{path}"),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
            Self::All => out.write_str("all"),
        }
    }
}

impl Serialize for Target {
    /// As it is written.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads all targets; none = `auto`. Repeated ones count once.
///
/// # Errors
/// [`TargetError`] of the first that can't be read.
pub fn parse_all<S: AsRef<str>>(targets: &[S]) -> Result<Vec<Target>, TargetError> {
    let mut parsed = Vec::with_capacity(targets.len());
    for target in targets {
        let target = target.as_ref().parse()?;
        if !parsed.contains(&target) {
            parsed.push(target);
        }
    }
    if parsed.is_empty() {
        parsed.push(Target::Auto);
    }
    Ok(parsed)
}

/// A name as the kernel cuts it, and as `/proc` then shows it.
fn cut(name: &str) -> String {
    let bytes = name.as_bytes();
    String::from_utf8_lossy(&bytes[..bytes.len().min(COMM_BYTES)]).into_owned()
}

/// What a word without a colon was probably meant to be.
fn guess(text: &str) -> String {
    if text.is_empty() {
        "it is empty".to_owned()
    } else if text.parse::<u16>().is_ok() {
        format!("did you mean `port:{text}`?")
    } else if text.parse::<u32>().is_ok() {
        format!("did you mean `pid:{text}`?")
    } else if text.ends_with(".sock") {
        "requests over unix sockets are not measured yet".to_owned()
    } else if text.starts_with('/') {
        format!("did you mean `cgroup:{text}`?")
    } else if let Some(kind) = KINDS.into_iter().find(|kind| *kind == text) {
        format!("`{kind}` needs a value after a colon")
    } else if let Some(near) = nearest(text) {
        format!("did you mean `{near}`?")
    } else {
        format!("did you mean `comm:{text}`?")
    }
}

/// The port of what looks like an address: `localhost:8000`, `[::1]:8000`, `http://node:8000/v1`. Nothing that is near a kind.
fn address_port(text: &str) -> Option<u16> {
    let bare = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let (host, port) = bare.unwrap_or(text).split('/').next()?.rsplit_once(':')?;
    let meant_a_kind = bare.is_none() && nearest(host).is_some();
    port.parse().ok().filter(|port| *port != 0 && !meant_a_kind)
}

fn nearest(text: &str) -> Option<&'static str> {
    let close = KINDS.into_iter().chain(WORDS).map(|word| (strsim::damerau_levenshtein(word, &text.to_lowercase()), word));
    close.filter(|(distance, word)| *distance <= word.len() / 2).min().map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn says(target: &str) -> String {
        target.parse::<Target>().expect_err(target).to_string()
    }

    #[test]
    fn every_form_is_read_and_written() {
        for (text, target) in [
            ("auto", Target::Auto),
            ("all", Target::All),
            ("port:8000", Target::Port(8_000)),
            ("port:65535", Target::Port(65_535)),
            ("comm:llama-server", Target::Comm("llama-server".to_owned())),
            ("comm:a:b c", Target::Comm("a:b c".to_owned())),
            ("pid:1", Target::Pid(1)),
            ("cgroup:/", Target::Cgroup("/".to_owned())),
            ("cgroup:/kubepods.slice/a:b", Target::Cgroup("/kubepods.slice/a:b".to_owned())),
            ("unix:/run/llama.sock", Target::Unix(PathBuf::from("/run/llama.sock"))),
        ] {
            assert_eq!(text.parse(), Ok(target.clone()), "{text}");
            assert_eq!(target.to_string(), text);
        }
    }

    #[test]
    fn names_are_cut_as_the_kernel_cuts_them() {
        assert_eq!("comm:text-generation-launcher".parse(), Ok(Target::Comm("text-generation".to_owned())));
        assert_eq!("comm:fourteen-bytes\u{e9}".parse(), Ok(Target::Comm("fourteen-bytes\u{fffd}".to_owned())));
    }

    #[test]
    fn each_mistake_has_its_remedy() {
        for (target, remedy) in [
            ("", "it is empty"),
            ("8000", "did you mean `port:8000`?"),
            ("123456", "did you mean `pid:123456`?"),
            ("atuo", "did you mean `auto`?"),
            ("All", "did you mean `all`?"),
            ("port", "`port` needs a value after a colon"),
            ("llama-server", "did you mean `comm:llama-server`?"),
            ("/system.slice", "did you mean `cgroup:/system.slice`?"),
            ("/run/a.sock", "unix sockets are not measured yet"),
            ("prot:8000", "did you mean `port`?"),
            ("Port:8000", "did you mean `port`?"),
            ("localhost:8000", "did you mean `port:8000`?"),
            ("127.0.0.1:8000", "did you mean `port:8000`?"),
            ("[::1]:8000", "did you mean `port:8000`?"),
            (":8000", "did you mean `port:8000`?"),
            ("http://localhost:8000/v1", "did you mean `port:8000`?"),
            ("localhost:0", "there is no kind `localhost`"),
            ("http://localhost", "there is no kind `http`"),
            ("container:x", "there is no kind `container`; the forms are auto, port:8000"),
            ("port:", "write for example `port:8000`"),
            ("port:0", "`0` is not a TCP port"),
            ("port:65536", "`65536` is not a TCP port"),
            ("port:http", "`http` is not a TCP port"),
            ("port: 8000", "` 8000` is not a TCP port"),
            ("port:127.0.0.1:8000", "`127.0.0.1:8000` is not a TCP port"),
            ("pid:0", "`0` is not a process id"),
            ("pid:-1", "`-1` is not a process id"),
            ("pid:4194305", "is not a process id"),
            ("comm:", "write for example `comm:llama-server`"),
            ("cgroup:system.slice", "write `cgroup:/system.slice`"),
            ("unix:llama.sock", "write `unix:/llama.sock`"),
            ("cgroup:/sys/fs/cgroup/system.slice", "`cgroup:/system.slice`"),
            ("cgroup:/sys/fs/cgroup", "`cgroup:/`"),
            ("auto:x", "write `auto` alone"),
            ("all:", "write `all` alone"),
        ] {
            assert!(says(target).contains(remedy), "{target:?} → {}", says(target));
            assert!(says(target).contains(&format!("`{target}`")), "{target:?} is not shown: {}", says(target));
        }
    }

    #[test]
    fn none_is_auto_and_repeated_ones_count_once() {
        assert_eq!(parse_all::<&str>(&[]), Ok(vec![Target::Auto]));
        assert_eq!(parse_all(&["port:1", "comm:a", "port:1"]), Ok(vec![Target::Port(1), Target::Comm("a".to_owned())]));
        assert!(parse_all(&["port:1", "nothing:x"]).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_a_target_or_an_error(text in "\\PC{0,24}") {
            if let Ok(target) = text.parse::<Target>() {
                prop_assert_eq!(target.to_string().parse::<Target>(), Ok(target));
            }
        }
    }
}
