//! Fills the catalogue's families from the store, for each scrape of a store that has changed.
//!
//! The library encodes; what is given to it are ready counts, native and classic, so that nothing is binned twice.

use std::{
    fmt, iter,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use axum::body::Bytes;
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NativeHistogram, NativeHistogramBuckets, NoLabelSet,
        prometheus_protobuf, prometheus_text, text,
    },
    metrics::MetricType,
    registry::{Registry, Unit},
};
use tailcomb_analysis::{
    histogram::Histogram,
    scale::{Scale, zero_threshold},
};
use tailcomb_common::{block, bucket::SCHEMA};

use super::{
    catalogue::{self, Kind, Metric},
    native::{Sparse, octaves},
    negotiate::Format,
    process::Figures,
};
use crate::{
    probes::block::Operation,
    store::{
        Shared, Store,
        block::{BlockFigures, BlockLabels},
        buckets::Distribution,
        labels::{Labels, Pairs},
    },
};

/// The exposition could not be written.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// Text.
    #[error("the metrics could not be written as text: {0}")]
    Text(#[from] fmt::Error),
    /// Protobuf.
    #[error("the metrics could not be written as protobuf: {0}")]
    Protobuf(#[from] prometheus_protobuf::EncodeError),
}

/// Writes the store in every exposition format.
#[derive(Debug)]
pub struct Exporter {
    registry: Registry,
    store: Shared,
    latest: Mutex<Option<Rendered>>,
}

/// An exposition, and the state of the store that it shows.
#[derive(Debug)]
struct Rendered {
    changes: u64,
    format: Format,
    bytes: Bytes,
}

impl Exporter {
    /// Of a store.
    #[must_use]
    pub fn new(store: Shared) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(StoreCollector { store: store.clone() }));
        Self { registry, store, latest: Mutex::default() }
    }

    #[cfg(test)]
    pub(crate) const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// All families that have a series. While nothing changes, the same bytes are given to all who ask: a thousand who ask at once
    /// cost what one costs, in time and in memory.
    ///
    /// # Errors
    /// [`RenderError`] when the encoder refuses a value; with this collector's values it has no reason to.
    pub fn render(&self, format: Format) -> Result<Bytes, RenderError> {
        // A change while it is rendered makes it newer than it says, and it is rendered again.
        let changes = self.store.lock().changes();
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rendered) = latest.as_ref().filter(|latest| latest.changes == changes && latest.format == format) {
            return Ok(rendered.bytes.clone());
        }
        let bytes = Bytes::from(self.render_anew(format)?);
        *latest = Some(Rendered { changes, format, bytes: bytes.clone() });
        Ok(bytes)
    }

    fn render_anew(&self, format: Format) -> Result<Vec<u8>, RenderError> {
        let mut written = String::new();
        match format {
            Format::Text => prometheus_text::encode(&mut written, &self.registry)?,
            Format::OpenMetrics => text::encode(&mut written, &self.registry)?,
            Format::Protobuf => return Ok(prometheus_protobuf::encode_to_vec(&self.registry)?),
        }
        Ok(written.into_bytes())
    }
}

#[derive(Debug)]
struct StoreCollector {
    store: Shared,
}

impl Collector for StoreCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Read before the lock is taken: procfs may be slow.
        let figures = Figures::read().ok();
        let store = self.store.lock();
        let mut families = Families { encoder, created: store.started().wall(store.started().monotonic_ns()) };
        requests(&mut families, &store)?;
        disks(&mut families, &store)?;
        agent(&mut families, &store)?;
        figures.map_or(Ok(()), |figures| process(&mut families, &figures))
    }
}

