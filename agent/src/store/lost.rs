//! Samples that were seen and not counted, by stage and reason.

use std::collections::BTreeMap;

use tailcomb_common::lost::REASONS;

use crate::decode;

/// A sample was counted under `other` because its label set was beyond the series budget.
pub const SERIES_BUDGET: (&str, &str) = ("store", "series_budget");
/// A disk request of a device that has no name (any more) is in no series.
pub const UNKNOWN_DEVICE: (&str, &str) = ("store", "unknown_device");
/// A value came after its place in the heatmap was forgotten, or there was no row for it; the histograms have it.
pub const HEATMAP: (&str, &str) = ("store", "heatmap");

/// A request that ended more than a day after the last round of the pipeline: its times can't be right.
pub const FUTURE: (&str, &str) = ("store", "future");

/// Reasons of user space that are known beforehand.
const OWN: [(&str, &str); 4] = [SERIES_BUDGET, UNKNOWN_DEVICE, HEATMAP, FUTURE];

/// Counters of `tailcomb_lost_total`; every known one exists from the start, at 0.
#[derive(Clone, Debug)]
pub struct Lost {
    by_reason: BTreeMap<(&'static str, &'static str), u64>,
}

impl Default for Lost {
    fn default() -> Self {
        let decode = decode::LOST_REASONS.into_iter().map(|reason| ("decode", reason));
        Self { by_reason: REASONS.into_iter().chain(decode).chain(OWN).map(|reason| (reason, 0)).collect() }
    }
}

impl Lost {
    /// Counts `count` more; a reason that was not known before begins to exist.
    pub fn add(&mut self, reason: (&'static str, &'static str), count: u64) {
        *self.by_reason.entry(reason).or_default() += count;
    }

    /// Takes a cumulative value from where it is counted. It never goes back: a source that starts anew is heard again when
    /// it has caught up.
    pub fn set(&mut self, reason: (&'static str, &'static str), total: u64) {
        let value = self.by_reason.entry(reason).or_default();
        *value = total.max(*value);
    }

    /// `((stage, reason), count)`.
    pub fn iter(&self) -> impl Iterator<Item = ((&'static str, &'static str), u64)> + '_ {
        self.by_reason.iter().map(|(reason, count)| (*reason, *count))
    }
}
