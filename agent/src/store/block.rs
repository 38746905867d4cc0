//! Disk series: the latest snapshot under the devices' names, and what came since the one before for the heatmaps.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use tailcomb_analysis::histogram::Histogram;
use tailcomb_common::block::{self, Count};

use super::labels::{Labels, Pairs};
use crate::{
    attribute::device::{Device, Layer},
    probes::block::{BlockSeries, BlockSnapshot, Operation},
};

/// The value of label `operation`.
#[must_use]
pub const fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
        Operation::Discard => "discard",
        Operation::Other => "other",
        Operation::DeviceWide => "",
    }
}

/// The value of label `layer`.
#[must_use]
pub const fn layer_name(layer: Layer) -> &'static str {
    match layer {
        Layer::Leaf => "leaf",
        Layer::Stacked => "stacked",
    }
}

/// Labels `device, layer, operation`; without `operation` where it is the device as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockLabels {
    /// `device`, `layer`.
    pub device: Device,
    /// `operation`.
    pub operation: Operation,
}

impl Labels for BlockLabels {
    fn pairs(&self) -> Pairs<'_> {
        let mut pairs =
            vec![("device", Cow::from(self.device.name.as_str())), ("layer", Cow::from(layer_name(self.device.layer)))];
        if self.operation != Operation::DeviceWide {
            pairs.push(("operation", Cow::from(operation_name(self.operation))));
        }
        pairs
    }
}

/// Cumulative figures of one series.
#[derive(Clone, Debug, Default)]
pub struct BlockFigures {
    /// Counters.
    pub count: Count,
    /// Histograms by phase, as in [`tailcomb_common::block`].
    pub phases: [Option<Histogram>; block::PHASES],
}

impl BlockFigures {
    fn of(series: &BlockSeries) -> Self {
        let phases =
            series.phases.each_ref().map(|phase| phase.as_ref().map(|phase| Histogram::from_kernel(&phase.counts, phase.sum_ns)));
        Self { count: series.count, phases }
    }

    /// Two device numbers under one name are one series.
    fn merge(&mut self, other: &Self) {
        let (into, from) = (&mut self.count, &other.count);
        into.started += from.started;
        into.completed += from.completed;
        into.vanished += from.vanished;
        into.bytes += from.bytes;
        into.errors += from.errors;
        into.merges += from.merges;
        into.requeues += from.requeues;
        into.partial += from.partial;
        for (into, from) in self.phases.iter_mut().zip(&other.phases) {
            match (into, from) {
                (Some(into), Some(from)) => into.merge(from),
                (into @ None, Some(from)) => *into = Some(from.clone()),
                (_, None) => {}
            }
        }
    }

    /// Requests begun and not ended. Counted from the probe's start: what was in flight then is in none of the three.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.count.started.saturating_sub(self.count.completed).saturating_sub(self.count.vanished)
    }
}

/// New values of one phase since the snapshot before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grown {
    pub(super) labels: BlockLabels,
    /// As in [`tailcomb_common::block`].
    pub(super) phase: usize,
    pub(super) slots: Vec<(usize, u64)>,
}

/// What one snapshot brought.
#[derive(Debug, Default)]
pub(super) struct Applied {
    pub(super) grown: Vec<Grown>,
    /// Requests completed since the snapshot before, of devices without a name.
    pub(super) unnamed: u64,
}

/// The latest snapshot.
#[derive(Default)]
pub struct BlockStore {
    at_ns: Option<u64>,
    /// By device number, as the kernel counts.
    raw: HashMap<(u32, Operation), BlockFigures>,
    named: BTreeMap<BlockLabels, BlockFigures>,
}

impl BlockStore {
    /// All series.
    pub fn iter(&self) -> impl Iterator<Item = (&BlockLabels, &BlockFigures)> {
        self.named.iter()
    }

    /// When the latest snapshot was taken, CLOCK_MONOTONIC ns.
    #[must_use]
    pub const fn at_ns(&self) -> Option<u64> {
        self.at_ns
    }

    /// How many series.
    #[must_use]
    pub fn len(&self) -> usize {
        self.named.len()
    }

    /// None?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// Forgets all: the probe is off.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes a snapshot in place of the one before. The first one brings nothing to the heatmaps: when its values came is not
    /// known.
    pub(super) fn apply(&mut self, snapshot: &BlockSnapshot, name: &dyn Fn(u32) -> Option<Device>) -> Applied {
        let first = self.at_ns.replace(snapshot.at_ns).is_none();
        let before = std::mem::take(&mut self.raw);
        self.named.clear();
        let mut applied = Applied::default();
        for series in &snapshot.series {
            let key = (series.device, series.operation);
            let figures = BlockFigures::of(series);
            let earlier = before.get(&key);
            if let Some(device) = name(series.device) {
                let labels = BlockLabels { device, operation: series.operation };
                if !first {
                    applied.grown.extend(grown(&labels, earlier, &figures));
                }
                self.named.entry(labels).or_default().merge(&figures);
            } else {
                let completed = earlier.map_or(0, |earlier| earlier.count.completed);
                applied.unnamed += figures.count.completed.checked_sub(completed).unwrap_or(figures.count.completed);
            }
            self.raw.insert(key, figures);
        }
        applied
    }
}

