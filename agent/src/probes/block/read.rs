//! Reads the probe's maps: adds the shards up, and reads histograms only where something completed since the last time.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use aya::{
    Ebpf,
    maps::{Array, HashMap, MapData, MapError},
};
use tailcomb_common::{
    block::{Count, DEVICE_WIDE, DISCARD, FLUSH, Latency, MAX_SERIES, OTHER, PHASES, READ, WRITE, device_and_operation},
    bucket::KERNEL_SLOTS,
};

use super::{BlockSeries, BlockSnapshot, Operation, PhaseHistogram};

/// Why the maps can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Object and agent are not of one build.
    #[error("the eBPF object has no usable map {map}: build the agent and the object from one checkout ({why})")]
    Map {
        /// The map.
        map: &'static str,
        /// What was found.
        why: String,
    },
    /// The kernel refused a look-up.
    #[error("reading the map {map}: {source}")]
    LookUp {
        /// The map.
        map: &'static str,
        /// What it said.
        #[source]
        source: MapError,
    },
}

const SLOT: &str = "BLOCK_SLOT";
/// Map: counters by slot and shard.
pub(crate) const COUNT: &str = "BLOCK_COUNT";
/// Map: histograms by slot and shard.
pub(crate) const LATENCY: &str = "BLOCK_LATENCY";
/// How often the counters are read for one snapshot, at most.
const READINGS: u32 = 4;
/// What reading one value takes when nothing comes in between: up to two system calls of a few hundred ns.
const PER_VALUE: Duration = Duration::from_micros(5);

/// Where a series is counted in one shard: its slot, and the position in the arrays.
type Place = (u32, u32);

/// Reads snapshots, and remembers the histograms of the series that rest. Holds 7 KiB a series and shard: 5.6 MiB at 32 devices
/// that read, write and flush on eight shards.
#[derive(Debug, Default)]
pub struct BlockReader {
    known: BTreeMap<Place, Known>,
}

#[derive(Debug)]
struct Known {
    count: Count,
    /// `None` until the first completion.
    latency: Option<Box<Latency>>,
}

impl BlockReader {
    /// One that has read nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// All series as they stand; `at_ns` is this moment in ns of CLOCK_MONOTONIC, from the caller. Only for an attached probe.
    ///
    /// # Errors
    /// [`ReadError`] where the object has no such maps, or the kernel refuses.
    pub fn read(&mut self, ebpf: &Ebpf, at_ns: u64) -> Result<BlockSnapshot, ReadError> {
        let latencies: Array<_, Latency> = array(ebpf, LATENCY)?;
        for (place, count) in counts(ebpf)? {
            let known = self.known.entry(place).or_insert(Known { count: Count::default(), latency: None });
            if known.count.completed != count.completed {
                let latency = latencies.get(&place.1, 0).map_err(|source| ReadError::LookUp { map: LATENCY, source })?;
                known.latency = Some(Box::new(latency));
            }
            known.count = count;
        }
        Ok(BlockSnapshot { at_ns, series: series(&self.known) })
    }

    /// Drops everything of a device that is gone, here and in the kernel: its number may come back as another.
    ///
    /// # Errors
    /// [`ReadError`] where the object has no such maps, or the kernel refuses.
    pub fn forget(&mut self, ebpf: &mut Ebpf, device: u32) -> Result<(), ReadError> {
        let gone: Vec<u32> = slots(ebpf)?
            .into_iter()
            .filter(|(_, series)| device_and_operation(*series).0 == device)
            .map(|(slot, _)| slot)
            .collect();
        for slot in gone {
            self.known.retain(|(of, _), _| *of != slot);
            // Emptied before it can be taken by another.
            clear(ebpf, COUNT, slot, Count::default())?;
            clear(ebpf, LATENCY, slot, Latency::EMPTY)?;
            release(ebpf, slot)?;
        }
        Ok(())
    }
}

/// Which slots are taken, and by which series.
fn slots(ebpf: &Ebpf) -> Result<Vec<(u32, u64)>, ReadError> {
    let map = ebpf.map(SLOT).ok_or_else(|| missing(SLOT))?;
    let map: HashMap<_, u32, u64> = HashMap::try_from(map).map_err(|error| unusable(SLOT, &error))?;
    // One that is deleted between finding the key and reading it is gone.
    map.iter()
        .filter(|entry| !matches!(entry, Err(MapError::KeyNotFound)))
        .map(|entry| entry.map_err(|source| ReadError::LookUp { map: SLOT, source }))
        .collect()
}

