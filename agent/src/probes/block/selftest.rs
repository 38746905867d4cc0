//! The start-up self-test: one read of our own, whose size, device and sector are known, must come back from the probe as such.
//!
//! A kernel whose structs or tracepoints are not what the probe takes them for would give wrong figures without an error. This
//! is the test on the very machine that measures: a probe that fails it is taken off.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{Array, MapData, MapError},
};
use fiemap::{Fiemap, FiemapExtentFlags};
use nix::sys::stat::{major, minor};
use tailcomb_common::block::SelfTest;

use super::ReadError;
use crate::attribute::device::{self, Place, major_minor};

/// What the self-test showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The probe saw our read as it was.
    Passed {
        /// What was compared: `4096 bytes, device 254:0, sector 81920`.
        compared: String,
    },
    /// It could not be made here; the probe stands, unproved.
    NotApplicable {
        /// Why.
        reason: String,
    },
    /// The probe saw something else, or nothing: it must not be used.
    Failed {
        /// What was read and what was seen.
        seen: String,
    },
}

const MAP: &str = "BLOCK_SELFTEST";
const SIZE: usize = 4096;
const SECTOR: u64 = 512;
/// Another read of this process (a page of its own binary) may come in between; that it does five times in a row won't happen.
const TRIES: u32 = 5;
/// Inode number of the first pid namespace: the kernel's include/linux/proc_ns.h, PROC_PID_INIT_INO.
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Expected {
    bytes: u64,
    place: Place,
    /// First sector on the whole disk; `None` where the file system does not tell.
    sector: Option<u64>,
    /// Devices below a stacked one, on which the read may be seen instead.
    below: Vec<u32>,
}

/// Makes the self-test in the first of `folders` that lies on a block device. The probe must be attached.
///
/// Its file is removed in every case.
///
/// # Errors
/// [`ReadError`] where the object has no map for it, or the kernel refuses it.
pub fn run(ebpf: &mut Ebpf, folders: &[PathBuf]) -> Result<Outcome, ReadError> {
    let not_applicable = |reason: String| Ok(Outcome::NotApplicable { reason });
    if std::fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() != INITIAL_PID_NAMESPACE) {
        return not_applicable(
            "the agent is not in the host's pid namespace, so its own reads can't be told (hostPID: true)".to_owned(),
        );
    }
    let Some((folder, place)) = folders.iter().find_map(|folder| Some((folder, place_of(folder)?))) else {
        return not_applicable("none of the folders tried lies on a block device".to_owned());
    };
    let file = match Probe::write(folder) {
        Ok(file) => file,
        Err(error) => return not_applicable(format!("no file of ours can be made in {}: {error}", folder.display())),
    };
    let expected = Expected {
        bytes: SIZE as u64,
        sector: file.sector().map(|sector| sector + place.start),
        below: device::with_those_below(Path::new(SYSFS), place.disk),
        place,
    };
    let direct = match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&file.path) {
        Ok(direct) => direct,
        Err(error) => return not_applicable(format!("{} does not take O_DIRECT: {error}", folder.display())),
    };
    let mut outcome = Outcome::Failed { seen: "nothing".to_owned() };
    for _ in 0..TRIES {
        arm(ebpf, std::process::id())?;
        let read = read_direct(&direct);
        let seen = completed(ebpf)?;
        arm(ebpf, 0)?;
        if let Err(error) = read {
            return not_applicable(format!("a direct read in {} failed: {error}", folder.display()));
        }
        outcome = judge(&expected, &seen);
        if matches!(outcome, Outcome::Passed { .. }) {
            break;
        }
    }
    Ok(outcome)
}

const SYSFS: &str = "/sys";

fn place_of(folder: &Path) -> Option<Place> {
    let device = std::fs::metadata(folder).ok()?.dev();
    let number = |part: u64| u32::try_from(part).ok();
    device::place(Path::new(SYSFS), number(major(device))?, number(minor(device))?)
}

/// Compares what the kernel saw with what was asked for.
fn judge(expected: &Expected, seen: &SelfTest) -> Outcome {
    let (major, minor) = major_minor(seen.device);
    let device = format!("device {major}:{minor}");
    let told = format!("{} bytes, {device}, sector {}", seen.bytes, seen.sector);
    let (disk_major, disk_minor) = major_minor(expected.place.disk);
    let asked = format!(
        "asked for {} bytes of device {disk_major}:{disk_minor}, sector {}",
        expected.bytes,
        expected.sector.map_or_else(|| "unknown".to_owned(), |sector| sector.to_string()),
    );
    let failed = |what: &str| Outcome::Failed { seen: format!("{asked}; seen: {what}") };
    match seen.state {
        0 => return failed("no read"),
        1 => return failed(&format!("{told}, not completed")),
        _ => {}
    }
    if seen.bytes != expected.bytes || !expected.below.contains(&seen.device) {
        return failed(&told);
    }
    match expected.sector {
        Some(sector) if seen.device == expected.place.disk => {
            if seen.sector == sector {
                Outcome::Passed { compared: told }
            } else {
                failed(&told)
            }
        }
        Some(_) => {
            Outcome::Passed { compared: format!("{} bytes, {device}; not the sector: the disk is a stacked one", seen.bytes) }
        }
        None => Outcome::Passed {
            compared: format!("{} bytes, {device}; not the sector: the file system does not tell it", seen.bytes),
        },
    }
}

