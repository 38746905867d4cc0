//! Reads the three sources of the configuration and says where a bad value came from.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use toml::{Table, Value, de::DeTable};

use super::{
    Config,
    field::{FIELDS, nearest},
};

/// What flags set, by field name.
pub type Overrides = Vec<(&'static str, Value)>;

/// A configuration that can't be used. Each message says what, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("config file {path}: {source}; give a readable file to --config, or leave it out for the defaults")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is no TOML.
    #[error("config file {path}, line {line}: {why}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// Reason.
        why: String,
    },
    /// A field that does not exist.
    #[error("config file {path}, line {line}: unknown field `{name}`{hint}; `tailcomb run --print-config` lists them all")]
    UnknownField {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// The unknown name.
        name: String,
        /// The nearest known one, as a clause.
        hint: String,
    },
    /// A value that is not allowed.
    #[error("{place}: {why}")]
    Value {
        /// File, line and field; variable; or flag.
        place: String,
        /// What is wrong, and what is right.
        why: String,
    },
}

/// Most bytes of a file: one that is longer is something else, such as a device without an end.
const LONGEST: u64 = 1 << 20;

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than 1 MiB, so no configuration"));
    }
    Ok(text)
}

/// Reads `file` if given, then the variables of `environment`, then `flags`. A variable that is no field is passed over: see
/// [`super::unknown::unknown_variables`].
///
/// # Errors
/// [`ConfigError`] for the first value that can't be used.
pub fn load(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
    flags: Overrides,
) -> Result<Config, ConfigError> {
    let mut values = Table::new();
    if let Some(path) = file {
        let text = read(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        values = parse(path, &text)?;
    }
    for (variable, text) in environment {
        let Some(field) = FIELDS.iter().find(|field| field.variable() == variable) else { continue };
        values.insert(field.name.to_owned(), from_text(field.name, &text));
        check(&values, |_| format!("environment variable {variable}"))?;
    }
    for (name, value) in flags {
        values.insert(name.to_owned(), value);
        check(&values, |field| format!("flag --{}", flag(field)))?;
    }
    check(&values, |field| format!("configuration: {field}"))
}

/// The flag of a field: lists are given by repeating a flag in the singular.
fn flag(field: &str) -> String {
    match field {
        "targets" => "target".to_owned(),
        "allowed_hosts" => "allowed-host".to_owned(),
        _ => field.replace('_', "-"),
    }
}

/// Parses one file, refusing unknown fields and bad values with their line.
fn parse(path: &Path, text: &str) -> Result<Table, ConfigError> {
    let syntax = |error: &toml::de::Error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        ConfigError::Syntax { path: path.to_owned(), line, why: error.message().to_owned() }
    };
    let spanned = DeTable::parse(text).map_err(|error| syntax(&error))?;
    for key in spanned.get_ref().keys() {
        let name: &str = key.get_ref();
        if FIELDS.iter().any(|field| field.name == name) {
            continue;
        }
        return Err(ConfigError::UnknownField {
            path: path.to_owned(),
            line: line_of(text, key.span().start),
            name: name.to_owned(),
            hint: nearest(name, FIELDS.iter().map(|field| field.name))
                .map_or_else(String::new, |near| format!(", did you mean `{near}`?")),
        });
    }
    let values = text.parse::<Table>().map_err(|error| syntax(&error))?;
    check(&values, |field| {
        let key = spanned.get_ref().keys().find(|key| *key.get_ref() == *field);
        let line = key.map_or(1, |key| line_of(text, key.span().start));
        format!("config file {}, line {line}: {field}", path.display())
    })?;
    Ok(values)
}

fn line_of(text: &str, position: usize) -> usize {
    text.as_bytes().iter().take(position).filter(|byte| **byte == b'\n').count() + 1
}

/// A variable's text as the type that the field has by default.
fn from_text(name: &str, text: &str) -> Value {
    let default = Table::try_from(Config::default()).unwrap_or_default();
    match default.get(name) {
        Some(Value::Array(_)) => Value::Array(
            text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(|item| Value::String(item.to_owned())).collect(),
        ),
        Some(Value::Integer(_)) => text.trim().parse().map_or_else(|_| Value::String(text.to_owned()), Value::Integer),
        Some(Value::Float(_)) => text.trim().parse().map_or_else(|_| Value::String(text.to_owned()), Value::Float),
        _ => Value::String(text.to_owned()),
    }
}

