//! The `block` probe against the kernel's own counters, the tests' own clocks, and real disks.

mod counts;
mod watch;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use aya::programs::BtfTracePoint;
use nix::libc::O_DSYNC;
use tailcomb::{
    attribute::device::{Devices, Layer},
    kernel::btf::Layout,
    probes::{
        block::{
            Operation,
            selftest::{self, Outcome},
        },
        loader::Options,
    },
};
use tailcomb_common::{
    block::{DEVICE, FLUSH, QUEUE, SUBMIT_WAIT, TOTAL},
    lost::{BLOCK_MAP_FULL, BLOCK_NEGATIVE, BLOCK_UNMATCHED, BLOCK_UNSEEN_END},
};
use tailcomb_tests::{
    case::{Case, Need},
    disk::{Block, Loop, Stat, number_of, real_folder, run},
};
use watch::{Difference, Watch, exactly};

const MIB: u64 = 1 << 20;
const DISK: &[Need] = &[Need::Kernel, Need::Loop, Need::Tool("losetup")];

const fn case(name: &'static str, run: fn() -> Result<()>) -> Case {
    Case { name, needs: DISK, run }
}

pub(crate) fn cases() -> Vec<Case> {
    [CASES, counts::CASES].concat()
}

const CASES: &[Case] = &[
    case("d02_a_synchronous_write_counts_once", || exactly(a_synchronous_write_counts_once)),
    case("d03_a_short_read_is_one_read", || exactly(a_short_read_is_one_read)),
    case("d06_a_read_of_our_own_comes_back", a_read_of_our_own_comes_back),
    case("d06_a_probe_that_misreads_is_caught", a_probe_that_misreads_is_caught),
    Case {
        name: "d07_writes_and_a_discard_are_no_reads",
        needs: &[Need::Kernel, Need::Loop, Need::Tool("losetup"), Need::Tool("blkdiscard")],
        run: || exactly(writes_and_a_discard_are_no_reads),
    },
    case("d14_a_sum_over_leaves_counts_a_byte_once", || exactly(a_sum_over_leaves_counts_a_byte_once)),
    case("d15_an_idle_device_stays_flat", || exactly(an_idle_device_stays_flat)),
    case("block_phases_add_up_to_the_total", || exactly(phases_add_up_to_the_total)),
    case("block_in_flight_comes_back_to_zero", || exactly(in_flight_comes_back_to_zero)),
    case("block_split_bios_share_their_stamp", || exactly(split_bios_share_their_stamp)),
    case("block_an_end_that_was_not_shown_is_lost", an_end_that_was_not_shown_is_lost),
    case("block_a_device_goes_while_it_is_busy", a_device_goes_while_it_is_busy),
    case("block_detached_and_attached_again_leaves_nothing", detached_and_attached_again_leaves_nothing),
];

fn nothing_lost(difference: &Difference) -> Result<()> {
    for reason in [BLOCK_UNMATCHED, BLOCK_NEGATIVE, BLOCK_MAP_FULL] {
        let lost = difference.lost(reason)?;
        ensure!(lost == 0, "{lost} lost: {:?}", tailcomb_common::lost::REASONS[usize::try_from(reason)?]);
    }
    Ok(())
}

fn a_synchronous_write_counts_once() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 64 * MIB)?;
    let file = disk.direct(O_DSYNC)?;
    let mut block = Block::new(4096);
    let mut watch = Watch::start()?;
    let began = Instant::now();
    let seen = watch.during(disk.number, || (0..50).try_for_each(|i| block.write(&file, i * 4096)))?;
    let took = u64::try_from(began.elapsed().as_nanos())?;
    let write = seen.of(Operation::Write);
    ensure!(write.count.completed == 50, "{write:?}");
    ensure!(write.count.bytes == 204_800, "{write:?}");
    for phase in [SUBMIT_WAIT, QUEUE, DEVICE, TOTAL] {
        ensure!(write.phases[phase].0 == 50, "phase {phase}: {write:?}");
    }
    ensure!(write.phases[TOTAL].1 <= took, "{} ns in sum, but all took {took} ns", write.phases[TOTAL].1);
    let flush = seen.of(Operation::DeviceWide);
    ensure!(flush.count.completed >= 50 && flush.phases[FLUSH].0 == flush.count.completed, "{flush:?}");
    ensure!(seen.of(Operation::Read).count.completed == 0, "a write became a read");
    nothing_lost(&seen)
}

