//! An exact histogram on the 282 slots of [`crate::scale`].
//!
//! It is only ever counted up and merged; nothing in it is an estimate and it gives no percentile: who wants one reads the
//! buckets, whose bounds say how sure it is.

use tailcomb_common::bucket::{KERNEL_OVERFLOW, KERNEL_SLOTS, OVERFLOW};

use crate::scale::{SLOTS, Scale};

/// Counts by slot, with the exact sum of the values.
///
/// Memory: only the range from the lowest to the highest used slot is held, so a service whose times lie within four octaves
/// takes 256 bytes, and none takes more than 282 × 8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Slot of `counts[0]`.
    first: usize,
    counts: Vec<u64>,
    /// In the values' own unit. Wider than a value: a node's streams add up to more than 2^64 ns within weeks.
    sum: u128,
    count: u64,
}

impl Histogram {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        Self { first: 0, counts: Vec::new(), sum: 0, count: 0 }
    }

    /// From a kernel histogram: same slots up to 64 s; what the kernel only knows to be above goes to the overflow.
    #[must_use]
    pub fn from_kernel(counts: &[u64; KERNEL_SLOTS], sum_ns: u64) -> Self {
        let mut histogram = Self::new();
        for (slot, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            histogram.add_to_slot(if slot == KERNEL_OVERFLOW { OVERFLOW } else { slot }, *count);
        }
        histogram.sum = u128::from(sum_ns);
        histogram
    }

    /// Counts one value.
    pub fn add(&mut self, scale: Scale, value: u64) {
        self.add_to_slot(scale.slot(value), 1);
        self.sum += u128::from(value);
    }

    /// Adds all that `other` holds.
    pub fn merge(&mut self, other: &Self) {
        for (slot, count) in other.slots() {
            self.add_to_slot(slot, count);
        }
        self.sum += other.sum;
    }

    /// How many values.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Their exact sum, in the values' own unit (nanoseconds or bytes).
    #[must_use]
    pub const fn sum(&self) -> u128 {
        self.sum
    }

    /// Used slots in rising order, with their counts; none of them is 0.
    pub fn slots(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(i, count)| (self.first + i, *count))
    }

    /// How many values lie in `slot`.
    #[must_use]
    pub fn slot_count(&self, slot: usize) -> u64 {
        slot.checked_sub(self.first).and_then(|i| self.counts.get(i)).copied().unwrap_or(0)
    }

    /// What was counted since `earlier`, slot by slot; `None` where some slot, or the sum, has less than `earlier` had: then
    /// this is not its continuation but a new start.
    pub fn since(&self, earlier: &Self) -> Option<Vec<(usize, u64)>> {
        if self.sum < earlier.sum || earlier.slots().any(|(slot, count)| self.slot_count(slot) < count) {
            return None;
        }
        let grown = self.slots().map(|(slot, count)| (slot, count - earlier.slot_count(slot)));
        Some(grown.filter(|(_, count)| *count > 0).collect())
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u64>()
    }

    fn add_to_slot(&mut self, slot: usize, count: u64) {
        debug_assert!(slot < SLOTS, "no such slot: {slot}");
        if self.counts.is_empty() {
            self.first = slot;
        }
        if slot < self.first {
            let grow = self.first - slot;
            self.counts.splice(0..0, std::iter::repeat_n(0, grow));
            self.first = slot;
        }
        let at = slot - self.first;
        if at >= self.counts.len() {
            // Exactly: doubling would waste up to half of the bound that the memory budget is reckoned with.
            self.counts.reserve_exact(at + 1 - self.counts.len());
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += count;
        self.count += count;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        values.iter().for_each(|value| histogram.add(Scale::Seconds, *value));
        histogram
    }

    #[test]
    fn kernel_overflow_is_no_finite_bucket() {
        let mut counts = [0; KERNEL_SLOTS];
        counts[KERNEL_OVERFLOW] = 3;
        counts[1] = 2;
        let histogram = Histogram::from_kernel(&counts, 7);
        assert_eq!(histogram.slots().collect::<Vec<_>>(), [(1, 2), (OVERFLOW, 3)]);
        assert_eq!((histogram.count(), histogram.sum()), (5, 7));
    }

    #[test]
    fn a_new_start_is_told_from_a_continuation() {
        let before = of(&[1_000, 2_000, 900_000]);
        let mut after = before.clone();
        after.add(Scale::Seconds, 2_000);
        assert_eq!(after.since(&before), Some(vec![(Scale::Seconds.slot(2_000), 1)]));
        assert_eq!(before.since(&before), Some(Vec::new()));
        assert_eq!(of(&[2_000]).since(&before), None);
    }

    #[test]
    fn memory_is_bounded_by_the_slots() {
        let mut histogram = Histogram::new();
        for value in (0..64).map(|shift| u64::MAX >> shift).chain([0]) {
            histogram.add(Scale::Seconds, value);
        }
        assert_eq!(histogram.slots().next(), Some((0, 8)));
        assert!(histogram.heap_bytes() <= 2 * SLOTS * 8, "{}", histogram.heap_bytes());
    }

    proptest! {
        #[test]
        fn counts_and_sum_are_exact_in_any_order(values in prop::collection::vec(any::<u64>(), 0..200)) {
            let histogram = of(&values);
            prop_assert_eq!(histogram.count(), values.len() as u64);
            prop_assert_eq!(histogram.sum(), values.iter().map(|value| u128::from(*value)).sum::<u128>());
            for slot in 0..SLOTS {
                let expected = values.iter().filter(|value| Scale::Seconds.slot(**value) == slot).count() as u64;
                prop_assert_eq!(histogram.slot_count(slot), expected);
            }
            let mut reversed = values;
            reversed.reverse();
            prop_assert_eq!(of(&reversed), histogram);
        }

        #[test]
        fn merging_equals_counting_together(
            left in prop::collection::vec(any::<u64>(), 0..100),
            right in prop::collection::vec(any::<u64>(), 0..100),
        ) {
            let mut merged = of(&left);
            merged.merge(&of(&right));
            prop_assert_eq!(&merged, &of(&[left.clone(), right.clone()].concat()));
            let grown: u64 = merged.since(&of(&left)).expect("a continuation").iter().map(|(_, count)| count).sum();
            prop_assert_eq!(grown, right.len() as u64);
        }
    }
}