/// Our file, as long as the value lives.
struct Probe {
    path: PathBuf,
    file: File,
}

impl Probe {
    fn write(folder: &Path) -> io::Result<Self> {
        let path = folder.join(format!(".tailcomb-self-test-{}", std::process::id()));
        // Read too: FIEMAP wants it. Exclusive: nothing that somebody put there is followed or overwritten.
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let mut probe = Self { path, file };
        probe.file.write_all(&[0x7a; SIZE])?;
        probe.file.sync_all()?;
        Ok(probe)
    }

    /// First sector of its data on the file system's device; `None` where the file system does not tell, or the data is not
    /// stored there as it is (inline, compressed, encrypted, several devices).
    fn sector(&self) -> Option<u64> {
        let extent = Fiemap::new(&self.file).next()?.ok()?;
        let unclear = FiemapExtentFlags::UNKNOWN
            | FiemapExtentFlags::DELALLOC
            | FiemapExtentFlags::ENCODED
            | FiemapExtentFlags::NOT_ALIGNED
            | FiemapExtentFlags::DATA_INLINE;
        let plain = extent.fe_logical == 0 && extent.fe_length >= SIZE as u64 && !extent.fe_flags.intersects(unclear);
        plain.then_some(extent.fe_physical / SECTOR)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // There is nobody to tell, and 4 KiB of a hidden file do no harm.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// O_DIRECT wants memory that is aligned as the device's blocks are.
fn read_direct(file: &File) -> io::Result<()> {
    let mut memory = vec![0; 2 * SIZE];
    let start = memory.as_ptr().align_offset(SIZE);
    let buffer = memory.get_mut(start..start + SIZE).ok_or_else(|| io::Error::other("no aligned memory"))?;
    file.read_exact_at(buffer, 0)
}

fn arm(ebpf: &mut Ebpf, tgid: u32) -> Result<(), ReadError> {
    let map = ebpf.map_mut(MAP).ok_or_else(|| ReadError::Map { map: MAP, why: "missing".to_owned() })?;
    let mut map: Array<_, SelfTest> = Array::try_from(map).map_err(unusable)?;
    map.set(0, SelfTest { tgid, ..SelfTest::default() }, 0).map_err(|source| ReadError::LookUp { map: MAP, source })
}

/// What the kernel wrote down, once that read completed, or after a second.
fn completed(ebpf: &Ebpf) -> Result<SelfTest, ReadError> {
    let map = ebpf.map(MAP).ok_or_else(|| ReadError::Map { map: MAP, why: "missing".to_owned() })?;
    let map: Array<&MapData, SelfTest> = Array::try_from(map).map_err(unusable)?;
    let mut seen = SelfTest::default();
    for _ in 0..100 {
        seen = map.get(&0, 0).map_err(|source| ReadError::LookUp { map: MAP, source })?;
        if seen.state == 2 {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(seen)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unusable(error: MapError) -> ReadError {
    ReadError::Map { map: MAP, why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VDA: u32 = 254 << 20;
    const DM0: u32 = 253 << 20;

    fn expected(sector: Option<u64>) -> Expected {
        Expected { bytes: 4096, place: Place { disk: VDA, start: 0 }, sector, below: vec![VDA] }
    }

    fn seen(device: u32, sector: u64, bytes: u64, state: u64) -> SelfTest {
        SelfTest { tgid: 1, device, sector, bytes, state }
    }

    fn passes(expected: &Expected, seen: &SelfTest) -> bool {
        matches!(judge(expected, seen), Outcome::Passed { .. })
    }

    #[test]
    fn only_the_same_size_device_and_sector_pass() {
        let expected = expected(Some(80));
        assert!(passes(&expected, &seen(VDA, 80, 4096, 2)));
        for wrong in
            [seen(VDA, 81, 4096, 2), seen(VDA, 80, 512, 2), seen(VDA + 16, 80, 4096, 2), seen(VDA, 80, 4096, 1), seen(0, 0, 0, 0)]
        {
            let Outcome::Failed { seen } = judge(&expected, &wrong) else { panic!("{wrong:?} passed") };
            assert!(seen.contains("asked for 4096 bytes of device 254:0, sector 80; seen: "), "{seen}");
        }
    }

    #[test]
    fn a_stacked_disk_or_an_unclear_extent_is_compared_without_the_sector_and_says_so() {
        let stacked = Expected { place: Place { disk: DM0, start: 0 }, below: vec![DM0, VDA], ..expected(Some(80)) };
        for (expected, why) in [(stacked, "the disk is a stacked one"), (expected(None), "the file system does not tell it")] {
            let Outcome::Passed { compared } = judge(&expected, &seen(VDA, 4242, 4096, 2)) else { panic!("failed") };
            assert!(compared.ends_with(&format!("not the sector: {why}")), "{compared}");
            assert!(!passes(&expected, &seen(VDA, 4242, 8192, 2)));
        }
    }
}