fn a_short_read_is_one_read() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 64 * MIB)?;
    let file = disk.direct(0)?;
    fs::File::options().write(true).open(&disk.backing)?.set_len(516 * 1024)?;
    let mut block = Block::new(128 * 1024);
    let mut watch = Watch::start()?;
    let truth = Stat::of(disk.number)?;
    let seen = watch.during(disk.number, || {
        // 4 KiB of these 128 are there: whether that is an error or a short read is the kernel's business.
        let _ = block.read(&file, 512 * 1024);
        Ok(())
    })?;
    let read = seen.of(Operation::Read);
    let truth = Stat::grown(disk.number, &truth, |truth| truth.read[0] == read.count.completed)?;
    // One, or two where our memory is scattered over more pages than one request may have: the kernel says.
    let requests = truth.read[0];
    ensure!((1..=2).contains(&requests), "{truth:?}");
    ensure!(read.count.completed == requests && read.phases[TOTAL].0 == requests, "{read:?}");
    ensure!(seen.after.in_flight(disk.number) == 0, "{} in flight", seen.after.in_flight(disk.number));
    // Kernels differ in what loop does with the missing part; where it completes in two parts, both are seen.
    if read.count.partial > 0 {
        ensure!(read.count.partial == 1 && read.count.requeues == 1, "{read:?}");
        ensure!(read.count.errors == requests && read.count.bytes == 128 * 1024, "{read:?}");
    }
    nothing_lost(&seen)
}

fn a_read_of_our_own_comes_back() -> Result<()> {
    let folder = real_folder()?;
    let mut watch = Watch::start()?;
    match selftest::run(&mut watch.loaded.ebpf, std::slice::from_ref(&folder))? {
        Outcome::Passed { compared } => ensure!(compared.starts_with("4096 bytes, device "), "{compared}"),
        other => bail!("{other:?}"),
    }
    let left: Vec<_> = fs::read_dir(&folder)?
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(".tailcomb-self-test"))
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(&format!("-{}", std::process::id())))
        .collect();
    ensure!(left.is_empty(), "left behind: {left:?}");
    // /proc lies on no block device: then there is nothing to compare, and nothing is said to be right or wrong.
    let outcome = selftest::run(&mut watch.loaded.ebpf, &[PathBuf::from("/proc")])?;
    ensure!(matches!(outcome, Outcome::NotApplicable { .. }), "{outcome:?}");
    Ok(())
}

fn a_probe_that_misreads_is_caught() -> Result<()> {
    // The sector is looked for where another field lies: what a probe does whose layout is not this kernel's.
    let elsewhere = Layout::of_running_kernel()?.offset("request.biotail").expect("every kernel has it");
    let options = Options { globals: [("REQUEST_SECTOR", elsewhere)].into(), ..Options::default() };
    let mut watch = Watch::with(&options)?;
    match selftest::run(&mut watch.loaded.ebpf, &[real_folder()?])? {
        Outcome::Failed { seen } => ensure!(seen.contains("seen: 4096 bytes"), "{seen}"),
        other => bail!("{other:?}"),
    }
    Ok(())
}

