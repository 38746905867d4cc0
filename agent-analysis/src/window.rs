//! The recent past of one signal: a ring of time columns, each a sparse histogram.
//!
//! A column is a whole number of base steps since some origin that the caller chose; this module has no clock.

use std::collections::{BTreeMap, VecDeque};

/// One used slot of one column: the slot in the upper 9 bits, its count in the lower 55, so that a cell takes 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell(u64);

const COUNT_BITS: u32 = 55;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

impl Cell {
    const fn new(slot: usize, count: u64) -> Self {
        Self((slot as u64) << COUNT_BITS | if count > COUNT_MASK { COUNT_MASK } else { count })
    }

    const fn slot(self) -> usize {
        (self.0 >> COUNT_BITS) as usize
    }

    const fn count(self) -> u64 {
        self.0 & COUNT_MASK
    }
}

#[derive(Clone, Debug)]
struct Column {
    at: u64,
    /// By slot, rising.
    cells: Vec<Cell>,
}

/// One step of an answer: a column or several merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// First base column in it.
    pub at: u64,
    /// Used slots, rising, with their counts.
    pub slots: Vec<(usize, u64)>,
}

/// A bounded ring of columns.
///
/// Memory: at most `most_columns` columns (32 bytes each) and `most_cells` cells (8 bytes each; capacity doubles, so up to 16). When
/// either is exceeded, the oldest columns go.
#[derive(Clone, Debug)]
pub struct Window {
    ring: VecDeque<Column>,
    most_columns: usize,
    most_cells: usize,
    cells: usize,
    /// First column that is still held in full; earlier ones are forgotten.
    from: u64,
}

impl Window {
    /// An empty window of at most `most_columns` base steps and `most_cells` cells.
    #[must_use]
    pub const fn new(most_columns: usize, most_cells: usize) -> Self {
        Self { ring: VecDeque::new(), most_columns, most_cells, cells: 0, from: 0 }
    }

    /// Counts `count` values in `slot` of column `at`. Returns false, and counts nothing, where that column is already
    /// forgotten: the caller counts that as lost.
    pub fn record(&mut self, at: u64, slot: usize, count: u64) -> bool {
        if at < self.from {
            return false;
        }
        if count == 0 {
            return true;
        }
        // Nearly always the last column.
        let place = self.ring.iter().rposition(|column| column.at <= at);
        let column = match place {
            Some(place) if self.ring[place].at == at => place,
            Some(place) => self.insert(place + 1, at),
            None => self.insert(0, at),
        };
        let cells = &mut self.ring[column].cells;
        match cells.binary_search_by_key(&slot, |cell| cell.slot()) {
            Ok(found) => cells[found] = Cell::new(slot, cells[found].count().saturating_add(count)),
            Err(place) => {
                cells.insert(place, Cell::new(slot, count));
                self.cells += 1;
            }
        }
        let newest = self.ring.back().map_or(at, |column| column.at);
        self.forget_before((newest + 1).saturating_sub(self.most_columns as u64));
        while self.cells > self.most_cells && self.ring.len() > 1 {
            self.forget_before(self.ring[0].at + 1);
        }
        at >= self.from
    }

    /// Forgets every column before `at`.
    pub fn forget_before(&mut self, at: u64) {
        self.from = self.from.max(at);
        while self.ring.front().is_some_and(|column| column.at < self.from) {
            self.cells -= self.ring.pop_front().map_or(0, |column| column.cells.len());
        }
    }

    /// The used columns of `from..to`, merged into steps of `step` base columns that begin at multiples of `step`; steps
    /// without values are left out.
    #[must_use]
    pub fn steps(&self, from: u64, to: u64, step: u64) -> Vec<Step> {
        let step = step.max(1);
        let mut merged: BTreeMap<u64, BTreeMap<usize, u64>> = BTreeMap::new();
        let begin = self.ring.partition_point(|column| column.at < from);
        for column in self.ring.iter().skip(begin).take_while(|column| column.at < to) {
            let slots = merged.entry(column.at - column.at % step).or_default();
            for cell in &column.cells {
                *slots.entry(cell.slot()).or_default() += cell.count();
            }
        }
        merged.into_iter().map(|(at, slots)| Step { at, slots: slots.into_iter().collect() }).collect()
    }

    /// How many cells are used.
    #[must_use]
    pub const fn cells(&self) -> usize {
        self.cells
    }

    /// Bytes on the heap, the allocator's own left out.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ring.len() * size_of::<Column>() + self.cells * size_of::<Cell>()
    }

    /// First column that is held in full: what was recorded before it is forgotten.
    #[must_use]
    pub const fn from(&self) -> u64 {
        self.from
    }

    /// Does it hold nothing?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// The oldest column that holds something.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        self.ring.front().map(|column| column.at)
    }

    fn insert(&mut self, place: usize, at: u64) -> usize {
        // The last column is most likely whole now.
        if let Some(last) = self.ring.back_mut() {
            last.cells.shrink_to_fit();
        }
        self.ring.insert(place, Column { at, cells: Vec::new() });
        place
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_oldest_goes_when_the_ring_is_full_and_late_values_are_refused() {
        let mut window = Window::new(10, 1_000);
        assert!(window.record(100, 5, 1));
        assert!(window.record(109, 5, 1));
        assert_eq!(window.oldest(), Some(100));
        assert!(window.record(110, 5, 1));
        assert_eq!((window.oldest(), window.from()), (Some(109), 101));
        assert!(!window.record(100, 5, 1), "a forgotten column takes nothing");
        assert!(window.record(105, 7, 2), "a late value within the window is counted");
        assert_eq!(window.oldest(), Some(105));
    }

    #[test]
    fn steps_begin_at_multiples() {
        let mut window = Window::new(100, 1_000);
        for at in [59, 60, 61, 64, 65] {
            window.record(at, 3, 1);
        }
        let steps = window.steps(0, 1_000, 5);
        assert_eq!(
            steps,
            [Step { at: 55, slots: vec![(3, 1)] }, Step { at: 60, slots: vec![(3, 3)] }, Step { at: 65, slots: vec![(3, 1)] },]
        );
        assert_eq!(window.steps(60, 62, 1).len(), 2);
    }

    #[test]
    fn a_column_wider_than_the_budget_is_kept_alone() {
        let mut window = Window::new(100, 4);
        for slot in 0..10 {
            window.record(1, slot, 1);
        }
        window.record(2, 0, 1);
        assert_eq!((window.oldest(), window.cells()), (Some(2), 1));
    }

    proptest! {
        #[test]
        fn nothing_within_the_window_is_lost_and_the_budget_holds(
            samples in prop::collection::vec((0u64..300, 0usize..282, 1u64..1_000), 1..400),
            columns in 1usize..200,
            cells in 300usize..600,
            step in 1u64..20,
        ) {
            let mut window = Window::new(columns, cells);
            let mut kept: Vec<(u64, usize, u64)> = Vec::new();
            for (at, slot, count) in samples {
                if window.record(at, slot, count) {
                    kept.push((at, slot, count));
                }
                prop_assert!(window.cells() <= cells.max(282));
            }
            let expected: u64 = kept.iter().filter(|(at, ..)| *at >= window.from()).map(|(.., count)| count).sum();
            let steps = window.steps(0, u64::MAX, step);
            let found: u64 = steps.iter().flat_map(|step| &step.slots).map(|(_, count)| count).sum();
            prop_assert_eq!(found, expected);
            prop_assert!(steps.iter().all(|found| found.at % step == 0));
            prop_assert!(steps.windows(2).all(|pair| pair[0].at < pair[1].at));
        }
    }
}
