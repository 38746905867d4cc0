//! Reading the query part of a URL: every mistake is said, none is passed over.

use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

/// What is wrong with a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// No pairs of name and value.
    #[error("the query can't be read: {0}")]
    Undecodable(String),
    /// No such parameter.
    #[error("unknown parameter `{name}`{hint}; known are {known}")]
    Unknown {
        /// As given.
        name: String,
        /// The nearest known one, as a clause.
        hint: String,
        /// All of them.
        known: String,
    },
    /// Twice.
    #[error("the parameter `{0}` is there twice")]
    Twice(String),
    /// Missing.
    #[error("the parameter `{name}` is missing: {expected}")]
    Missing {
        /// Which one.
        name: &'static str,
        /// What to give.
        expected: String,
    },
    /// A value that can't be.
    #[error("{name}={value}: {why}")]
    Value {
        /// Which parameter.
        name: String,
        /// As given.
        value: String,
        /// What is wrong and what is right.
        why: String,
    },
}

/// The parameters of one request.
#[derive(Debug)]
pub struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// Takes decoded pairs; only the names in `known` may occur, each once.
    ///
    /// # Errors
    /// [`ParameterError`] for the first that may not.
    pub fn new(pairs: Vec<(String, String)>, known: &[&str]) -> Result<Self, ParameterError> {
        let mut values = BTreeMap::new();
        for (name, value) in pairs {
            if !known.contains(&name.as_str()) {
                let hint = hint(&name, known);
                return Err(ParameterError::Unknown { name: shown(&name), hint, known: known.join(", ") });
            }
            if values.insert(name.clone(), value).is_some() {
                return Err(ParameterError::Twice(name));
            }
        }
        Ok(Self(values))
    }

    /// A value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Reads a value with `read`, which says what is wrong.
    ///
    /// # Errors
    /// [`ParameterError::Value`].
    pub fn read<T>(&self, name: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>, ParameterError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = |why| ParameterError::Value { name: name.to_owned(), value: shown(value), why };
        read(value).map(Some).map_err(wrong)
    }

    /// Takes the rest as label filters.
    #[must_use]
    pub fn filters(&self, labels: &[&str]) -> Vec<(String, String)> {
        let pairs = self.0.iter().filter(|(name, _)| labels.contains(&name.as_str()));
        pairs.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// `, did you mean `x`?`, where something is near.
#[must_use]
pub fn hint(name: &str, known: &[&str]) -> String {
    let nearest = known.iter().map(|known| (strsim::damerau_levenshtein(name, known), known)).min();
    nearest
        .filter(|(distance, known)| *distance * 2 <= known.len())
        .map_or_else(String::new, |(_, known)| format!(", did you mean `{known}`?"))
}

/// What is sent back of what was sent, shortened.
#[must_use]
pub fn shown(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(100).collect()
}

/// A time in unix seconds: `1700000000`, `1700000000.5`, `2026-11-30T19:00:00Z`, `-10m` (before `now`), `now`.
///
/// # Errors
/// What is right.
pub fn time(text: &str, now: f64) -> Result<f64, String> {
    if text == "now" {
        return Ok(now);
    }
    if let Some(before) = text.strip_prefix('-') {
        return duration(before).map(|before| (now - before.as_secs_f64()).max(0.0));
    }
    if let Ok(seconds) = text.parse::<f64>() {
        // Year 2500: beyond it the arithmetic would still hold, but nobody means it.
        return (0.0..16_725_225_600.0)
            .contains(&seconds)
            .then_some(seconds)
            .ok_or_else(|| "is not a unix time in seconds".to_owned());
    }
    let time = humantime::parse_rfc3339_weak(text).map_err(|_| {
        "is not a time: give unix seconds (1700000000), RFC 3339 (2026-11-30T19:00:00Z), or what is before now (-10m)".to_owned()
    })?;
    Ok(time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()))
}

/// A duration: `90`, `90s`, `10m`, `1h30m`.
///
/// # Errors
/// What is right.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "is not a duration: give seconds (90) or a unit (90s, 10m, 1h)".to_owned();
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(Duration::from_secs).map_err(|_| wrong());
    }
    humantime::parse_duration(text).map_err(|_| wrong())
}

/// A whole number from `least` to `most`.
///
/// # Errors
/// What is right.
pub fn whole(text: &str, least: u64, most: u64) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|value| (least..=most).contains(value))
        .ok_or_else(|| format!("is not a whole number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_every_form() {
        assert_eq!(time("1700000000", 0.0), Ok(1_700_000_000.0));
        assert_eq!(time("1700000000.5", 0.0), Ok(1_700_000_000.5));
        assert_eq!(time("2023-11-14T22:13:20Z", 0.0), Ok(1_700_000_000.0));
        assert_eq!(time("-10m", 1_700_000_600.0), Ok(1_700_000_000.0));
        assert_eq!(time("now", 5.0), Ok(5.0));
        for bad in ["", "yesterday", "NaN", "inf", "1e30", "-", "-x", "2023-13-14T22:13:20Z"] {
            assert!(time(bad, 0.0).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_in_every_form() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert!(duration("").is_err() && duration("ten").is_err() && duration("99999999999999999999").is_err());
    }

    #[test]
    fn a_typo_is_named() {
        let error = Parameters::new(vec![("stp".to_owned(), "5".to_owned())], &["step", "from"]).expect_err("unknown");
        assert_eq!(error.to_string(), "unknown parameter `stp`, did you mean `step`?; known are step, from");
        let twice = vec![("step".to_owned(), "5".to_owned()), ("step".to_owned(), "6".to_owned())];
        assert_eq!(Parameters::new(twice, &["step"]).expect_err("twice"), ParameterError::Twice("step".to_owned()));
    }
}