fn requests(families: &mut Families<'_>, store: &Store) -> fmt::Result {
    families.histograms(&catalogue::HTTP_DURATION, store.http.iter().map(|(labels, values)| (labels.pairs(), values.into())))?;
    let generation = || store.generation.iter();
    families.histograms(
        &catalogue::GEN_AI_DURATION,
        generation().map(|(labels, values)| (labels.pairs(), (&values.duration).into())),
    )?;
    families.histograms(
        &catalogue::TIME_TO_FIRST_TOKEN,
        generation().filter_map(|(labels, values)| Some((labels.pairs(), values.time_to_first_token.as_ref()?.into()))),
    )?;
    for (metric, values) in [
        (
            &catalogue::RECEIVE_WAIT,
            (|values| values.receive_wait.as_ref()) as fn(&crate::store::Transfer) -> Option<&Distribution>,
        ),
        (&catalogue::LARGEST_GAP, |values| values.largest_gap.as_ref()),
        (&catalogue::REQUEST_BYTES, |values| values.request_bytes.as_ref()),
        (&catalogue::RESPONSE_BYTES, |values| values.response_bytes.as_ref()),
    ] {
        let series = store.transfer.iter().filter_map(|(labels, all)| Some((labels.pairs(), values(all)?.into())));
        families.histograms(metric, series)?;
    }
    families.counters(&catalogue::UNDECODED, store.undecoded.iter().map(|(labels, count)| (labels.pairs(), *count)))?;
    families.counters(&catalogue::INCOMPLETE, store.incomplete.iter().map(|(labels, count)| (labels.pairs(), *count)))
}

fn disks(families: &mut Families<'_>, store: &Store) -> fmt::Result {
    let operations = || store.block.iter().filter(|(labels, _)| labels.operation != Operation::DeviceWide);
    for (metric, phase) in [
        (&catalogue::BLOCK_SUBMIT_WAIT, block::SUBMIT_WAIT),
        (&catalogue::BLOCK_QUEUE, block::QUEUE),
        (&catalogue::BLOCK_DEVICE, block::DEVICE),
        (&catalogue::BLOCK_TOTAL, block::TOTAL),
    ] {
        families.histograms(metric, operations().filter_map(|series| phase_of(series, phase)))?;
    }
    let devices = store.block.iter().filter(|(labels, _)| labels.operation == Operation::DeviceWide);
    families.histograms(&catalogue::BLOCK_FLUSH, devices.filter_map(|series| phase_of(series, block::FLUSH)))?;
    let in_flight = operations().map(|(labels, figures)| (labels.pairs(), figures.in_flight()));
    families.gauges(&catalogue::BLOCK_IN_FLIGHT, in_flight)?;
    for (metric, value) in [
        (&catalogue::BLOCK_BYTES, (|count| count.bytes) as fn(&block::Count) -> u64),
        (&catalogue::BLOCK_MERGES, |count| count.merges),
        (&catalogue::BLOCK_REQUEUES, |count| count.requeues),
        (&catalogue::BLOCK_PARTIAL, |count| count.partial),
        (&catalogue::BLOCK_ERRORS, |count| count.errors),
    ] {
        families.counters(metric, operations().map(|(labels, figures)| (labels.pairs(), value(&figures.count))))?;
    }
    Ok(())
}

fn phase_of<'a>((labels, figures): (&'a BlockLabels, &'a BlockFigures), phase: usize) -> Option<(Pairs<'a>, Values)> {
    let histogram = figures.phases[phase].as_ref().filter(|histogram| histogram.count() > 0)?;
    Some((labels.pairs(), Values::new(histogram, Scale::Seconds, octaves(histogram))))
}

fn agent(families: &mut Families<'_>, store: &Store) -> fmt::Result {
    let lost =
        store.lost.iter().map(|((stage, reason), count)| (vec![("stage", stage.into()), ("reason", reason.into())], count));
    families.counters(&catalogue::LOST, lost)?;
    let probe = |name: &'static str| vec![("probe", name.into())];
    let attached = store.probes().iter().map(|verdict| (probe(verdict.probe), u64::from(verdict.attached)));
    families.gauges(&catalogue::PROBE_ATTACHED, attached)?;
    let runs = || store.probe_runs().iter();
    families.counters(&catalogue::PROBE_RUN_SECONDS, runs().map(|run| (probe(run.probe), run.seconds)))?;
    families.counters(&catalogue::PROBE_RUNS, runs().map(|run| (probe(run.probe), run.runs)))?;
    families.info(&catalogue::BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))])
}

fn process(families: &mut Families<'_>, figures: &Figures) -> fmt::Result {
    families.counters(&catalogue::PROCESS_CPU, iter::once((Vec::new(), figures.cpu_seconds)))?;
    families.gauges(&catalogue::PROCESS_RESIDENT, iter::once((Vec::new(), figures.resident_bytes)))?;
    families.gauges(&catalogue::PROCESS_VIRTUAL, iter::once((Vec::new(), figures.virtual_bytes)))?;
    families.gauges(&catalogue::PROCESS_START, iter::once((Vec::new(), figures.start_seconds)))?;
    families.gauges(&catalogue::PROCESS_FDS, iter::once((Vec::new(), figures.open_fds)))
}

