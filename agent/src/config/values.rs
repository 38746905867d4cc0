//! Values that their type alone does not make right: read and checked here, with an example of what is right.

use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, de::Error};
use tracing::level_filters::LevelFilter;

/// Reads the address and port to listen on.
///
/// # Errors
/// What is wrong, with an example.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text.rsplit(':').next().and_then(|port| port.parse::<u16>().ok()).unwrap_or(9809);
        format!(
            "`{text}` is not ADDR:PORT; write for example 127.0.0.1:{port}, or 0.0.0.0:{port} for every address of this machine"
        )
    })
}

pub(super) fn deserialize_listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    parse_listen(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// A level, or several by module: `info,tailcomb::export=debug`. A word alone that is no level would be a module with all its
/// lines to the filter that reads it, and silence for the rest: nobody means that.
///
/// # Errors
/// What is wrong, with the list of levels.
pub(super) fn check_log_level(filter: &str) -> Result<(), String> {
    let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
    let is_module =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte));
    for word in filter.split(',') {
        let right = word.split_once('=').map_or_else(|| is_level(word), |(module, level)| is_module(module) && is_level(level));
        if !right {
            return Err(format!(
                "`{word}` is not a level; write off, error, warn, info, debug or trace, or levels by module: info,tailcomb::export=debug"
            ));
        }
    }
    Ok(())
}

/// A name as it may stand in a `Host` header, without port.
///
/// # Errors
/// What is wrong, with an example.
pub(super) fn check_host(host: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !host.is_empty() && host.bytes().all(plain) {
        return Ok(());
    }
    Err(format!("`{host}` is not a host name; write it without scheme, port and path, for example tailcomb.example"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_without_an_address_is_refused_with_a_right_one() {
        assert_eq!(parse_listen("[::1]:80").map(|address| address.port()), Ok(80));
        for (wrong, right) in
            [(":80", "0.0.0.0:80"), ("80", "127.0.0.1:80"), ("localhost:81", "127.0.0.1:81"), ("", "127.0.0.1:9809")]
        {
            let why = parse_listen(wrong).expect_err(wrong);
            assert!(why.contains(right), "{wrong}: {why}");
        }
    }

    #[test]
    fn only_levels_are_levels() {
        for right in ["off", "error", "warn", "INFO", "debug", "trace", "info,tailcomb=debug", "warn,hyper::proto=off"] {
            assert_eq!(check_log_level(right), Ok(()), "{right}");
            assert!(right.parse::<tracing_subscriber::EnvFilter>().is_ok(), "{right} is none to the filter");
        }
        for wrong in
            ["", "zzz", "info,zzz", "tailcomb=loud", "tailcomb=", "=info", "tailcomb", "info,", "warn, info", "[span]=info"]
        {
            let why = check_log_level(wrong).expect_err(wrong);
            assert!(why.contains("error, warn, info, debug"), "{wrong}: {why}");
        }
    }

    #[test]
    fn hosts_are_names() {
        for right in ["node-7", "tailcomb.example", "TAILCOMB.example."] {
            assert_eq!(check_host(right), Ok(()), "{right}");
        }
        for wrong in ["", "http://node", "node:80", "node/", "a b", "*"] {
            assert!(check_host(wrong).is_err_and(|why| why.contains("for example")), "{wrong}");
        }
    }
}