/// The counters of all series, as near to one moment as can be had.
///
/// A request may begin in one shard and complete in another. If this thread has to wait for a CPU between reading the two, more
/// seem to have ended than began. So a reading that took longer than it needs is made again, and the quickest is kept.
fn counts(ebpf: &Ebpf) -> Result<Vec<(Place, Count)>, ReadError> {
    let map: Array<_, Count> = array(ebpf, COUNT)?;
    let shards = map.len() / MAX_SERIES;
    let slots = slots(ebpf)?;
    let values = u32::try_from(slots.len()).unwrap_or(u32::MAX).saturating_mul(shards);
    let mut best: Option<(Duration, Vec<(Place, Count)>)> = None;
    for _ in 0..READINGS {
        let began = Instant::now();
        let mut counts = Vec::new();
        for (slot, series) in &slots {
            for position in slot * shards..(slot + 1) * shards {
                let count = map.get(&position, 0).map_err(|source| ReadError::LookUp { map: COUNT, source })?;
                // In another shard it may have had no request yet.
                if count.series == *series {
                    counts.push(((*slot, position), count));
                }
            }
        }
        let took = began.elapsed();
        if best.as_ref().is_none_or(|(quickest, _)| took < *quickest) {
            best = Some((took, counts));
        }
        if took <= PER_VALUE * values {
            break;
        }
    }
    Ok(best.map(|(_, counts)| counts).unwrap_or_default())
}

fn missing(map: &'static str) -> ReadError {
    ReadError::Map { map, why: "missing".to_owned() }
}

fn unusable(map: &'static str, error: &MapError) -> ReadError {
    ReadError::Map { map, why: error.to_string() }
}

fn array<'a, V: aya::Pod>(ebpf: &'a Ebpf, name: &'static str) -> Result<Array<&'a MapData, V>, ReadError> {
    let map = ebpf.map(name).ok_or_else(|| missing(name))?;
    Array::try_from(map).map_err(|error| unusable(name, &error))
}

/// Writes `empty` to every shard of a slot.
fn clear<V: aya::Pod>(ebpf: &mut Ebpf, name: &'static str, slot: u32, empty: V) -> Result<(), ReadError> {
    let map = ebpf.map_mut(name).ok_or_else(|| missing(name))?;
    let mut map: Array<_, V> = Array::try_from(map).map_err(|error| unusable(name, &error))?;
    let shards = map.len() / MAX_SERIES;
    (slot * shards..(slot + 1) * shards)
        .try_for_each(|position| map.set(position, empty, 0).map_err(|source| ReadError::LookUp { map: name, source }))
}

/// Gives a slot back.
fn release(ebpf: &mut Ebpf, slot: u32) -> Result<(), ReadError> {
    let map = ebpf.map_mut(SLOT).ok_or_else(|| missing(SLOT))?;
    let mut map: HashMap<_, u32, u64> = HashMap::try_from(map).map_err(|error| unusable(SLOT, &error))?;
    map.remove(&slot).map_err(|source| ReadError::LookUp { map: SLOT, source })
}

/// Adds the shards of each device and operation up.
fn series(known: &BTreeMap<Place, Known>) -> Vec<BlockSeries> {
    let mut series: BTreeMap<(u32, Operation), BlockSeries> = BTreeMap::new();
    for Known { count, latency } in known.values() {
        let (device, number) = device_and_operation(count.series);
        let Some(operation) = operation(number) else { continue };
        let sum = series.entry((device, operation)).or_insert_with(|| {
            let phases = [const { None }; PHASES];
            BlockSeries { device, operation, count: Count { series: count.series, ..Count::default() }, phases }
        });
        add_count(&mut sum.count, count);
        for (phase, histogram) in sum.phases.iter_mut().enumerate() {
            // A device-wide series has one phase; the rest of its value is never written.
            if let Some(latency) = latency.as_deref().filter(|_| operation != Operation::DeviceWide || phase == FLUSH) {
                add_histogram(histogram, latency, phase);
            }
        }
    }
    series.into_values().collect()
}

const fn operation(number: u8) -> Option<Operation> {
    match number {
        READ => Some(Operation::Read),
        WRITE => Some(Operation::Write),
        DISCARD => Some(Operation::Discard),
        OTHER => Some(Operation::Other),
        DEVICE_WIDE => Some(Operation::DeviceWide),
        _ => None,
    }
}

