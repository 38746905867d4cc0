//! Who may ask: rules on method, host, origin and body, before any route.
//!
//! A page in someone's browser must not read a node's figures through a name that it makes point here (DNS rebinding): so only
//! names that are ours are answered to, and no other origin.

use std::net::IpAddr;

use axum::http::{HeaderMap, Method, StatusCode, Uri, header, uri::Authority};

/// Paths that answer under any name: what asks for them is no browser.
const ANY_HOST: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// 405.
    #[error("this server is read only: use GET or HEAD")]
    Method,
    /// 413.
    #[error("a request here has no body")]
    Body,
    /// 400.
    #[error("the request must name its host, once: send one Host header")]
    NoHost,
    /// 421.
    #[error("this server does not answer to the name `{0}`: use its address, or start the agent with --allowed-host {0}")]
    Host(String),
    /// 403.
    #[error("requests from pages of other origins are refused (Origin: {0})")]
    Origin(String),
}

impl Refusal {
    /// Its status code.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Body => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NoHost => StatusCode::BAD_REQUEST,
            Self::Host(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin(_) => StatusCode::FORBIDDEN,
        }
    }
}

/// The names that are ours.
#[derive(Clone, Debug)]
pub struct Access {
    names: Vec<String>,
}

impl Access {
    /// `allowed` beside IP literals, `localhost` and the name of this node.
    #[must_use]
    pub fn new(node: Option<&str>, allowed: &[String]) -> Self {
        let names = ["localhost"].into_iter().chain(node).chain(allowed.iter().map(String::as_str));
        Self { names: names.map(plain).filter(|name| !name.is_empty()).collect() }
    }

    /// Checks a request that may be answered.
    ///
    /// # Errors
    /// The [`Refusal`] to answer with.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        if method != Method::GET && method != Method::HEAD {
            return Err(Refusal::Method);
        }
        let length = headers.get(header::CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0");
        if length || headers.contains_key(header::TRANSFER_ENCODING) {
            return Err(Refusal::Body);
        }
        let any_host = ANY_HOST.contains(&uri.path());
        // HTTP/1.0 probes of load balancers name no host at all.
        if any_host && uri.authority().is_none() && !headers.contains_key(header::HOST) && !headers.contains_key(header::ORIGIN) {
            return Ok(());
        }
        let host = host(uri, headers)?;
        if !any_host && !self.is_ours(&host) {
            return Err(Refusal::Host(shown(host.host())));
        }
        match headers.get(header::ORIGIN) {
            Some(origin) if !same_origin(origin.as_bytes(), &host) => {
                Err(Refusal::Origin(shown(&String::from_utf8_lossy(origin.as_bytes()))))
            }
            _ => Ok(()),
        }
    }

    fn is_ours(&self, host: &Authority) -> bool {
        let name = plain(host.host());
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        address.parse::<IpAddr>().is_ok() || self.names.contains(&name)
    }
}

/// The name of this node, as the kernel has it; `None` where it has none.
#[must_use]
pub fn node_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty() && name != "(none)")
}

/// The host that is asked: that of an absolute request target before that of the header (RFC 9112, 3.2.2).
fn host(uri: &Uri, headers: &HeaderMap) -> Result<Authority, Refusal> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let header = hosts.next();
    if hosts.next().is_some() {
        return Err(Refusal::NoHost);
    }
    if let Some(authority) = uri.authority() {
        return Ok(authority.clone());
    }
    let host = header.and_then(|host| host.to_str().ok()).filter(|host| !host.is_empty()).ok_or(Refusal::NoHost)?;
    host.parse().map_err(|_| Refusal::Host(shown(host)))
}

