//! A histogram in the form of Prometheus' native histograms: spans of used buckets and differences of their counts.

use tailcomb_analysis::{
    histogram::Histogram,
    scale::{OVERFLOW_INDEX, SLOTS, Scale},
};
use tailcomb_common::bucket::ZERO;

/// Sparse buckets. Source of the form: Prometheus' native histogram specification, "Sparse buckets".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sparse {
    /// Count of the zero bucket.
    pub zero: u64,
    /// `(offset, length)`: the first offset is a bucket index, each later one the number of unused buckets since the last span.
    pub spans: Vec<(i32, u32)>,
    /// Count of the first bucket, then differences to the bucket before.
    pub deltas: Vec<i64>,
}

impl Sparse {
    /// Of a histogram on `scale`.
    #[must_use]
    pub fn of(histogram: &Histogram, scale: Scale) -> Self {
        let mut sparse = Self { zero: histogram.slot_count(ZERO), ..Self::default() };
        let (mut next, mut last) = (0, 0);
        for (slot, count) in histogram.slots() {
            let Some(index) = scale.native_index(slot) else { continue };
            match sparse.spans.last_mut() {
                Some((_, length)) if index == next => *length += 1,
                _ => sparse.spans.push((index - next, 1)),
            }
            next = index + 1;
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            sparse.deltas.push(count - last);
            last = count;
        }
        sparse
    }
}

/// Classic buckets at whole powers of two of a second, 2^−20 … 2^6: `(upper bound, count in this bucket alone)`. All of these
/// are native bounds, so nothing is estimated; what is above the last is in none.
#[must_use]
pub fn octaves(histogram: &Histogram) -> Vec<(f64, u64)> {
    let mut buckets: Vec<(f64, u64)> = (FIRST_OCTAVE..=LAST_OCTAVE).map(|octave| (f64::from(octave).exp2(), 0)).collect();
    for (slot, count) in histogram.slots() {
        let index = Scale::Seconds.native_index(slot).unwrap_or(i32::MIN);
        if index == OVERFLOW_INDEX {
            continue;
        }
        // Bucket i ends at 2^(i/8): the first octave that is not below it, rounding up.
        let octave = index.saturating_add(PER_OCTAVE - 1).div_euclid(PER_OCTAVE).max(FIRST_OCTAVE);
        let place = usize::try_from(octave - FIRST_OCTAVE).unwrap_or(SLOTS);
        if let Some((_, total)) = buckets.get_mut(place) {
            *total += count;
        }
    }
    buckets
}

const FIRST_OCTAVE: i32 = -20;
const LAST_OCTAVE: i32 = 6;
const PER_OCTAVE: i32 = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads the form back: `(index, count)`.
    fn read_back(sparse: &Sparse) -> Vec<(i32, u64)> {
        let (mut index, mut count) = (0i32, 0i64);
        let mut deltas = sparse.deltas.iter();
        let mut buckets = Vec::new();
        for (offset, length) in &sparse.spans {
            index += offset;
            for _ in 0..*length {
                count += deltas.next().expect("a delta for each bucket");
                buckets.push((index, u64::try_from(count).expect("never below zero")));
                index += 1;
            }
        }
        assert_eq!(deltas.next(), None, "a bucket for each delta");
        buckets
    }

    #[test]
    fn spans_and_deltas_as_the_specification_has_them() {
        let mut histogram = Histogram::new();
        // 1 s ends bucket 0, 2 s ends bucket 8.
        for ns in [1_000_000_000, 1_000_000_000, 1_000_000_000, 2_000_000_000, 1_000_000_001, 5] {
            histogram.add(Scale::Seconds, ns);
        }
        let sparse = Sparse::of(&histogram, Scale::Seconds);
        assert_eq!(sparse, Sparse { zero: 1, spans: vec![(0, 2), (6, 1)], deltas: vec![3, -2, 0] });
    }

    #[test]
    fn bounds_of_octaves_are_exact() {
        let mut histogram = Histogram::new();
        for ns in [1, 953, 954, 64_000_000_000, 64_000_000_001, u64::MAX] {
            histogram.add(Scale::Seconds, ns);
        }
        let buckets = octaves(&histogram);
        assert_eq!(buckets.len(), 27);
        // 2^−20 s = 953.67 ns.
        assert_eq!(buckets[0], (2f64.powi(-20), 2));
        assert_eq!(buckets[1], (2f64.powi(-19), 1));
        assert_eq!(buckets[26], (64.0, 1));
    }

    proptest! {
        #[test]
        fn every_value_is_in_one_bucket(values in prop::collection::vec(any::<u64>(), 0..200)) {
            for scale in [Scale::Seconds, Scale::Bytes] {
                let mut histogram = Histogram::new();
                values.iter().for_each(|value| histogram.add(scale, *value));
                let sparse = Sparse::of(&histogram, scale);
                let buckets = read_back(&sparse);
                prop_assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>() + sparse.zero, values.len() as u64);
                for value in &values {
                    let index = scale.native_index(scale.slot(*value));
                    prop_assert!(index.is_none_or(|index| buckets.iter().any(|(found, count)| *found == index && *count > 0)));
                }
            }
        }
    }
}
