//! The whole way, from bytes on a socket and blocks on a disk to what its users are told.

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nix::unistd::fsync;
use serde_json::Value;
use tailcomb_tests::{
    agent::{Agent, binary},
    case::{Case, Need},
    disk::{Block, Loop, Stat, real_folder},
    http::{self, Server},
};

use crate::{
    prometheus::{Histograms, Prometheus},
    served::bucket_of,
    traffic::{CHUNKED, FIRST_EVENT, QUICK, STREAM, UNARY, ask, connect, load, script, until},
};

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "whole_prometheus_has_what_was_done",
        needs: &[Need::Kernel, Need::Loop, Need::Tool("prometheus")],
        run: prometheus_has_what_was_done,
    },
    Case { name: "whole_heatmaps_and_slow_show_what_was_done", needs: &[Need::Kernel, Need::Loop], run: heatmaps_and_slow },
    Case { name: "whole_a_port_target_is_that_port_alone", needs: &[Need::Kernel], run: port_alone },
    Case { name: "r03_published_within_a_second_of_its_end", needs: &[Need::Kernel], run: published_within_a_second },
];

const HTTP: &str = "http_server_request_duration_seconds";
const FIRST_TOKEN: &str = "gen_ai_server_time_to_first_token_seconds";
const WRITE_BYTES: usize = 16 << 10;

/// Direct writes to a loop device, each of its own, and syncs.
fn write_blocks(disk: &Loop, writes: u64, syncs: u64) -> Result<()> {
    let file = disk.direct(0)?;
    let mut block = Block::new(WRITE_BYTES);
    let before = Stat::of(disk.number)?;
    for number in 0..writes {
        block.write(&file, number * WRITE_BYTES as u64)?;
    }
    for _ in 0..syncs {
        fsync(&file).with_context(|| format!("syncing {}", disk.path.display()))?;
    }
    // The kernel's own count, without which there is nothing to compare with. It has a sync's empty write among the writes.
    let right = |done: &Stat| done.write == [writes + syncs, 0, writes * WRITE_BYTES as u64] && done.flushes == syncs;
    let done = Stat::grown(disk.number, &before, right)?;
    ensure!(right(&done), "{done:?}");
    Ok(())
}

/// What the server did: how long each request of `path` took it, from the request's last byte to the end of step `until`
/// (the last one where that is `None`), rising.
fn truth(server: &Server, count: usize, path: &str, until: Option<usize>) -> Result<Vec<u64>> {
    let mut times: Vec<u64> = server
        .served(count)?
        .iter()
        .filter(|served| served.path == path)
        .map(|served| {
            let step = until.map_or(served.steps.last(), |step| served.steps.get(step)).context("the step was made")?;
            Ok(step.1 - served.read_ns)
        })
        .collect::<Result<_>>()?;
    times.sort_unstable();
    Ok(times)
}

/// The quantile of a query is the truth's, but for one bucket: the probe's marks are some µs beside the server's stamps.
fn quantile_is(prometheus: &Prometheus, series: &str, quantile: f64, truth: &[u64]) -> Result<()> {
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few values")]
    let rank = (quantile * truth.len() as f64).ceil() as usize;
    let value = truth[rank - 1];
    let found = prometheus.one(&format!("histogram_quantile({quantile}, sum({series}))"))?;
    let (above, up_to) = bucket_of(value)?;
    let width = 2f64.powf(1.0 / 8.0);
    ensure!(
        found > above / width && found <= up_to * width,
        "{series}: quantile {quantile} is {found} s, not beside {above} to {up_to} s, where the server has it"
    );
    Ok(())
}

