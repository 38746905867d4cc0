//! Block devices by number: name and layer, from sysfs.
//!
//! Source: the kernel's Documentation/ABI/stable/sysfs-block; `/sys/dev/block/MAJOR:MINOR` leads to every device.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// Does a device stand on another?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// No: a disk. Sums over leaves count each byte once.
    Leaf,
    /// Yes: loop, device-mapper, md.
    Stacked,
}

/// A whole disk, as sysfs names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Device {
    /// `vda`, `nvme0n1`, `loop0`, …
    pub name: String,
    /// Leaf or stacked.
    pub layer: Layer,
}

/// Where a number lies in sysfs: a whole disk, or a partition of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the whole disk as the kernel holds it: `major << 20 | minor`.
    pub disk: u32,
    /// First sector (512 bytes) on the whole disk; 0 for a whole disk.
    pub start: u64,
}

/// How often, at most, sysfs is asked again about a number that it does not know, and about those it knew. ns.
const ASK_AGAIN_NS: u64 = 10_000_000_000;
/// How many unknown numbers are looked up in one [`Devices::refresh`].
const LOOK_UPS: usize = 64;
/// How many numbers are remembered, known or not.
const REMEMBERED: usize = 4096;

/// The devices seen so far.
#[derive(Debug)]
pub struct Devices {
    sysfs: PathBuf,
    known: BTreeMap<u32, Known>,
    checked_ns: u64,
}

#[derive(Debug)]
struct Known {
    /// `None`: sysfs does not know it.
    device: Option<Device>,
    asked_ns: u64,
}

impl Default for Devices {
    fn default() -> Self {
        Self::new()
    }
}

impl Devices {
    /// Of this machine.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Path::new("/sys"))
    }

    /// Of a sysfs that lies elsewhere.
    #[must_use]
    pub fn of(sysfs: &Path) -> Self {
        Self { sysfs: sysfs.to_owned(), known: BTreeMap::new(), checked_ns: 0 }
    }

    /// The device of a number; `None` where it was not looked up yet or sysfs does not know it.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Device> {
        self.known.get(&number)?.device.as_ref()
    }

    /// Looks up the numbers that are not known yet, each at most once in 10 s, and forgets devices that are gone.
    /// `now_ns` is ns of CLOCK_MONOTONIC. Returns the numbers of the devices that went, so that their series can be dropped.
    pub fn refresh(&mut self, numbers: impl IntoIterator<Item = u32>, now_ns: u64) -> Vec<u32> {
        let gone = if now_ns.saturating_sub(self.checked_ns) >= ASK_AGAIN_NS { self.forget_gone(now_ns) } else { Vec::new() };
        let mut left = LOOK_UPS;
        for number in numbers {
            let due = self
                .known
                .get(&number)
                .is_none_or(|known| known.device.is_none() && now_ns.saturating_sub(known.asked_ns) >= ASK_AGAIN_NS);
            if !due || left == 0 || gone.contains(&number) {
                continue;
            }
            left -= 1;
            if self.known.len() < REMEMBERED || self.known.contains_key(&number) {
                let device = describe(&self.sysfs, number);
                self.known.insert(number, Known { device, asked_ns: now_ns });
            }
        }
        gone
    }

    fn forget_gone(&mut self, now_ns: u64) -> Vec<u32> {
        self.checked_ns = now_ns;
        let sysfs = &self.sysfs;
        let mut gone = Vec::new();
        self.known.retain(|number, known| {
            let Some(device) = &known.device else { return now_ns.saturating_sub(known.asked_ns) < ASK_AGAIN_NS };
            // Another device under the same number: the old one is gone all the same.
            let stays = describe(sysfs, *number).as_ref() == Some(device);
            if !stays {
                gone.push(*number);
            }
            stays
        });
        gone
    }
}

/// Splits a number as the kernel holds it into `(major, minor)`.
#[must_use]
pub const fn major_minor(number: u32) -> (u32, u32) {
    (number >> 20, number & 0xf_ffff)
}

/// Where the device `major:minor` lies; `None` where sysfs knows no such block device (an overlay, tmpfs, btrfs subvolume).
#[must_use]
pub fn place(sysfs: &Path, major: u32, minor: u32) -> Option<Place> {
    let folder = fs::canonicalize(sysfs.join(format!("dev/block/{major}:{minor}"))).ok()?;
    if !folder.join("partition").exists() {
        return Some(Place { disk: major << 20 | minor, start: 0 });
    }
    let start = fs::read_to_string(folder.join("start")).ok()?.trim().parse().ok()?;
    Some(Place { disk: number_in(&folder.parent()?.join("dev"))?, start })
}

/// The whole disks that a disk stands on, however deep, itself included.
#[must_use]
pub fn with_those_below(sysfs: &Path, disk: u32) -> Vec<u32> {
    let mut all = vec![disk];
    let mut next = 0;
    while let Some(number) = all.get(next).copied() {
        next += 1;
        let (major, minor) = major_minor(number);
        let Ok(slaves) = fs::read_dir(sysfs.join(format!("dev/block/{major}:{minor}/slaves"))) else { continue };
        for slave in slaves.flatten() {
            let below = number_in(&slave.path().join("dev")).and_then(|number| {
                let (major, minor) = major_minor(number);
                place(sysfs, major, minor)
            });
            if let Some(Place { disk, .. }) = below.filter(|place| !all.contains(&place.disk)) {
                all.push(disk);
            }
        }
    }
    all
}

/// Reads a file `dev`: `254:1`.
fn number_in(file: &Path) -> Option<u32> {
    let text = fs::read_to_string(file).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?)
}