/// One histogram, ready to be written.
struct Values {
    sum: f64,
    count: u64,
    /// The infinite one included.
    classic: Vec<(f64, u64)>,
    native: Sparse,
}

impl Values {
    fn new(histogram: &Histogram, scale: Scale, mut classic: Vec<(f64, u64)>) -> Self {
        let finite: u64 = classic.iter().map(|(_, count)| count).sum();
        classic.push((f64::INFINITY, histogram.count() - finite));
        Self { sum: scale.to_base(histogram.sum()), count: histogram.count(), classic, native: Sparse::of(histogram, scale) }
    }
}

impl From<&Distribution> for Values {
    fn from(values: &Distribution) -> Self {
        Self::new(values.native(), values.scale(), values.classic().collect())
    }
}

/// Writes families; one without a series is left out.
struct Families<'a> {
    encoder: DescriptorEncoder<'a>,
    /// Of every native histogram: the agent's start.
    created: SystemTime,
}

impl Families<'_> {
    fn histograms<'s>(&mut self, metric: &Metric, series: impl Iterator<Item = (Pairs<'s>, Values)>) -> fmt::Result {
        let series = sorted(series);
        if series.is_empty() {
            return Ok(());
        }
        let created = self.created;
        let unit = unit(metric);
        let mut family = self.encoder.encode_descriptor(metric.stem(), metric.help, unit.as_ref(), kind(metric))?;
        for (labels, values) in &series {
            let native = NativeHistogram {
                schema: SCHEMA.into(),
                zero_threshold: zero_threshold(),
                zero_count: values.native.zero,
                negative: NativeHistogramBuckets { spans: &[], deltas: &[] },
                positive: NativeHistogramBuckets { spans: &values.native.spans, deltas: &values.native.deltas },
                created: Some(created),
            };
            family.encode_family(labels)?.encode_histogram_with_native::<NoLabelSet>(
                values.sum,
                values.count,
                &values.classic,
                None,
                native,
            )?;
        }
        Ok(())
    }

    fn counters<'s, V: EncodeCounterValue>(
        &mut self,
        metric: &Metric,
        series: impl Iterator<Item = (Pairs<'s>, V)>,
    ) -> fmt::Result {
        let series = sorted(series);
        if series.is_empty() {
            return Ok(());
        }
        let unit = unit(metric);
        let mut family = self.encoder.encode_descriptor(metric.stem(), metric.help, unit.as_ref(), kind(metric))?;
        for (labels, value) in &series {
            family.encode_family(labels)?.encode_counter::<NoLabelSet, V, f64>(value, None)?;
        }
        Ok(())
    }

    fn gauges<'s, V: EncodeGaugeValue>(&mut self, metric: &Metric, series: impl Iterator<Item = (Pairs<'s>, V)>) -> fmt::Result {
        let series = sorted(series);
        if series.is_empty() {
            return Ok(());
        }
        let unit = unit(metric);
        let mut family = self.encoder.encode_descriptor(metric.stem(), metric.help, unit.as_ref(), kind(metric))?;
        for (labels, value) in &series {
            family.encode_family(labels)?.encode_gauge(value)?;
        }
        Ok(())
    }

    fn info(&mut self, metric: &Metric, labels: &[(&'static str, &'static str)]) -> fmt::Result {
        self.encoder.encode_descriptor(metric.stem(), metric.help, None, kind(metric))?.encode_info(&labels)
    }
}

/// The store's maps have no order; a page that people compare has.
fn sorted<'s, V>(series: impl Iterator<Item = (Pairs<'s>, V)>) -> Vec<(Pairs<'s>, V)> {
    let mut series: Vec<_> = series.collect();
    series.sort_by(|(a, _), (b, _)| a.cmp(b));
    series
}

fn unit(metric: &Metric) -> Option<Unit> {
    match metric.unit {
        "" => None,
        "seconds" => Some(Unit::Seconds),
        "bytes" => Some(Unit::Bytes),
        other => Some(Unit::Other(other.to_owned())),
    }
}

const fn kind(metric: &Metric) -> MetricType {
    match metric.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
        Kind::Info => MetricType::Info,
    }
}
