//! A real Prometheus that scrapes one address each second.

use std::{
    fmt::Write as _,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// How long it may take to start, and to have scraped.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether it asks for native histograms, which is to say: for protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Histograms {
    /// It does.
    Native,
    /// It does not: it asks for OpenMetrics text.
    Classic,
}

/// A running Prometheus; ends with its owner.
pub(crate) struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts one that scrapes `target`, and waits until it has.
    pub(crate) fn start(target: SocketAddr, histograms: Histograms) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("prometheus.yml");
        fs::write(
            &config,
            format!(
                "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
                 scrape_configs: [{{job_name: tailcomb, static_configs: [{{targets: ['{target}']}}]}}]\n"
            ),
        )?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdin(Stdio::null());
        if histograms == Histograms::Native {
            command.arg("--enable-feature=native-histograms");
        }
        let mut prometheus = Self { child: command.spawn().context("starting prometheus")?, address, _folder: folder };
        prometheus.wait_for_scrapes(2)?;
        Ok(prometheus)
    }

    /// Waits until it has scraped that often from now on.
    pub(crate) fn wait_for_scrapes(&mut self, scrapes: u32) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        let (mut seen, mut last) = (0, None);
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("prometheus ended with {status}");
            }
            let target = self.target().unwrap_or_default();
            let scrape = target["lastScrape"].as_str().map(str::to_owned);
            if target["health"] == "up" && scrape != last {
                seen += u32::from(last.is_some());
                last = scrape;
            }
            if seen >= scrapes {
                return Ok(());
            }
            ensure!(Instant::now() < end, "prometheus has not scraped {scrapes} times in {PATIENCE:?}: {target}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// What it says of its one target.
    fn target(&self) -> Result<Value> {
        let mut answer = self.get("/api/v1/targets")?;
        // None yet, just after the start.
        Ok(answer["data"]["activeTargets"].get_mut(0).map(Value::take).unwrap_or_default())
    }

    /// The values of an instant query, one for each series of the answer.
    pub(crate) fn query(&self, promql: &str) -> Result<Vec<f64>> {
        let mut encoded = String::new();
        for byte in promql.bytes() {
            write!(encoded, "%{byte:02X}")?;
        }
        let mut answer = self.get(&format!("/api/v1/query?query={encoded}"))?;
        ensure!(answer["status"] == "success", "{promql}: {answer}");
        let Value::Array(series) = answer["data"]["result"].take() else { bail!("{promql}: {answer}") };
        series
            .iter()
            .map(|series| match &series["value"][1] {
                Value::String(value) => value.parse().with_context(|| format!("{promql}: {value}")),
                _ => bail!("{promql}: {series}"),
            })
            .collect()
    }

    /// The value of a query that has one.
    pub(crate) fn one(&self, promql: &str) -> Result<f64> {
        match self.query(promql)?[..] {
            [value] => Ok(value),
            ref values => bail!("{promql}: one value expected, there are {}", values.len()),
        }
    }

    fn get(&self, path: &str) -> Result<Value> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
        serde_json::from_str(body).with_context(|| format!("{path}: {body}"))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended by itself; its data goes with its folder in any case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