/// Is `origin` this very server as the client names it? Its scheme may be https: something before us may speak TLS.
fn same_origin(origin: &[u8], host: &Authority) -> bool {
    let Some(uri) = std::str::from_utf8(origin).ok().and_then(|origin| origin.parse::<Uri>().ok()) else { return false };
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return false };
    let port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let port_of = |authority: &Authority| authority.port_u16().unwrap_or(port);
    plain(authority.host()) == plain(host.host()) && port_of(authority) == port_of(host)
}

/// For comparing: lower case, without the root's dot.
fn plain(name: &str) -> String {
    name.trim().trim_end_matches('.').to_ascii_lowercase()
}

/// What is sent back of what was sent, shortened.
fn shown(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, headers: &[(header::HeaderName, &str)]) -> Result<(), u16> {
        let access = Access::new(Some("Node-7"), &["tailcomb.example".to_owned()]);
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().expect("a value"))).collect();
        let uri: Uri = path.parse().expect("a target");
        access.check(&Method::GET, &uri, &headers).map_err(|refusal| refusal.status().as_u16())
    }

    #[test]
    fn only_our_names_are_answered_to() {
        for (host, expected) in [
            ("127.0.0.1:9809", Ok(())),
            ("10.1.2.3", Ok(())),
            ("[::1]:9809", Ok(())),
            ("[fe80::1]", Ok(())),
            ("localhost", Ok(())),
            ("LOCALHOST:9809", Ok(())),
            ("node-7:9809", Ok(())),
            ("node-7.:9809", Ok(())),
            ("tailcomb.example", Ok(())),
            ("evil.example", Err(421)),
            ("127.0.0.1.evil.example:9809", Err(421)),
            ("localhost.evil.example", Err(421)),
            ("node-70", Err(421)),
            ("not a host", Err(421)),
            ("", Err(400)),
        ] {
            assert_eq!(check("/api/v1/status", &[(header::HOST, host)]), expected, "{host}");
            if expected == Err(421) && !host.contains(' ') {
                for path in ANY_HOST {
                    assert_eq!(check(path, &[(header::HOST, host)]), Ok(()), "{path} answers to {host}");
                }
            }
        }
        assert_eq!(check("/", &[]), Err(400));
        assert_eq!(check("http://evil.example/", &[(header::HOST, "localhost")]), Err(421));
    }

    #[test]
    fn two_hosts_are_none() {
        let mut headers = HeaderMap::new();
        headers.append(header::HOST, "localhost".parse().expect("a value"));
        headers.append(header::HOST, "evil.example".parse().expect("a value"));
        let access = Access::new(None, &[]);
        assert_eq!(access.check(&Method::GET, &Uri::from_static("/"), &headers), Err(Refusal::NoHost));
    }

    #[test]
    fn no_other_origin() {
        for (host, origin, expected) in [
            ("localhost:9809", "http://localhost:9809", Ok(())),
            ("tailcomb.example", "https://tailcomb.example", Ok(())),
            ("tailcomb.example", "https://tailcomb.example:443", Ok(())),
            ("localhost:9809", "http://localhost:3000", Err(403)),
            ("localhost:9809", "http://evil.example", Err(403)),
            ("localhost:9809", "null", Err(403)),
            ("localhost:9809", "file://", Err(403)),
            ("localhost:9809", "", Err(403)),
        ] {
            for path in ["/api/v1/status", "/metrics"] {
                assert_eq!(check(path, &[(header::HOST, host), (header::ORIGIN, origin)]), expected, "{path} {origin}");
            }
        }
    }

    #[test]
    fn read_only_and_without_body() {
        let access = Access::new(None, &[]);
        let uri = Uri::from_static("/metrics");
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::PATCH] {
            assert_eq!(access.check(&method, &uri, &HeaderMap::new()), Err(Refusal::Method));
        }
        assert_eq!(check("/metrics", &[(header::HOST, "localhost"), (header::CONTENT_LENGTH, "5")]), Err(413));
        assert_eq!(check("/metrics", &[(header::HOST, "localhost"), (header::CONTENT_LENGTH, "0")]), Ok(()));
    }
}
