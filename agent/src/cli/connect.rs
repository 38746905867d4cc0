//! Asking a running agent over HTTP.

use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, Uri, body::Bytes, client::conn::http1::handshake, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};

/// Where an agent listens unless it is told otherwise.
pub(super) const DEFAULT: &str = "http://127.0.0.1:9809";

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer, bytes.
const LONGEST: usize = 64 << 20;

/// The agent does not answer, or not what was asked. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("can't ask the agent: {0}")]
    Runtime(#[source] std::io::Error),
    #[error("no agent answers at {url}: {why}; start one with `tailcomb run`, or say where it is with --connect URL")]
    NoAnswer { url: Uri, why: String },
    #[error("{url} answers {status}: {why}")]
    Refused { url: Uri, status: StatusCode, why: String },
    #[error("{url} answers something that is no JSON ({why}): is it tailcomb that listens there?")]
    NotJson { url: Uri, why: serde_json::Error },
}

/// An URL to connect to: `http://HOST[:PORT]`, and nothing behind it.
///
/// # Errors
/// What is right.
pub(super) fn url(text: &str) -> Result<Uri, String> {
    const RIGHT: &str = "give http://HOST:PORT, for example http://127.0.0.1:9809";
    let uri: Uri = text.parse().map_err(|error| format!("{error}; {RIGHT}"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(format!("the agent does not speak TLS; {RIGHT}")),
        _ => return Err(RIGHT.to_owned()),
    }
    if uri.host().is_none_or(str::is_empty) || uri.query().is_some() || !matches!(uri.path(), "" | "/") {
        return Err(RIGHT.to_owned());
    }
    Ok(uri)
}

/// GETs `target` (path and query) of the agent at `agent` and reads its JSON.
///
/// # Errors
/// [`AskError`].
pub(super) fn get(agent: &Uri, target: &str) -> Result<Value, AskError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AskError::Runtime)?;
    let no_answer = |why: String| AskError::NoAnswer { url: agent.clone(), why };
    let (status, body) = runtime
        .block_on(async { timeout(PATIENCE, fetch(agent, target)).await })
        .map_err(|_| no_answer(format!("nothing came within {} s", PATIENCE.as_secs())))?
        .map_err(|error| no_answer(error.to_string()))?;
    let answer: Result<Value, _> = serde_json::from_slice(&body);
    if !status.is_success() {
        let why = answer.ok().and_then(|answer| answer["error"].as_str().map(str::to_owned));
        return Err(AskError::Refused { url: agent.clone(), status, why: why.unwrap_or_else(|| "without a reason".to_owned()) });
    }
    answer.map_err(|why| AskError::NotJson { url: agent.clone(), why })
}

/// What may go wrong on the way; only its words matter.
type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn fetch(agent: &Uri, target: &str) -> Result<(StatusCode, Bytes), AnyError> {
    let host = agent.host().unwrap_or_default();
    // An IPv6 address stands in brackets in URLs only.
    let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let stream = TcpStream::connect((name, agent.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // It ends with the runtime; its errors come out of the request too.
    tokio::spawn(connection);
    let authority = agent.authority().map(ToString::to_string).unwrap_or_default();
    let request = Request::get(target).header(header::HOST, authority).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), LONGEST).collect().await?.to_bytes();
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_connected_to() {
        for good in ["http://127.0.0.1:9809", "http://node-7", "http://[::1]:9809/"] {
            assert!(url(good).is_ok(), "{good}");
        }
        for bad in ["", "127.0.0.1:9809", "https://node-7", "http://", "http://node-7/metrics", "http://a b", "ftp://node-7"] {
            let why = url(bad).expect_err(bad);
            assert!(why.contains("http://HOST:PORT"), "{bad}: {why}");
        }
    }

    #[test]
    fn nobody_there_is_said_with_the_remedy() {
        // Bound and given back: nobody listens there for now.
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("a port").port();
        let error = get(&url(&format!("http://127.0.0.1:{port}")).expect("an URL"), "/").expect_err("nobody").to_string();
        assert!(error.contains("tailcomb run") && error.contains("--connect"), "{error}");
    }
}
