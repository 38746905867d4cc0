//! Requests of known times, and what the agent says of them.

use std::{
    collections::BTreeMap,
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tailcomb_tests::{
    agent::Agent,
    http::{Step, chunk, read_until, write},
};

/// Unary, 120 ms.
pub(crate) const UNARY: &str = "/v1/completions";
/// A stream: head at 5 ms, first event at 300 ms, end at 600 ms.
pub(crate) const STREAM: &str = "/v1/chat/completions";
/// Unary, in two chunks, 200 ms.
pub(crate) const CHUNKED: &str = "/v1/embeddings";
/// Unary, at once.
pub(crate) const QUICK: &str = "/v1/models";
/// A stream that does not end by itself: an event each 20 ms.
pub(crate) const ENDLESS: &str = "/v1/messages";

/// Which step of [`STREAM`]'s script writes the first event.
pub(crate) const FIRST_EVENT: usize = 3;

const SSE_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// How the server answers.
pub(crate) fn script(path: &str) -> Vec<Step> {
    match path {
        UNARY => vec![Step::Wait(120), write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")],
        STREAM => vec![
            Step::Wait(5),
            write(SSE_HEAD),
            Step::Wait(295),
            write(&chunk("data: {\"n\":1}\n\n")),
            Step::Wait(300),
            write(&(chunk("data: [DONE]\n\n") + "0\r\n\r\n")),
        ],
        CHUNKED => vec![
            Step::Wait(100),
            write(&("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned() + &chunk("ok"))),
            Step::Wait(100),
            write("0\r\n\r\n"),
        ],
        ENDLESS => {
            let events = (0..3_000).flat_map(|_| [write(&chunk("data: 1\n\n")), Step::Wait(20)]);
            std::iter::once(write(SSE_HEAD)).chain(events).collect()
        }
        _ => vec![write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")],
    }
}

/// How the answer on a path ends.
fn end_of(path: &str) -> &'static [u8] {
    if path == STREAM || path == CHUNKED { b"\r\n0\r\n\r\n" } else { b"\r\n\r\nok" }
}

/// A connection that waits at most 60 s for a byte.
pub(crate) fn connect(port: u16) -> Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_mins(1)))?;
    Ok(stream)
}

/// Sends a request, and leaves its answer to come.
pub(crate) fn send(stream: &mut TcpStream, path: &str) -> Result<()> {
    Ok(write!(stream, "POST {path} HTTP/1.1\r\nHost: server\r\nContent-Length: 7\r\n\r\n{{\"a\":1}}").map(drop)?)
}

/// One request with its answer.
pub(crate) fn ask(stream: &mut TcpStream, path: &str) -> Result<()> {
    send(stream, path)?;
    read_until(stream, end_of(path)).map(drop)
}

/// `count` requests on each of `connections` connections at once.
pub(crate) fn load(port: u16, path: &'static str, connections: usize, count: usize) -> Result<()> {
    let clients: Vec<_> = (0..connections)
        .map(|_| {
            thread::spawn(move || {
                let mut stream = connect(port)?;
                (0..count).try_for_each(|_| ask(&mut stream, path))
            })
        })
        .collect();
    clients.into_iter().try_for_each(|client| client.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
}

/// `/metrics` as text.
pub(crate) struct Scrape(pub(crate) String);

impl Scrape {
    /// Asks.
    pub(crate) fn of(agent: &Agent) -> Result<Self> {
        let (status, text) = agent.get("/metrics")?;
        ensure!(status == 200, "/metrics: {status}: {text}");
        Ok(Self(text))
    }

    /// It without comments and buckets, for messages.
    pub(crate) fn shown(&self) -> String {
        let lines = self.0.lines().filter(|line| !line.starts_with('#') && !line.contains("le=\""));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Values of one sample name by labels, of the series that have all of `labels`.
    pub(crate) fn series(&self, name: &str, labels: &[(&str, &str)]) -> BTreeMap<String, f64> {
        let wanted: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let samples = self.0.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let rest = series.strip_prefix(name).filter(|rest| rest.is_empty() || rest.starts_with('{'))?;
            Some((rest.to_owned(), value.parse().ok()?))
        });
        samples.filter(|(series, _)| wanted.iter().all(|label| series.contains(label))).collect()
    }

    /// The sum of such series; `None` where there is none.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.series(name, labels).into_values().reduce(|a, b| a + b)
    }
}

/// Scrapes until `found` says that it is there, for at most `patience`; then how long that took.
pub(crate) fn until(
    agent: &Agent,
    patience: Duration,
    what: &str,
    found: impl Fn(&Scrape) -> bool,
) -> Result<(Scrape, Duration)> {
    let begun = Instant::now();
    loop {
        let scrape = Scrape::of(agent)?;
        let passed = begun.elapsed();
        if found(&scrape) {
            return Ok((scrape, passed));
        }
        ensure!(passed < patience, "{what}: not within {patience:?}:\n{}", scrape.shown());
        thread::sleep(Duration::from_millis(10));
    }
}