const fn add_count(sum: &mut Count, shard: &Count) {
    // Destructured, so that a new counter can't be forgotten here.
    let Count { series: _, started, completed, vanished, bytes, errors, merges, requeues, partial } = *shard;
    sum.started += started;
    sum.completed += completed;
    sum.vanished += vanished;
    sum.bytes += bytes;
    sum.errors += errors;
    sum.merges += merges;
    sum.requeues += requeues;
    sum.partial += partial;
}

fn add_histogram(sum: &mut Option<PhaseHistogram>, shard: &Latency, phase: usize) {
    let counts = &shard.counts[phase];
    if counts.iter().all(|count| *count == 0) {
        return;
    }
    let sum = sum.get_or_insert_with(|| PhaseHistogram { sum_ns: 0, max_ns: 0, counts: Box::new([0; KERNEL_SLOTS]) });
    sum.sum_ns += shard.sum_ns[phase];
    sum.max_ns = sum.max_ns.max(shard.max_ns[phase]);
    for (slot, count) in sum.counts.iter_mut().zip(counts) {
        *slot += count;
    }
}

#[cfg(test)]
mod tests {
    use tailcomb_common::block::{DEVICE, QUEUE};

    use super::*;

    fn known(device: u32, operation: u8, completed: u64, phase: usize, ns: u64) -> Known {
        let mut latency = Box::new(Latency::EMPTY);
        latency.sum_ns[phase] = ns * completed;
        latency.max_ns[phase] = ns;
        latency.counts[phase][tailcomb_common::bucket::kernel_slot(ns)] = completed;
        let series = tailcomb_common::block::series(device, operation);
        Known { count: Count { series, started: completed, completed, ..Count::default() }, latency: Some(latency) }
    }

    #[test]
    fn shards_are_added_up_and_devices_and_operations_are_not() {
        let known = BTreeMap::from([
            ((9, 72), known(7, READ, 2, QUEUE, 1_000)),
            ((9, 77), known(7, READ, 3, QUEUE, 9_000)),
            ((4, 32), known(7, WRITE, 4, DEVICE, 500)),
            ((0, 0), known(8, READ, 1, DEVICE, 70)),
        ]);
        let series = series(&known);
        let names: Vec<_> = series.iter().map(|series| (series.device, series.operation, series.count.completed)).collect();
        assert_eq!(names, [(7, Operation::Read, 5), (7, Operation::Write, 4), (8, Operation::Read, 1)]);
        let queue = series[0].phases[QUEUE].as_ref().expect("it has samples");
        assert_eq!((queue.sum_ns, queue.max_ns, queue.counts.iter().sum::<u64>()), (29_000, 9_000, 5));
        assert_eq!(series[0].phases[DEVICE], None, "a phase without samples is absent, not zero");
    }

    #[test]
    fn a_flush_has_one_phase() {
        let known = BTreeMap::from([((1, 8), known(7, DEVICE_WIDE, 2, FLUSH, 1_000))]);
        let series = series(&known);
        assert_eq!(series[0].operation, Operation::DeviceWide);
        assert!(series[0].phases[FLUSH].is_some());
        assert!(series[0].phases[FLUSH + 1..].iter().all(Option::is_none));
    }

    #[test]
    fn kernel_memory_stays_under_32_mib_at_128_cpus_and_32_devices() {
        use core::mem::size_of;

        use tailcomb_common::block::{MAX_BIOS, MAX_REQUESTS, MAX_TASKS, RequestState, StartedBio, TaskBios, shards};
        // kernel/bpf/hashtab.c: an element's head is 48 bytes, a bucket 16.
        const HEAD: usize = 48;
        const BUCKET: usize = 16;
        const CPUS: usize = 128;
        let hash = |entries: u32, key: usize, value: usize| {
            let entries = entries as usize;
            entries * (HEAD + key.next_multiple_of(8) + value) + entries.next_power_of_two() * BUCKET
        };
        let sharded = |value: usize| (MAX_SERIES * shards(CPUS)) as usize * value;
        let bytes = sharded(size_of::<Latency>())
            + sharded(size_of::<Count>())
            + hash(MAX_SERIES, 4, 8)
            + hash(MAX_REQUESTS, 8, size_of::<RequestState>())
            + hash(MAX_TASKS, 4, size_of::<TaskBios>())
            + hash(MAX_BIOS, 8, size_of::<StartedBio>());
        assert!(bytes <= 32 << 20, "{} KiB", bytes >> 10);
        println!("{} KiB", bytes >> 10);
    }
}