fn describe(sysfs: &Path, number: u32) -> Option<Device> {
    let (major, minor) = major_minor(number);
    let Place { disk, .. } = place(sysfs, major, minor)?;
    let (major, minor) = major_minor(disk);
    let folder = fs::canonicalize(sysfs.join(format!("dev/block/{major}:{minor}"))).ok()?;
    // sysfs writes `!` for the `/` of names like cciss/c0d0.
    let name = folder.file_name()?.to_str()?.replace('!', "/");
    let slaves = fs::read_dir(folder.join("slaves")).is_ok_and(|mut slaves| slaves.next().is_some());
    let stacked = slaves || ["loop/backing_file", "dm", "md"].iter().any(|file| folder.join(file).exists());
    Some(Device { name, layer: if stacked { Layer::Stacked } else { Layer::Leaf } })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const VDA: u32 = 254 << 20;
    const VDA1: u32 = 254 << 20 | 1;
    const LOOP0: u32 = 7 << 20;
    const DM0: u32 = 253 << 20;
    const CCISS: u32 = 104 << 20;

    /// A disk with a partition, a loop device, a device-mapper one on the partition, and a name with a slash.
    fn fixture() -> (tempfile::TempDir, Devices) {
        let root = tempfile::tempdir().expect("a folder");
        let add = |path: &str, number: &str, files: &[(&str, &str)]| {
            let folder = root.path().join("devices").join(path);
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("dev"), format!("{number}\n")).expect("written");
            for (file, text) in files {
                fs::create_dir_all(folder.join(file).parent().expect("has one")).expect("made");
                fs::write(folder.join(file), text).expect("written");
            }
            let by_number = root.path().join("dev/block");
            fs::create_dir_all(&by_number).expect("made");
            symlink(&folder, by_number.join(number)).expect("linked");
        };
        add("pci/block/vda", "254:0", &[]);
        add("pci/block/vda/vda1", "254:1", &[("partition", "1\n"), ("start", "2048\n")]);
        add("virtual/block/loop0", "7:0", &[("loop/backing_file", "/img\n")]);
        add("virtual/block/dm-0", "253:0", &[("dm/name", "data\n")]);
        add("pci/block/cciss!c0d0", "104:0", &[]);
        let slaves = root.path().join("devices/virtual/block/dm-0/slaves");
        fs::create_dir_all(&slaves).expect("made");
        symlink(root.path().join("devices/pci/block/vda/vda1"), slaves.join("vda1")).expect("linked");
        let devices = Devices::of(root.path());
        (root, devices)
    }

    fn leaf(name: &str) -> Device {
        Device { name: name.to_owned(), layer: Layer::Leaf }
    }

    fn stacked(name: &str) -> Device {
        Device { name: name.to_owned(), layer: Layer::Stacked }
    }

    #[test]
    fn names_and_layers() {
        let (_root, mut devices) = fixture();
        assert_eq!(devices.get(VDA), None, "not looked up yet");
        devices.refresh([VDA, VDA1, LOOP0, DM0, CCISS], SECOND);
        assert_eq!(devices.get(VDA), Some(&leaf("vda")));
        assert_eq!(devices.get(VDA1), Some(&leaf("vda")), "a partition is its disk's");
        assert_eq!(devices.get(LOOP0), Some(&stacked("loop0")));
        assert_eq!(devices.get(DM0), Some(&stacked("dm-0")));
        assert_eq!(devices.get(CCISS), Some(&leaf("cciss/c0d0")));
    }

    #[test]
    fn an_unknown_number_is_asked_for_again_but_not_at_once() {
        let (root, mut devices) = fixture();
        let late = 8 << 20;
        devices.refresh([late], SECOND);
        assert_eq!(devices.get(late), None);
        let folder = root.path().join("devices/pci/block/sda");
        fs::create_dir_all(&folder).expect("made");
        symlink(&folder, root.path().join("dev/block/8:0")).expect("linked");
        devices.refresh([late], 2 * SECOND);
        assert_eq!(devices.get(late), None, "1 s later it was not asked for again");
        devices.refresh([late], 12 * SECOND);
        assert_eq!(devices.get(late), Some(&leaf("sda")));
    }

    #[test]
    fn a_device_that_went_is_reported_once() {
        let (root, mut devices) = fixture();
        assert!(devices.refresh([VDA, LOOP0], 20 * SECOND).is_empty());
        fs::remove_file(root.path().join("dev/block/7:0")).expect("removed");
        assert!(devices.refresh([VDA, LOOP0], 21 * SECOND).is_empty(), "not looked at more often than every 10 s");
        assert_eq!(devices.refresh([VDA, LOOP0], 31 * SECOND), [LOOP0]);
        assert_eq!(devices.get(LOOP0), None);
        assert_eq!(devices.get(VDA), Some(&leaf("vda")));
        assert!(devices.refresh([VDA], 42 * SECOND).is_empty());
    }

    #[test]
    fn places_of_disks_and_partitions() {
        let (root, _devices) = fixture();
        assert_eq!(place(root.path(), 254, 1), Some(Place { disk: VDA, start: 2048 }));
        assert_eq!(place(root.path(), 254, 0), Some(Place { disk: VDA, start: 0 }));
        assert_eq!(place(root.path(), 0, 42), None, "an anonymous number is no block device");
        assert_eq!(with_those_below(root.path(), DM0), [DM0, VDA], "a slave that is a partition counts as its disk");
        assert_eq!(with_those_below(root.path(), VDA), [VDA]);
    }
}
