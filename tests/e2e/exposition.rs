//! What `/metrics` says, read by decoders that are not its encoder's.

use std::{
    collections::BTreeMap,
    io::Write,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use prost::Message;
use tailcomb_tests::case::{Case, Need};

use crate::{schema, served::Served};

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "protobuf_is_read_by_a_decoder_of_the_published_schema",
        needs: &[],
        run: protobuf_is_read_by_a_decoder_of_the_published_schema,
    },
    Case { name: "text_is_accepted_by_promtool", needs: &[Need::Tool("promtool")], run: text_is_accepted_by_promtool },
];

const PROTOBUF: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";

fn families(served: &Served) -> Result<BTreeMap<String, schema::Family>> {
    let body = served.metrics(PROTOBUF)?;
    let mut rest = body.as_slice();
    let mut families = BTreeMap::new();
    while !rest.is_empty() {
        let family = schema::Family::decode_length_delimited(&mut rest)?;
        families.insert(family.name.clone().context("a family without a name")?, family);
    }
    Ok(families)
}

fn protobuf_is_read_by_a_decoder_of_the_published_schema() -> Result<()> {
    let served = Served::start()?;
    served.request("/v1/chat/completions", 95, 10_000_000, None);
    served.request("/v1/chat/completions", 5, 60_000_000_000, Some(800_000_000));
    served.reads(&[(100, 3), (1_000_000, 10), (70_000_000_000, 1)]);
    let families = families(&served)?;

    let http = families.get("http_server_request_duration_seconds").context("the requests")?;
    ensure!(http.r#type == Some(4) && http.metric.len() == 2, "{http:?}");
    for metric in &http.metric {
        let histogram = metric.histogram.as_ref().context("a histogram")?;
        let label =
            |name| metric.label.iter().find(|label| label.name.as_deref() == Some(name)).and_then(|label| label.value.clone());
        let (count, index, sum) = match label("tailcomb_mode").as_deref() {
            // 10 ms is in bucket ⌈8·log2(0.01)⌉, 60 s in bucket ⌈8·log2(60)⌉.
            Some("unary") => (95, -53, 0.95),
            Some("stream") => (5, 48, 300.0),
            other => anyhow::bail!("mode {other:?}"),
        };
        ensure!(histogram.buckets()? == [(index, count)], "{:?}", histogram.buckets()?);
        ensure!(histogram.sample_count.and_then(|count| i64::try_from(count).ok()) == Some(count), "{histogram:?}");
        ensure!(histogram.sample_sum.is_some_and(|found| (found - sum).abs() < 1e-9), "{histogram:?}");
        ensure!(histogram.schema == Some(3) && histogram.zero_threshold == Some(2f64.powi(-22)), "{histogram:?}");
        ensure!(histogram.bucket.last().is_some_and(|last| last.upper_bound == Some(f64::INFINITY)), "{histogram:?}");
        ensure!(histogram.created.is_some(), "{histogram:?}");
    }
    let disk = &families.get("tailcomb_block_total_seconds").context("the disk")?.metric[0];
    let histogram = disk.histogram.as_ref().context("a histogram")?;
    // What is only known to be above 64 s is in the bucket that ends at infinity: 2^1024 ends bucket 8192.
    ensure!(histogram.buckets()? == [(-79, 10), (8_193, 1)], "{:?}", histogram.buckets()?);
    ensure!(histogram.zero_count == Some(3) && histogram.sample_count == Some(14), "{histogram:?}");
    let cumulative = |bound: f64| {
        histogram.bucket.iter().find(|bucket| bucket.upper_bound == Some(bound)).and_then(|bucket| bucket.cumulative_count)
    };
    ensure!(cumulative(2f64.powi(-20)) == Some(3) && cumulative(64.0) == Some(13) && cumulative(f64::INFINITY) == Some(14));

    let counter = &families.get("tailcomb_block_bytes_total").context("a counter")?.metric[0];
    ensure!(counter.counter.as_ref().and_then(|counter| counter.value) == Some(14.0 * 4_096.0), "{counter:?}");
    let gauge = families.get("tailcomb_probe_attached").context("a gauge")?;
    ensure!(gauge.metric.iter().all(|metric| metric.gauge.as_ref().and_then(|gauge| gauge.value) == Some(1.0)), "{gauge:?}");
    Ok(())
}

fn text_is_accepted_by_promtool() -> Result<()> {
    let served = Served::start()?;
    served.request("/v1/chat/completions", 3, 10_000_000, Some(1_000_000));
    served.reads(&[(1_000_000, 10)]);
    let text = served.metrics("text/plain;version=0.0.4")?;
    let mut promtool =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    promtool.stdin.take().context("its input")?.write_all(&text)?;
    let output = promtool.wait_with_output()?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(())
}