fn grown<'a>(
    labels: &'a BlockLabels,
    earlier: Option<&'a BlockFigures>,
    now: &'a BlockFigures,
) -> impl Iterator<Item = Grown> + 'a {
    now.phases.iter().enumerate().filter_map(move |(phase, histogram)| {
        let histogram = histogram.as_ref()?;
        let earlier = earlier.and_then(|earlier| earlier.phases[phase].as_ref());
        // A probe that was taken off and put on again counts from zero: then all of it is new.
        let slots = earlier.and_then(|earlier| histogram.since(earlier)).unwrap_or_else(|| histogram.slots().collect());
        (!slots.is_empty()).then(|| Grown { labels: labels.clone(), phase, slots })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use tailcomb_common::bucket::{KERNEL_SLOTS, kernel_slot};

    use super::*;
    use crate::probes::block::PhaseHistogram;

    /// A series of the kernel with these values (ns) in each phase.
    pub(crate) fn series(device: u32, operation: Operation, values: &[u64]) -> BlockSeries {
        let mut counts = Box::new([0u64; KERNEL_SLOTS]);
        values.iter().for_each(|value| counts[kernel_slot(*value)] += 1);
        let phase = PhaseHistogram { sum_ns: values.iter().sum(), max_ns: values.iter().copied().max().unwrap_or(0), counts };
        let completed = values.len() as u64;
        let count = Count { started: completed + 2, completed, bytes: 4096 * completed, ..Count::default() };
        let phases = if operation == Operation::DeviceWide {
            [Some(phase), None, None, None]
        } else {
            [Some(phase.clone()), Some(phase.clone()), Some(phase.clone()), Some(phase)]
        };
        BlockSeries { device, operation, count, phases }
    }

    fn named(number: u32) -> Option<Device> {
        (number < 100).then(|| Device { name: format!("vd{number}"), layer: Layer::Leaf })
    }

    fn snapshot(at_ns: u64, series: Vec<BlockSeries>) -> BlockSnapshot {
        BlockSnapshot { at_ns, series }
    }

    #[test]
    fn only_what_came_since_goes_to_the_heatmaps() {
        let mut store = BlockStore::default();
        let first = store.apply(&snapshot(1, vec![series(1, Operation::Write, &[1_000])]), &named);
        assert!(first.grown.is_empty(), "when the first snapshot's values came is unknown");
        let next = store.apply(&snapshot(2, vec![series(1, Operation::Write, &[1_000, 5_000])]), &named);
        assert_eq!(next.grown.len(), 4);
        assert!(next.grown.iter().all(|grown| grown.slots == [(kernel_slot(5_000), 1)]));
        assert!(store.apply(&snapshot(3, vec![series(1, Operation::Write, &[1_000, 5_000])]), &named).grown.is_empty());
    }

    #[test]
    fn a_probe_put_on_again_counts_from_zero() {
        let mut store = BlockStore::default();
        store.apply(&snapshot(1, vec![series(1, Operation::Read, &[1_000, 1_000, 7_000])]), &named);
        let again = store.apply(&snapshot(2, vec![series(1, Operation::Read, &[1_000])]), &named);
        assert!(again.grown.iter().all(|grown| grown.slots == [(kernel_slot(1_000), 1)]));
        assert_eq!(store.iter().next().map(|(_, figures)| figures.count.completed), Some(1));
    }

    #[test]
    fn a_device_without_a_name_is_counted_as_lost() {
        let mut store = BlockStore::default();
        assert_eq!(store.apply(&snapshot(1, vec![series(100, Operation::Read, &[1, 2])]), &named).unnamed, 2);
        assert_eq!(store.apply(&snapshot(2, vec![series(100, Operation::Read, &[1, 2, 3])]), &named).unnamed, 1);
        assert!(store.is_empty());
    }

    #[test]
    fn two_numbers_under_one_name_are_one_series() {
        let mut store = BlockStore::default();
        let one_name = |_| Some(Device { name: "nvme0n1".to_owned(), layer: Layer::Leaf });
        store.apply(&snapshot(1, vec![series(1, Operation::Read, &[1_000]), series(2, Operation::Read, &[9_000])]), &one_name);
        let (_, figures) = store.iter().next().expect("one series");
        assert_eq!((store.len(), figures.count.completed, figures.in_flight()), (1, 2, 4));
        assert_eq!(figures.phases[block::TOTAL].as_ref().map(Histogram::sum), Some(10_000));
    }
}