fn writes_and_a_discard_are_no_reads() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 64 * MIB)?;
    let file = disk.direct(0)?;
    let mut block = Block::new(65_536);
    let mut watch = Watch::start()?;
    let written = watch.during(disk.number, || (0..200).try_for_each(|i| block.write(&file, i * 65_536)))?;
    ensure!(written.of(Operation::Write).count.completed == 200, "{:?}", written.of(Operation::Write));
    ensure!(written.of(Operation::Read).count.started == 0, "{:?}", written.of(Operation::Read));
    nothing_lost(&written)?;
    // As reported, where there is fio.
    if Need::Tool("fio").missing().is_none() {
        let truth = Stat::of(disk.number)?;
        let mut fio = Command::new("fio");
        fio.args([
            "--name=d07",
            "--rw=randwrite",
            "--bs=4k",
            "--direct=1",
            "--ioengine=psync",
            "--numjobs=4",
            "--group_reporting",
        ]);
        fio.args(["--allow_file_create=0", "--size=16m", "--offset_increment=16m", "--filename"]).arg(&disk.path);
        let written = watch.during(disk.number, || run(&mut fio).map(drop))?;
        let write = written.of(Operation::Write).count;
        let truth = Stat::grown(disk.number, &truth, |truth| truth.write[0] == write.completed)?;
        ensure!(write.completed == truth.write[0] && write.completed >= 4 * 4096, "{write:?}, {truth:?}");
        // Whether fio reads a partition table or not: what the kernel says.
        ensure!(written.of(Operation::Read).count.completed == truth.read[0], "{:?}, {truth:?}", written.of(Operation::Read));
        nothing_lost(&written)?;
    }
    // util-linux' blkdiscard reads too: it looks for a file system first.
    let truth = Stat::of(disk.number)?;
    let seen = watch.during(disk.number, || run(Command::new("blkdiscard").arg(&disk.path)).map(drop))?;
    let read = seen.of(Operation::Read).count.completed;
    let truth = Stat::grown(disk.number, &truth, |truth| truth.read[0] == read)?;
    ensure!(read == truth.read[0], "{:?}, {truth:?}", seen.of(Operation::Read));
    ensure!(seen.of(Operation::Write).count.started == 0, "{:?}", seen.of(Operation::Write));
    let discard = seen.of(Operation::Discard);
    ensure!(discard.count.completed == 1 && discard.count.bytes == 64 * MIB, "{discard:?}");
    ensure!(discard.phases[TOTAL].0 == 1, "{discard:?}");
    nothing_lost(&seen)
}

fn a_sum_over_leaves_counts_a_byte_once() -> Result<()> {
    let folder = real_folder()?;
    let disk = Loop::make(&folder, 64 * MIB)?;
    let below = number_of(&folder)?;
    let file = disk.direct(0)?;
    let mut block = Block::new(usize::try_from(MIB)?);
    let mut watch = Watch::start()?;
    let mut truth = Stat::default();
    let seen = watch.during(disk.number, || {
        let before = Stat::of(below)?;
        (0..8).try_for_each(|i| block.write(&file, i * MIB))?;
        file.sync_all()?;
        truth = Stat::of(below)?.since(&before);
        Ok(())
    })?;
    let mut devices = Devices::new();
    devices.refresh(seen.after.by_key.keys().map(|(device, _)| *device), 0);
    ensure!(devices.get(disk.number).is_some_and(|device| device.layer == Layer::Stacked), "{:?}", devices.get(disk.number));
    ensure!(seen.of(Operation::Write).count.bytes == 8 * MIB, "{:?}", seen.of(Operation::Write));
    let leaves = seen.after.by_key.keys().filter(|(device, operation)| {
        *operation == Operation::Write && devices.get(*device).is_some_and(|device| device.layer == Layer::Leaf)
    });
    let sum: u64 = leaves.map(|(device, operation)| seen.on(*device, *operation).count.bytes).sum();
    // The disk below has other users too: at least ours and at least what the kernel itself counted meanwhile, and where
    // nobody else wrote, no more than ours and some metadata.
    ensure!(sum >= 8 * MIB && sum >= truth.write[2], "{sum} bytes on leaves, the kernel counted {}", truth.write[2]);
    if truth.write[2] < 9 * MIB {
        ensure!(sum < 10 * MIB, "{sum} bytes on leaves for 8 MiB written");
    }
    Ok(())
}

