//! Counts under load, against the kernel's own in `/sys/block/*/stat`.

use std::{fs, os::unix::fs::FileExt, thread};

use anyhow::{Result, ensure};
use tailcomb::{kernel::btf::Layout, probes::block::Operation};
use tailcomb_common::block::{FLUSH, TOTAL};
use tailcomb_tests::{
    case::Case,
    disk::{Block, Loop, Stat, number_of, open_direct_sync, real_folder},
};

use super::{
    MIB, case, nothing_lost,
    watch::{Difference, Grown, Watch, exactly},
};

pub(super) const CASES: &[Case] = &[
    case("block_counts_are_the_kernels_own_under_a_mixed_load", || exactly(counts_are_the_kernels_own_under_a_mixed_load)),
    case("block_counts_are_the_kernels_own_on_a_busy_disk", || exactly(counts_are_the_kernels_own_on_a_busy_disk)),
];

/// `[requests and merges, bytes]` as the kernel counts them, from what the probe counted.
///
/// A request that was merged into another is a merge for the kernel and vanished for the probe: they are compared in sum.
fn as_the_kernel_counts(grown: &Grown) -> [u64; 2] {
    let count = grown.count;
    [count.completed + count.vanished + count.merges, count.bytes]
}

const fn in_sum([requests, merges, bytes]: [u64; 3]) -> [u64; 2] {
    [requests + merges, bytes]
}

/// Rounds of the mixed load; each syncs a block device twice, and that is a flush without data.
const ROUNDS: u64 = 20;
const EMPTY_FLUSHES: u64 = 2 * ROUNDS;

fn counts_are_the_kernels_own_under_a_mixed_load() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 64 * MIB)?;
    let (direct, buffered) = (disk.direct(0)?, disk.buffered()?);
    let mut watch = Watch::start()?;
    let truth = Stat::of(disk.number)?;
    let seen = watch.during(disk.number, || {
        thread::scope(|scope| {
            let (direct, buffered) = (&direct, &buffered);
            let reader = scope.spawn(move || {
                let mut block = Block::new(4096);
                (0..2_000u64).try_for_each(|i| block.read(direct, 32 * MIB + i % 1_000 * 4096).map(drop))
            });
            let writer = scope.spawn(move || {
                let mut block = Block::new(16_384);
                (0..500u64).try_for_each(|i| block.write(direct, 16 * MIB + i * 16_384))
            });
            for round in 0..ROUNDS {
                for i in 0..64 {
                    buffered.write_all_at(&[7; 4096], (round * 64 + i) * 4096)?;
                }
                buffered.sync_all()?;
                // Nothing to write: a flush alone.
                buffered.sync_all()?;
            }
            for thread in [reader, writer] {
                thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            }
            Ok(())
        })
    })?;
    ensure!(seen.after.in_flight(disk.number) == 0, "not settled: {} in flight", seen.after.in_flight(disk.number));
    let [read, write, discard] = [Operation::Read, Operation::Write, Operation::Discard].map(|kind| seen.of(kind));
    let mut ours = [read, write, discard].map(|grown| as_the_kernel_counts(&grown));
    // A flush without data is a write of 0 bytes for the kernel. For the probe it vanished; where there is no block_io_start it
    // was never seen.
    if !Layout::of_running_kernel()?.has_tracepoint("block_io_start") {
        ours[1][0] += EMPTY_FLUSHES;
    }
    let kernels = |truth: &Stat| [truth.read, truth.write, truth.discard].map(in_sum);
    let flush = seen.of(Operation::DeviceWide);
    let truth = Stat::grown(disk.number, &truth, |truth| kernels(truth) == ours && truth.flushes == flush.count.completed)?;
    ensure!(ours == kernels(&truth), "we counted {ours:?}, the kernel {truth:?}");
    ensure!(truth.in_flight == 0, "not settled: {truth:?}");
    ensure!([read.count.completed, read.count.merges] == truth.read[..2], "{read:?}, {truth:?}");
    ensure!(write.phases[TOTAL].0 == write.count.completed, "{write:?}");
    ensure!(truth.read[0] >= 2_000 && truth.write[0] >= 500 && truth.flushes >= ROUNDS, "too little happened: {truth:?}");
    ensure!(flush.count.completed == truth.flushes && flush.phases[FLUSH].0 == truth.flushes, "{flush:?}, {truth:?}");
    nothing_lost(&seen)
}

fn counts_are_the_kernels_own_on_a_busy_disk() -> Result<()> {
    // The disk has other users: what the probe counted must lie between what the kernel counted within and around that time.
    let folder = real_folder()?;
    let disk = number_of(&folder)?;
    let path = folder.join(format!("tailcomb-test-busy-{}", std::process::id()));
    let mut watch = Watch::start()?;
    let outer = Stat::of(disk)?;
    let before = watch.now()?;
    let inner = Stat::of(disk)?;
    let work = || {
        let file = open_direct_sync(&path)?;
        let mut block = Block::new(4096);
        (0..200).try_for_each(|i| block.write(&file, i * 4096))?;
        (0..200).try_for_each(|i| block.read(&file, i * 4096).map(drop))
    };
    let worked = work();
    fs::remove_file(&path)?;
    worked?;
    let inner = Stat::of(disk)?.since(&inner);
    let after = watch.now()?;
    let outer = Stat::of(disk)?.since(&outer);
    let seen = Difference { device: disk, before, after };
    let has_io_start = Layout::of_running_kernel()?.has_tracepoint("block_io_start");
    let in_flight = seen.after.in_flight(disk);
    ensure!((0..=1024).contains(&in_flight), "{in_flight} in flight");
    for (operation, inner, outer) in [(Operation::Read, inner.read, outer.read), (Operation::Write, inner.write, outer.write)] {
        let grown = seen.of(operation);
        let ([ours, _], [least, _], [most, _]) = (as_the_kernel_counts(&grown), in_sum(inner), in_sum(outer));
        // Where there is no block_io_start, flushes without data are not seen, and there is one to each write at most.
        let unseen = if has_io_start || operation == Operation::Read { 0 } else { 200 };
        // The probe counts a moment before the kernel does: one a CPU may stand between the two.
        ensure!(ours + unseen + 8 >= least && ours <= most + 8, "{operation:?}: {ours}, not {least} to {most}; {grown:?}");
        ensure!(grown.count.completed >= 200, "{operation:?}: {grown:?}");
    }
    Ok(())
}