fn prometheus_has_what_was_done() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 16 << 20)?;
    let server = Server::start(script)?;
    let agent = Agent::start(&["--target", &format!("port:{}", server.port)])?;
    let mut prometheus = Prometheus::start(([127, 0, 0, 1], agent.port).into(), Histograms::Native)?;
    let (port, unary) = (server.port, || load(server.port, UNARY, 8, 5));
    let streams = thread::spawn(move || load(port, STREAM, 5, 2));
    unary()?;
    streams.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
    write_blocks(&disk, 50, 3)?;
    // A tick of the agent, and two scrapes after it.
    prometheus.wait_for_scrapes(4)?;

    let http = |mode: &str| format!("{HTTP}{{tailcomb_mode=\"{mode}\",http_route=~\"/v1/.*\",tailcomb_outcome=\"complete\"}}");
    let count = |series: &str| prometheus.one(&format!("histogram_count(sum({series}))"));
    for (series, expected) in [(http("unary"), 40.0), (http("stream"), 10.0), (FIRST_TOKEN.to_owned(), 10.0)] {
        let found = count(&series)?;
        ensure!((found - expected).abs() < 1e-9, "{series}: {found} requests instead of {expected}");
    }
    let by_mode = prometheus.query(&format!("histogram_count(sum by (tailcomb_mode) ({HTTP}{{http_route=~\"/v1/.*\"}}))"))?;
    ensure!(by_mode.len() == 2, "a series for each mode: {by_mode:?}");
    let unary = truth(&server, 50, UNARY, None)?;
    let streams = truth(&server, 50, STREAM, None)?;
    let first_tokens = truth(&server, 50, STREAM, Some(FIRST_EVENT))?;
    ensure!((unary.len(), streams.len()) == (40, 10) && unary[0] >= 120_000_000, "{unary:?} {streams:?}");
    for quantile in [0.1, 0.5, 0.9] {
        quantile_is(&prometheus, &http("unary"), quantile, &unary)?;
        quantile_is(&prometheus, &http("stream"), quantile, &streams)?;
        quantile_is(&prometheus, FIRST_TOKEN, quantile, &first_tokens)?;
    }

    let name = disk.name();
    let writes = format!("{{device=\"{name}\",operation=\"write\"}}");
    let found = count(&format!("tailcomb_block_total_seconds{writes}"))?;
    ensure!((found - 50.0).abs() < 1e-9, "{found} writes instead of 50");
    let found = count(&format!("tailcomb_block_flush_seconds{{device=\"{name}\"}}"))?;
    ensure!((found - 3.0).abs() < 1e-9, "{found} flushes instead of 3");
    let bytes = prometheus.one(&format!("sum(tailcomb_block_bytes_total{writes})"))?;
    ensure!((bytes - 50.0 * WRITE_BYTES as f64).abs() < 1e-9, "{bytes} bytes instead of 50 times {WRITE_BYTES}");
    ensure!(prometheus.query("up == 1")?.len() == 1, "the agent was scraped");
    Ok(())
}

/// All counts of a heatmap, and the bounds of the buckets that have some.
fn heatmap(agent: &Agent, query: &str) -> Result<(u64, Vec<(f64, f64)>)> {
    let (status, text) = agent.get(&format!("/api/v1/heatmap?{query}"))?;
    ensure!(status == 200, "{query}: {status}: {text}");
    let answer: Value = serde_json::from_str(&text)?;
    let bounds: Vec<f64> =
        answer["bounds"].as_array().context("bounds")?.iter().map(|bound| bound.as_f64().unwrap_or(f64::INFINITY)).collect();
    let (mut total, mut used) = (0, Vec::new());
    for column in answer["counts"].as_array().context("counts")? {
        for (bucket, count) in column.as_array().context("a column")?.iter().enumerate() {
            let count = count.as_u64().context("a count")?;
            total += count;
            if count > 0 {
                used.push((bounds[bucket], bounds[bucket + 1]));
            }
        }
    }
    Ok((total, used))
}

/// Asks until the second in which the last of `count` values lies is in the heatmap.
fn heatmap_of(agent: &Agent, query: &str, count: u64) -> Result<Vec<(f64, f64)>> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let (total, used) = heatmap(agent, query)?;
        if total == count {
            return Ok(used);
        }
        ensure!(total < count && Instant::now() < end, "{query}: {total} values instead of {count}");
        thread::sleep(Duration::from_millis(100));
    }
}

