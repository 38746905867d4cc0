//! Classic `le` buckets, counted exactly from each value, beside the native ones.

use std::sync::Arc;

use tailcomb_analysis::{histogram::Histogram, scale::Scale};

/// Boundaries of vLLM's time-to-first-token histogram, in ms.
const TIME_TO_FIRST_TOKEN_MS: &[u64] = &[
    1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000, 20_000, 40_000, 80_000, 160_000, 640_000,
    2_560_000,
];
/// Boundaries of vLLM's request histograms, in ms.
const REQUEST_MS: &[u64] = &[
    300, 500, 800, 1_000, 1_500, 2_000, 2_500, 5_000, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000, 60_000, 120_000, 240_000,
    480_000, 960_000, 1_920_000, 7_680_000,
];
/// Boundaries of vLLM's histogram of the time between tokens, in ms.
const GAP_MS: &[u64] =
    &[10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000, 20_000, 40_000, 80_000];
/// What an HTTP server does beside generating: health checks, model lists, cached answers.
const SHORT_REQUEST_MS: &[u64] = &[1, 5, 10, 20, 40, 60, 80, 100, 250];
/// Waits before the first read are short unless something is wrong.
const SHORT_WAIT_US: &[u64] = &[50, 100, 250, 500];

const NS_PER_US: u64 = 1_000;
const NS_PER_MS: u64 = 1_000_000;

/// Upper-inclusive boundaries of one family, in the unit of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    scale: Scale,
    bounds: Vec<u64>,
}

impl Buckets {
    /// `bounds` in ns or bytes; sorted, and each once.
    #[must_use]
    pub fn new(scale: Scale, mut bounds: Vec<u64>) -> Self {
        bounds.sort_unstable();
        bounds.dedup();
        Self { scale, bounds }
    }

    /// The scale of the native buckets beside them.
    #[must_use]
    pub const fn scale(&self) -> Scale {
        self.scale
    }
}

fn milliseconds(bounds: &[u64]) -> impl Iterator<Item = u64> + '_ {
    bounds.iter().map(|bound| bound * NS_PER_MS)
}

/// The boundaries of each request family.
#[derive(Clone, Debug)]
pub struct BucketSets {
    /// `http_server_request_duration_seconds`: those of vLLM's requests, and shorter ones.
    pub http_duration: Arc<Buckets>,
    /// `gen_ai_server_request_duration_seconds`: those of vLLM's requests.
    pub gen_ai_duration: Arc<Buckets>,
    /// `gen_ai_server_time_to_first_token_seconds`: those of vLLM.
    pub time_to_first_token: Arc<Buckets>,
    /// `tailcomb_request_largest_gap_seconds`: those of vLLM's time between tokens.
    pub largest_gap: Arc<Buckets>,
    /// `tailcomb_request_receive_wait_seconds`.
    pub receive_wait: Arc<Buckets>,
    /// `tailcomb_request_body_bytes`, `tailcomb_response_body_bytes`.
    pub body_bytes: Arc<Buckets>,
}

impl Default for BucketSets {
    fn default() -> Self {
        let seconds = |bounds: Vec<u64>| Arc::new(Buckets::new(Scale::Seconds, bounds));
        let waits = SHORT_WAIT_US.iter().map(|bound| bound * NS_PER_US);
        Self {
            http_duration: seconds(milliseconds(SHORT_REQUEST_MS).chain(milliseconds(REQUEST_MS)).collect()),
            gen_ai_duration: seconds(milliseconds(REQUEST_MS).collect()),
            time_to_first_token: seconds(milliseconds(TIME_TO_FIRST_TOKEN_MS).collect()),
            largest_gap: seconds(milliseconds(GAP_MS).collect()),
            receive_wait: seconds(waits.chain(milliseconds(TIME_TO_FIRST_TOKEN_MS)).collect()),
            // 64 B … 64 MiB, by four.
            body_bytes: Arc::new(Buckets::new(Scale::Bytes, (0..=10).map(|step| 64 << (2 * step)).collect())),
        }
    }
}

/// One series' values, native and classic.
///
/// Memory: at most 282 × 8 bytes of native counts and 8 bytes a classic boundary.
#[derive(Clone, Debug)]
pub struct Distribution {
    buckets: Arc<Buckets>,
    /// Not cumulative; what lies above the last boundary is in no entry.
    classic: Box<[u64]>,
    native: Histogram,
}

impl Distribution {
    /// Without values.
    #[must_use]
    pub fn new(buckets: &Arc<Buckets>) -> Self {
        Self { buckets: Arc::clone(buckets), classic: vec![0; buckets.bounds.len()].into_boxed_slice(), native: Histogram::new() }
    }

    /// Counts one value (ns or bytes).
    pub fn observe(&mut self, value: u64) {
        self.native.add(self.buckets.scale, value);
        let place = self.buckets.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.classic.get_mut(place) {
            *count += 1;
        }
    }

    /// The native side.
    #[must_use]
    pub const fn native(&self) -> &Histogram {
        &self.native
    }

    /// The scale of its values.
    #[must_use]
    pub fn scale(&self) -> Scale {
        self.buckets.scale
    }

    /// `(upper bound in base units, count in this bucket alone)`, rising, without the infinite one.
    pub fn classic(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.buckets.bounds.iter().map(|bound| self.buckets.scale.to_base(u128::from(*bound)));
        bounds.zip(self.classic.iter().copied())
    }

    /// Bytes it holds on the heap, what is shared left out.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.native.heap_bytes() + size_of_val::<[u64]>(&self.classic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_boundary_is_below_it() {
        let mut distribution = Distribution::new(&BucketSets::default().time_to_first_token);
        for ns in [1_000_000, 1_000_001, 2_560_000_000_000, 2_560_000_000_001] {
            distribution.observe(ns);
        }
        let classic: Vec<_> = distribution.classic().filter(|(_, count)| *count > 0).collect();
        assert_eq!(classic, [(0.001, 1), (0.005, 1), (2560.0, 1)]);
        assert_eq!(distribution.native().count(), 4);
    }

    #[test]
    fn vllm_boundaries_are_among_ours() {
        let sets = BucketSets::default();
        let bounds = |buckets: &Arc<Buckets>| Distribution::new(buckets).classic().map(|(bound, _)| bound).collect::<Vec<_>>();
        for bound in bounds(&sets.gen_ai_duration) {
            assert!(bounds(&sets.http_duration).contains(&bound), "{bound}");
        }
        assert_eq!(bounds(&sets.gen_ai_duration)[..3], [0.3, 0.5, 0.8]);
        assert_eq!(bounds(&sets.body_bytes).last(), Some(&67_108_864.0));
    }
}