fn an_idle_device_stays_flat() -> Result<()> {
    let folder = real_folder()?;
    let (idle, busy) = (Loop::make(&folder, 16 * MIB)?, Loop::make(&folder, 16 * MIB)?);
    let file = busy.direct(0)?;
    let mut block = Block::new(4096);
    let mut watch = Watch::start()?;
    let seen = watch.during(busy.number, || (0..500).try_for_each(|i| block.write(&file, i * 4096)))?;
    ensure!(seen.of(Operation::Write).count.completed == 500, "{:?}", seen.of(Operation::Write));
    ensure!(!seen.before.has_device(busy.number), "it had series before its first I/O");
    ensure!(!seen.after.has_device(idle.number), "the idle device has series");
    Ok(())
}

fn phases_add_up_to_the_total() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 64 * MIB)?;
    let file = disk.direct(0)?;
    let mut block = Block::new(4096);
    let mut watch = Watch::start()?;
    let mut own = Duration::ZERO;
    let seen = watch.during(disk.number, || {
        for i in 0..2_000 {
            let began = Instant::now();
            if i % 2 == 0 {
                block.write(&file, i * 4096)?
            } else {
                block.read(&file, (i - 1) * 4096).map(drop)?
            }
            own += began.elapsed();
        }
        Ok(())
    })?;
    let mut in_all = 0;
    for operation in [Operation::Read, Operation::Write] {
        let grown = seen.of(operation);
        let [submit, queue, device, total] = [SUBMIT_WAIT, QUEUE, DEVICE, TOTAL].map(|phase| grown.phases[phase]);
        ensure!([submit.0, queue.0, device.0, total.0] == [1_000; 4], "{operation:?}: {grown:?}");
        let parts = submit.1 + queue.1 + device.1;
        ensure!(parts.abs_diff(total.1) * 50 <= total.1, "{parts} ns of parts, {} ns in all", total.1);
        in_all += total.1;
    }
    // Our own clock started before and stopped after each: it must show more, but not a different order of magnitude.
    let own = u64::try_from(own.as_nanos())?;
    ensure!(in_all < own && in_all > own / 10, "{in_all} ns seen of {own} ns");
    nothing_lost(&seen)
}

fn in_flight_comes_back_to_zero() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 64 * MIB)?;
    let file = disk.direct(0)?;
    let mut watch = Watch::start()?;
    let stop = AtomicBool::new(false);
    let mut most = 0;
    thread::scope(|scope| {
        for thread in 0..8u64 {
            let (file, stop) = (&file, &stop);
            scope.spawn(move || {
                let mut block = Block::new(262_144);
                while !stop.load(Ordering::Relaxed) {
                    if block.write(file, thread * 8 * MIB).is_err() {
                        break;
                    }
                }
            });
        }
        for _ in 0..100 {
            thread::sleep(Duration::from_millis(5));
            most = most.max(watch.now().map_or(0, |now| now.in_flight(disk.number)));
        }
        stop.store(true, Ordering::Relaxed);
    });
    ensure!((1..=64).contains(&most), "{most} in flight at most, of 8 threads");
    let after = watch.settled(disk.number)?;
    ensure!(after.in_flight(disk.number) == 0, "{} left in flight", after.in_flight(disk.number));
    Ok(())
}

fn split_bios_share_their_stamp() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 64 * MIB)?;
    let file = disk.direct(0)?;
    let mut block = Block::new(usize::try_from(8 * MIB)?);
    // The whole in one go is more than any request may have.
    fs::write(format!("/sys/block/{}/queue/max_sectors_kb", disk.name()), "64")?;
    let mut watch = Watch::start()?;
    let truth = Stat::of(disk.number)?;
    let seen = watch.during(disk.number, || block.write(&file, 0))?;
    let write = seen.of(Operation::Write);
    ensure!(write.count.bytes == 8 * MIB, "{write:?}");
    let requests = write.count.completed;
    let truth = Stat::grown(disk.number, &truth, |truth| truth.write[0] == requests)?;
    ensure!(requests >= 128 && requests == truth.write[0], "{write:?}, {truth:?}");
    // Each has a total, so each found the stamp of the bio it was split from.
    ensure!(write.phases[TOTAL].0 == requests && write.phases[SUBMIT_WAIT].0 == requests, "{write:?}");
    nothing_lost(&seen)
}