fn heatmaps_and_slow() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 16 << 20)?;
    let server = Server::start(script)?;
    let agent = Agent::start(&["--target", &format!("port:{}", server.port)])?;
    load(server.port, UNARY, 4, 5)?;
    load(server.port, STREAM, 3, 1)?;
    write_blocks(&disk, 30, 2)?;

    let unary = truth(&server, 23, UNARY, None)?;
    let width = 2f64.powf(1.0 / 8.0);
    let (above, _) = bucket_of(unary[0])?;
    let (_, up_to) = bucket_of(unary[unary.len() - 1])?;
    let used = heatmap_of(&agent, &format!("metric={HTTP}&http_route={UNARY}&step=5"), 20)?;
    ensure!(
        used.iter().all(|(low, high)| *low >= above / width * (1.0 - 1e-6) && *high <= up_to * width * (1.0 + 1e-6)),
        "buckets {used:?}, where the server has {above} to {up_to} s"
    );
    heatmap_of(&agent, &format!("metric={FIRST_TOKEN}&tailcomb_mode=stream"), 3)?;
    let device = disk.name();
    let used = heatmap_of(&agent, &format!("metric=tailcomb_block_total_seconds&device={device}&operation=write"), 30)?;
    ensure!(used.iter().all(|(low, _)| *low < 10.0), "a write of 10 s: {used:?}");
    heatmap_of(&agent, &format!("metric=tailcomb_block_flush_seconds&device={device}"), 2)?;

    let url = format!("http://127.0.0.1:{}", agent.port);
    let output =
        Command::new(binary()?).args(["slow", "--connect", &url, "-n", "10"]).stdin(Stdio::null()).output().context("slow")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().skip(1).filter(|line| line.contains(" POST /")).collect();
    ensure!(lines.len() == 10, "10 requests were asked for:\n{text}");
    let slowest = lines.iter().take(3).all(|line| line.contains(STREAM) && line.contains("stream") && line.contains(" 200 "));
    ensure!(slowest, "the three streams are the slowest:\n{text}");
    ensure!(lines.iter().skip(3).all(|line| line.contains(UNARY) && line.contains("unary")), "the others are unary:\n{text}");
    Ok(())
}

/// 200 ms in two chunks, a pause, and the same on the same connection.
fn published_within_a_second() -> Result<()> {
    let server = Server::start(script)?;
    let agent = Agent::start(&["--target", &format!("port:{}", server.port)])?;
    let mut client = connect(server.port)?;
    let of_route = [("http_route", CHUNKED), ("tailcomb_outcome", "complete")];
    let count = format!("{HTTP}_count");
    for (number, pause) in [(1.0, 0), (2.0, 3_000), (3.0, 130), (4.0, 470), (5.0, 810)] {
        thread::sleep(Duration::from_millis(pause));
        ask(&mut client, CHUNKED)?;
        let ended = http::now_ns()?;
        until(&agent, Duration::from_secs(2), "the request", |scrape| {
            scrape.sum(&count, &of_route).is_some_and(|count| count >= number)
        })?;
        let late = Duration::from_nanos(http::now_ns()? - ended);
        ensure!(late < Duration::from_secs(1), "published {late:?} after its end");
    }
    let (scrape, _) = until(&agent, Duration::ZERO, "the requests", |_| true)?;
    let truth: u64 = truth(&server, 5, CHUNKED, None)?.iter().sum();
    let (count, sum) = (scrape.sum(&count, &of_route), scrape.sum(&format!("{HTTP}_sum"), &of_route));
    ensure!(count == Some(5.0), "{count:?} requests instead of 5");
    // The pauses between are in no request: 4.4 s would be.
    let expected = truth as f64 / 1e9;
    ensure!(sum.is_some_and(|sum| sum >= 1.0 && (sum - expected).abs() < 0.05), "{sum:?} s instead of {expected}");
    Ok(())
}

/// This process listens on three ports, one of them later, and the agent, its child, on one: only the first is a target.
fn port_alone() -> Result<()> {
    let (asked_for, other) = (Server::start(script)?, Server::start(script)?);
    let agent = Agent::start(&["--target", &format!("port:{}", asked_for.port)])?;
    let later = Server::start(script)?;
    let count = format!("{HTTP}_count");
    for server in [&later, &other, &asked_for] {
        load(server.port, QUICK, 2, 10)?;
    }
    until(&agent, Duration::from_secs(3), "the requests", |scrape| scrape.sum(&count, &[]) >= Some(20.0))?;
    thread::sleep(Duration::from_millis(1_200));
    let (scrape, _) = until(&agent, Duration::ZERO, "the requests", |_| true)?;
    ensure!(scrape.sum(&count, &[]) == Some(20.0), "more than the 20 of that port:\n{}", scrape.shown());
    Ok(())
}