/// Deserialises and validates what stands so far; `place` says where the value of a field came from.
fn check(values: &Table, place: impl Fn(&str) -> String) -> Result<Config, ConfigError> {
    let wrong = |field: &str, why: String| ConfigError::Value { place: place(field), why };
    let config = Config::deserialize(values.clone()).map_err(|error| {
        let alone = |name: &String, value: &Value| Table::from_iter([(name.clone(), value.clone())]);
        let bad = values.iter().find(|(name, value)| Config::deserialize(alone(name, value)).is_err());
        let name = bad.map_or("?", |(name, _)| name);
        let default = Table::try_from(Config::default()).unwrap_or_default();
        let default = default.get(name).map_or_else(String::new, |value| format!("; the default is {value}"));
        wrong(name, format!("{}{default}", error.message().trim()))
    })?;
    config.validate().map_err(|(field, why)| wrong(field, why))?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    fn error_of(text: &str) -> String {
        let file = file(text);
        let error = load(Some(file.path()), [], Vec::new()).expect_err("refused").to_string();
        error.replace(&file.path().display().to_string(), "FILE")
    }

    #[test]
    fn an_unknown_field_is_refused_with_line_and_nearest_name() {
        let error = error_of("listen = \"127.0.0.1:1\"\n\nmax_overhed = 0.1\n");
        assert!(
            error.starts_with("config file FILE, line 3: unknown field `max_overhed`, did you mean `max_overhead`?"),
            "{error}"
        );
        let error = error_of("[server]\nport = 1\n");
        assert!(error.starts_with("config file FILE, line 1: unknown field `server`"), "{error}");
    }

    #[test]
    fn a_wrong_type_and_broken_syntax_are_refused_with_their_line() {
        let error = error_of("\nring_buffer_mib = \"big\"\n");
        assert!(error.starts_with("config file FILE, line 2: ring_buffer_mib: ") && error.ends_with("default is 4"), "{error}");
        assert!(error_of("listen = \n").starts_with("config file FILE, line 1: "));
        assert!(error_of("\ntargets = [\"bogus\"]\n").starts_with("config file FILE, line 2: targets: "));
        assert!(error_of("\n\nmax_overhead = 7.0\n").starts_with("config file FILE, line 3: max_overhead: 7 is not between"));
    }

    #[test]
    fn the_later_source_wins_and_a_bad_one_is_named() {
        let file = file("listen = \"127.0.0.1:1\"\nmax_overhead = 0.1\n");
        let variable = |name: &str, value: &str| [(name.to_owned(), value.to_owned())];
        let flags = || vec![("listen", Value::String("127.0.0.1:3".to_owned()))];

        let config = load(Some(file.path()), variable("TAILCOMB_LISTEN", "127.0.0.1:2"), Vec::new()).expect("valid");
        assert_eq!((config.listen.port(), config.max_overhead), (2, 0.1));
        let config = load(Some(file.path()), variable("TAILCOMB_LISTEN", "127.0.0.1:2"), flags()).expect("valid");
        assert_eq!(config.listen.port(), 3);
        let config = load(None, variable("TAILCOMB_TARGETS", "port:1, comm:x"), Vec::new()).expect("valid");
        assert_eq!(config.targets, ["port:1", "comm:x"]);

        let error = load(None, variable("TAILCOMB_MAX_OVERHEAD", "lots"), Vec::new()).expect_err("refused").to_string();
        assert!(error.starts_with("environment variable TAILCOMB_MAX_OVERHEAD: invalid type"), "{error}");
        let error = load(None, [], vec![("listen", Value::String("nowhere".to_owned()))]).expect_err("refused").to_string();
        assert!(error.starts_with("flag --listen: `nowhere` is not ADDR:PORT; write for example "), "{error}");
        let target = vec![("targets", Value::Array(vec![Value::String("prt:1".to_owned())]))];
        let error = load(None, [], target).expect_err("refused").to_string();
        assert!(error.starts_with("flag --target: target `prt:1`"), "{error}");
    }

    #[test]
    fn variables_that_kubernetes_makes_are_passed_over() {
        let variables = [
            ("TAILCOMB_PORT".to_owned(), "tcp://10.0.0.1:9809".to_owned()),
            ("TAILCOMB_SERVICE_HOST".to_owned(), "10.0.0.1".to_owned()),
        ];
        assert_eq!(load(None, variables, Vec::new()).expect("valid"), Config::default());
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = load(Some(Path::new("/dev/zero")), [], Vec::new()).expect_err("it never ends").to_string();
        assert!(error.contains("/dev/zero") && error.contains("longer than 1 MiB"), "{error}");
    }

    #[test]
    fn an_unreadable_file_is_named() {
        let error = load(Some(Path::new("/nonexistent/tailcomb.toml")), [], Vec::new()).expect_err("refused").to_string();
        assert!(error.contains("/nonexistent/tailcomb.toml") && error.contains("leave it out"), "{error}");
    }
}
