//! The slowest requests themselves, minute by minute.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
};

use crate::{attribute::workload::Workload, decode::request::Request};

/// Most requests kept of one minute.
pub const PER_MINUTE: usize = 50;
/// Minutes kept.
pub const MINUTES: u64 = 30;

const MINUTE_NS: u64 = 60 * 1_000_000_000;

/// One request and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// The request.
    pub request: Request,
    /// Whose.
    pub workload: Arc<Workload>,
}

/// Ordered by duration alone; among equals the later one is the lesser, so that it goes first.
#[derive(Debug, PartialEq, Eq)]
struct BySlowness(u64, Reverse<u64>, Box<SlowRequest>);

impl Ord for BySlowness {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, &self.1).cmp(&(other.0, &other.1))
    }
}

impl PartialOrd for BySlowness {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug)]
struct Minute {
    number: u64,
    /// The least slow one on top.
    requests: BinaryHeap<Reverse<BySlowness>>,
}

/// At most [`PER_MINUTE`] of each of the last [`MINUTES`] minutes and the one that runs: 1 550 requests of about 300 bytes.
#[derive(Debug, Default)]
pub struct Slowest {
    /// By number, rising.
    minutes: VecDeque<Minute>,
}

impl Slowest {
    /// Takes a request if it is among its minute's slowest. Its minute is that of its end.
    pub fn offer(&mut self, request: &Request, workload: &Arc<Workload>) {
        let number = request.marks.end / MINUTE_NS;
        let newest = self.minutes.back().map_or(number, |minute| minute.number.max(number));
        self.forget(newest);
        if number + MINUTES < newest {
            return;
        }
        let place = self.minutes.partition_point(|minute| minute.number < number);
        if self.minutes.get(place).is_none_or(|minute| minute.number != number) {
            self.minutes.insert(place, Minute { number, requests: BinaryHeap::with_capacity(PER_MINUTE) });
        }
        let requests = &mut self.minutes[place].requests;
        let duration = request.duration_ns();
        if requests.len() == PER_MINUTE {
            if requests.peek().is_some_and(|Reverse(least)| least.0 >= duration) {
                return;
            }
            requests.pop();
        }
        let kept = Box::new(SlowRequest { request: request.clone(), workload: Arc::clone(workload) });
        requests.push(Reverse(BySlowness(duration, Reverse(request.marks.end), kept)));
    }

    /// Forgets what is too old at `now_ns` (CLOCK_MONOTONIC).
    pub fn tick(&mut self, now_ns: u64) {
        self.forget(now_ns / MINUTE_NS);
    }

    /// The slowest `most` that ended at or after `since_ns`, the slowest first.
    #[must_use]
    pub fn since(&self, since_ns: u64, most: usize) -> Vec<&SlowRequest> {
        let mut found: Vec<&BySlowness> = self
            .minutes
            .iter()
            .filter(|minute| minute.number >= since_ns / MINUTE_NS)
            .flat_map(|minute| minute.requests.iter().map(|Reverse(request)| request))
            .filter(|request| request.2.request.marks.end >= since_ns)
            .collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.into_iter().take(most).map(|request| &*request.2).collect()
    }

    /// How many are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.minutes.iter().map(|minute| minute.requests.len()).sum()
    }

    /// None?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn forget(&mut self, newest: u64) {
        while self.minutes.front().is_some_and(|minute| minute.number + MINUTES < newest) {
            self.minutes.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::request, *};
    use crate::decode::request::{Marks, Mode};

    fn offered(ends_and_durations: &[(u64, u64)]) -> Slowest {
        let mut slowest = Slowest::default();
        let workload = Arc::new(Workload::default());
        for (end, duration) in ends_and_durations {
            let mut request = request("/v1/chat/completions", Mode::Unary);
            request.marks = Marks { arrive: end - duration, end: *end, ..Marks::default() };
            slowest.offer(&request, &workload);
        }
        slowest
    }

    #[test]
    fn each_minute_keeps_its_own_slowest() {
        // A minute of 1 000 requests that are slow, then a minute of quick ones.
        let slow = (0..1_000).map(|i| (MINUTE_NS * 5 + i, 1_000_000 + i));
        let quick = (0..10).map(|i| (MINUTE_NS * 6 + i, 10 + i));
        let slowest = offered(&slow.chain(quick).collect::<Vec<_>>());
        assert_eq!(slowest.len(), PER_MINUTE + 10);
        let all = slowest.since(0, 1_000);
        assert_eq!(all.first().map(|slow| slow.request.duration_ns()), Some(1_000_999));
        assert_eq!(all[PER_MINUTE - 1].request.duration_ns(), 1_000_950);
        let late = slowest.since(MINUTE_NS * 6, 3);
        assert_eq!(late.iter().map(|slow| slow.request.duration_ns()).collect::<Vec<_>>(), [19, 18, 17]);
    }

    #[test]
    fn what_is_older_than_the_window_goes() {
        let mut slowest = offered(&[(MINUTE_NS, 7), (MINUTE_NS * (MINUTES + 2), 8)]);
        assert_eq!(slowest.len(), 1);
        slowest.tick(MINUTE_NS * (2 * MINUTES + 3));
        assert!(slowest.is_empty());
    }
}
