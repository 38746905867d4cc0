//! A real Prometheus scrapes known values and answers queries with the right numbers.

use anyhow::{Result, ensure};
use tailcomb_tests::case::{Case, Need};

use crate::{
    prometheus::{Histograms, Prometheus},
    served::{Served, bucket_of},
};

const PROMETHEUS: &[Need] = &[Need::Tool("prometheus")];

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "r31_prometheus_answers_from_native_histograms",
        needs: PROMETHEUS,
        run: prometheus_answers_from_native_histograms,
    },
    Case {
        name: "r31_prometheus_answers_from_classic_histograms",
        needs: PROMETHEUS,
        run: prometheus_answers_from_classic_histograms,
    },
];

const TEN_MS: u64 = 10_000_000;
const MINUTE: u64 = 60_000_000_000;
const FIRST_TOKEN: u64 = 800_000_000;
const READ: u64 = 1_000_000;

/// 95 % short requests and 5 % long streams; a disk with reads of 1 ms and one that nobody knows how long it was.
fn served() -> Result<Served> {
    let served = Served::start()?;
    served.request("/v1/chat/completions", 95, TEN_MS, None);
    served.request("/v1/chat/completions", 5, MINUTE, Some(FIRST_TOKEN));
    served.reads(&[(100, 3), (READ, 100), (70_000_000_000, 1)]);
    Ok(served)
}

fn within(what: &str, found: f64, (above, up_to): (f64, f64)) -> Result<()> {
    // Prometheus has the bounds as floating-point powers of two, we have them in whole nanoseconds.
    let slack = 1e-6 * up_to;
    ensure!(found > above - slack && found <= up_to + slack, "{what}: {found} is not above {above} and up to {up_to}");
    Ok(())
}

fn exactly(what: &str, found: f64, expected: f64) -> Result<()> {
    ensure!((found - expected).abs() <= 1e-9 * expected.abs(), "{what}: {found} instead of {expected}");
    Ok(())
}

fn prometheus_answers_from_native_histograms() -> Result<()> {
    let served = served()?;
    let mut prometheus = Prometheus::start(served.address, Histograms::Native)?;
    let quantile = |prometheus: &Prometheus, quantile: f64, series: &str| {
        prometheus.one(&format!("histogram_quantile({quantile}, sum without (tailcomb_mode) ({series}))"))
    };
    let http = "http_server_request_duration_seconds";
    // All together, the median is short and the 99th percentile a minute; apart, each is what it is.
    within("median", quantile(&prometheus, 0.5, http)?, bucket_of(TEN_MS)?)?;
    within("p99", quantile(&prometheus, 0.99, http)?, bucket_of(MINUTE)?)?;
    let stream = format!("{http}{{tailcomb_mode=\"stream\"}}");
    within("streams' median", quantile(&prometheus, 0.5, &stream)?, bucket_of(MINUTE)?)?;
    let first_token = "gen_ai_server_time_to_first_token_seconds{gen_ai_operation_name=\"chat\",gen_ai_provider_name=\"vllm\"}";
    within("first token", quantile(&prometheus, 0.5, first_token)?, bucket_of(FIRST_TOKEN)?)?;
    exactly("count", prometheus.one(&format!("histogram_count(sum without (tailcomb_mode) ({http}))"))?, 100.0)?;
    exactly("sum", prometheus.one(&format!("histogram_sum(sum without (tailcomb_mode) ({http}))"))?, 300.95)?;
    // Bytes: 3 000 is above 2^(92/8) and up to 2^(93/8).
    let bytes = quantile(&prometheus, 0.5, "tailcomb_request_body_bytes{tailcomb_mode=\"unary\"}")?;
    within("bytes", bytes, (2f64.powf(92.0 / 8.0), 2f64.powf(93.0 / 8.0)))?;

    let disk = "tailcomb_block_total_seconds{device=\"vda\",layer=\"leaf\",operation=\"read\"}";
    within("disk", quantile(&prometheus, 0.5, disk)?, bucket_of(READ)?)?;
    within("what is below 238 ns", quantile(&prometheus, 0.01, disk)?, (0.0, 238e-9))?;
    ensure!(quantile(&prometheus, 1.0, disk)?.is_infinite(), "no finite bound is claimed for what is above 64 s");
    exactly("disk count", prometheus.one(&format!("histogram_count({disk})"))?, 104.0)?;

    // What comes is added: nothing in it looks like a restart.
    served.request("/v1/chat/completions", 20, TEN_MS, None);
    served.request("/v1/chat/completions", 1, 45_000_000_000, Some(FIRST_TOKEN));
    served.reads(&[(100, 4), (READ, 150), (70_000_000_000, 1)]);
    prometheus.wait_for_scrapes(2)?;
    exactly("count", prometheus.one(&format!("histogram_count(sum without (tailcomb_mode) ({http}))"))?, 121.0)?;
    exactly("disk count", prometheus.one(&format!("histogram_count({disk})"))?, 155.0)?;
    // A reset would have made the increase as large as the whole value. It is extrapolated, so: within a factor.
    let increase = prometheus.one(&format!("histogram_count(increase({disk}[1m]))"))?;
    ensure!((51.0..=102.0).contains(&increase), "the disk's count grew by 51, Prometheus says {increase}");
    ensure!(prometheus.query("up == 1")?.len() == 1, "the target is up");
    Ok(())
}

fn prometheus_answers_from_classic_histograms() -> Result<()> {
    let served = served()?;
    let mut prometheus = Prometheus::start(served.address, Histograms::Classic)?;
    let quantile = |prometheus: &Prometheus, quantile: f64, series: &str| {
        prometheus.one(&format!("histogram_quantile({quantile}, sum without (tailcomb_mode) ({series}))"))
    };
    let http = "http_server_request_duration_seconds_bucket";
    within("median", quantile(&prometheus, 0.5, http)?, (0.005, 0.01))?;
    within("p99", quantile(&prometheus, 0.99, http)?, (50.0, 60.0))?;
    let first_token = "gen_ai_server_time_to_first_token_seconds_bucket";
    within("first token", quantile(&prometheus, 0.5, first_token)?, (0.75, 1.0))?;
    exactly("count", prometheus.one("sum(http_server_request_duration_seconds_count)")?, 100.0)?;
    exactly("sum", prometheus.one("sum(http_server_request_duration_seconds_sum)")?, 300.95)?;
    let disk = "tailcomb_block_total_seconds_bucket{device=\"vda\",layer=\"leaf\",operation=\"read\"}";
    within("disk", quantile(&prometheus, 0.5, disk)?, (2f64.powi(-10), 2f64.powi(-9)))?;
    exactly("disk count", prometheus.one("tailcomb_block_total_seconds_count")?, 104.0)?;
    served.reads(&[(100, 4), (READ, 150), (70_000_000_000, 1)]);
    prometheus.wait_for_scrapes(2)?;
    exactly("disk count", prometheus.one("tailcomb_block_total_seconds_count")?, 155.0)?;
    exactly("resets", prometheus.one("resets(tailcomb_block_total_seconds_count[1m])")?, 0.0)?;
    // Nothing is native without being asked for, and no two series are one.
    ensure!(prometheus.query("tailcomb_block_total_seconds")?.is_empty(), "only classic series are expected");
    Ok(())
}
