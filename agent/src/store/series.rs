//! A bounded map from label sets to values.

use std::{collections::HashMap, hash::Hash};

/// A label set that can be folded into one of a few when there are too many.
pub trait Fold: Eq + Hash {
    /// The label set under which it is counted beyond the budget: `other` wherever a value is not one of a fixed few, so that
    /// only a handful of different ones exist.
    #[must_use]
    fn fold(&self) -> Self;
}

/// How long a series must have been without a sample before it may be given up for a new one.
const IDLE_NS: u64 = 3_600 * 1_000_000_000;

struct Entry<V> {
    value: V,
    last_ns: u64,
}

/// Label sets with their values, at most `budget` of them and the few folded ones.
///
/// A series stays from its first sample on. Only where the budget is nearly used up, [`SeriesMap::sweep`] gives up those that
/// had no sample for an hour; a label set that comes back starts at zero, which Prometheus takes for a restart.
pub struct SeriesMap<K, V> {
    map: HashMap<K, Entry<V>>,
    budget: usize,
}

impl<K: Fold, V> SeriesMap<K, V> {
    /// An empty one.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Self { map: HashMap::new(), budget }
    }

    /// The value of `key`, made by `new` where there is none; and whether it is that of the folded label set.
    pub fn get_or_insert(&mut self, key: K, now_ns: u64, new: impl FnOnce() -> V) -> (&mut V, bool) {
        let folded = self.map.len() >= self.budget && !self.map.contains_key(&key);
        let key = if folded { key.fold() } else { key };
        let entry = self.map.entry(key).or_insert_with(|| Entry { value: new(), last_ns: now_ns });
        entry.last_ns = entry.last_ns.max(now_ns);
        (&mut entry.value, folded)
    }

    /// Gives up idle series where nine tenths of the budget are used.
    pub fn sweep(&mut self, now_ns: u64) {
        if self.map.len() >= self.budget - self.budget / 10 {
            self.map.retain(|_, entry| now_ns.saturating_sub(entry.last_ns) < IDLE_NS);
        }
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.map.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// How many label sets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// None?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.map.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Fold for u32 {
        fn fold(&self) -> Self {
            0
        }
    }

    #[test]
    fn beyond_the_budget_only_the_folded_one_grows() {
        let mut map = SeriesMap::new(3);
        let mut folded = 0;
        for key in (1..=10u32).chain([2]) {
            let (value, fold) = map.get_or_insert(key, 0, || 0u64);
            *value += 1;
            folded += u32::from(fold);
        }
        assert_eq!((map.len(), folded), (4, 7));
        assert_eq!(map.iter().find(|(key, _)| **key == 2).map(|(_, value)| *value), Some(2), "known ones are still counted");
        assert_eq!(map.iter().map(|(_, value)| value).sum::<u64>(), 11, "no sample is lost");
    }

    #[test]
    fn room_is_made_only_under_pressure_and_only_of_idle_ones() {
        let mut map = SeriesMap::new(10);
        for key in 1..=5u32 {
            map.get_or_insert(key, 0, || ());
        }
        map.sweep(2 * IDLE_NS);
        assert_eq!(map.len(), 5, "there is room: nothing is given up");
        for key in 6..=10u32 {
            map.get_or_insert(key, 2 * IDLE_NS, || ());
        }
        map.sweep(2 * IDLE_NS + 1);
        assert_eq!(map.len(), 5);
        assert!(!map.get_or_insert(11, 2 * IDLE_NS, || ()).1);
    }
}