fn an_end_that_was_not_shown_is_lost() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 64 * MIB)?;
    let file = disk.direct(0)?;
    let mut block = Block::new(4096);
    let mut watch = Watch::start()?;
    let before = watch.now()?;
    let complete: &mut BtfTracePoint =
        watch.loaded.ebpf.program_mut("block_rq_complete").context("no such program")?.try_into()?;
    complete.unload()?;
    // More than a loop device has tags (128).
    (0..300).try_for_each(|i| block.write(&file, i * 4096))?;
    let seen = Difference { device: disk.number, before, after: watch.now()? };
    let write = seen.of(Operation::Write).count;
    ensure!(write.started == 300 && write.completed == 0 && (172..300).contains(&write.vanished), "{write:?}");
    let lost = seen.lost(BLOCK_UNSEEN_END)?;
    // Other disks lose theirs too.
    ensure!(lost >= write.vanished, "{lost} counted as lost, {write:?}");
    Ok(())
}

fn a_device_goes_while_it_is_busy() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 64 * MIB)?;
    let file = disk.direct(0)?;
    let mut block = Block::new(4096);
    let mut watch = Watch::start()?;
    let mut devices = Devices::new();
    let seen = watch.during(disk.number, || {
        (0..200).try_for_each(|i| block.write(&file, i * 4096))?;
        // It goes with the last that closes it.
        disk.detach()?;
        (0..200).try_for_each(|i| block.write(&file, i * 4096))
    })?;
    ensure!(seen.of(Operation::Write).count.completed == 400, "{:?}", seen.of(Operation::Write));
    devices.refresh([disk.number], 0);
    ensure!(devices.get(disk.number).is_some(), "not named while it was there");
    drop(file);
    let backing = PathBuf::from(format!("/sys/block/{}/loop/backing_file", disk.name()));
    for _ in 0..100 {
        if !backing.exists() {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let gone = devices.refresh([disk.number], 60_000_000_000);
    ensure!(gone == [disk.number], "{gone:?} went");
    for number in gone {
        watch.forget(number)?;
    }
    ensure!(!watch.now()?.has_device(disk.number), "its series stayed");
    Ok(())
}

/// How many of this process' files belong to eBPF.
fn bpf_files() -> Result<usize> {
    let links = fs::read_dir("/proc/self/fd")?.filter_map(Result::ok).filter_map(|entry| fs::read_link(entry.path()).ok());
    Ok(links.filter(|link| link.starts_with(Path::new("anon_inode:bpf")) || link.to_string_lossy().contains("bpf")).count())
}

fn detached_and_attached_again_leaves_nothing() -> Result<()> {
    let disk = Loop::make(&real_folder()?, 16 * MIB)?;
    let file = disk.direct(0)?;
    let mut block = Block::new(4096);
    ensure!(bpf_files()? == 0, "{} files before", bpf_files()?);
    for round in 0..3 {
        let mut watch = Watch::start()?;
        ensure!(bpf_files()? > 10, "round {round}: only {} files while attached", bpf_files()?);
        let seen = watch.during(disk.number, || (0..10).try_for_each(|i| block.write(&file, i * 4096)))?;
        ensure!(seen.before.by_key.is_empty() || !seen.before.has_device(disk.number), "round {round}: counts of the last one");
        ensure!(seen.of(Operation::Write).count.completed == 10, "round {round}: {:?}", seen.of(Operation::Write));
        watch.loaded.detach("block", "the test takes it off");
        let at_rest = watch.now()?;
        block.write(&file, 0)?;
        let later = watch.now()?;
        ensure!(
            at_rest.by_key.values().map(|grown| grown.count.started).eq(later.by_key.values().map(|grown| grown.count.started)),
            "round {round}: it counted on after it was detached"
        );
        drop(watch);
        ensure!(bpf_files()? == 0, "round {round}: {} files left", bpf_files()?);
    }
    Ok(())
}
