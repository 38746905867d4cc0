//! Where the demo's files go: a folder on a real disk, with room.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::sys::{
    stat::{major, minor},
    statvfs::statvfs,
};
use procfs::process::Process;

/// Free space that must be there before the demo writes: what it can use at most, and as much again for everybody else.
pub const FREE_BYTES_NEEDED: u64 = 1 << 30;

/// A folder that will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The folder.
    pub folder: PathBuf,
    /// The whole disk below it, as sysfs and the label `device` name it.
    pub disk: String,
    /// Bytes free to this user.
    pub free_bytes: u64,
}

/// Why a folder will not do.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// It can't be looked at.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// Its filesystem keeps files in memory, on the network or on another filesystem.
    #[error("its filesystem ({filesystem}) is on no block device that this kernel shows")]
    NoDisk {
        /// Type of the filesystem.
        filesystem: String,
    },
    /// The block device is memory.
    #[error("{disk} keeps its blocks in memory")]
    Memory {
        /// Name of the device.
        disk: String,
    },
    /// No room.
    #[error("only {} MiB are free, {} are needed", free_bytes >> 20, FREE_BYTES_NEEDED >> 20)]
    Full {
        /// Bytes free.
        free_bytes: u64,
    },
    /// No file can be made in it.
    #[error("no file can be made in it: {0}")]
    NotWritable(#[source] io::Error),
    /// Reads can't pass the page cache, so they would not wait for the disk.
    #[error("its filesystem does not offer direct I/O: {0}")]
    NoDirectIo(#[source] io::Error),
}

/// No folder was found.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The one that was named will not do.
    #[error("{} can't be used: {unfit}; name a folder on a disk with --dir", folder.display())]
    Named {
        /// The folder.
        folder: PathBuf,
        /// Why.
        unfit: Unfit,
    },
    /// None of those that were tried will do.
    #[error("no folder on a disk was found; name one with --dir. Tried:{}", list(tried))]
    None {
        /// Folders with the reasons.
        tried: Vec<(PathBuf, Unfit)>,
    },
}

fn list(tried: &[(PathBuf, Unfit)]) -> String {
    tried.iter().map(|(folder, unfit)| format!("\n  {}: {unfit}", folder.display())).collect()
}

/// The named folder, else the first that will do: current folder, `/var/tmp`, home, `/tmp`, `/`.
///
/// # Errors
/// [`PlaceError`] with each folder's reason.
pub fn choose(named: Option<&Path>) -> Result<Place, PlaceError> {
    if let Some(folder) = named {
        return examine(folder).map_err(|unfit| PlaceError::Named { folder: folder.to_owned(), unfit });
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let candidates = [std::env::current_dir().ok(), Some("/var/tmp".into()), home, Some("/tmp".into()), Some("/".into())];
    let mut tried = Vec::new();
    for folder in candidates.into_iter().flatten() {
        match examine(&folder) {
            Ok(place) => return Ok(place),
            Err(unfit) => tried.push((folder, unfit)),
        }
    }
    Err(PlaceError::None { tried })
}

/// Is this folder on a disk, writable, roomy, and readable past the page cache? A file is made in it, and is gone again.
///
/// # Errors
/// [`Unfit`] with the first thing that is not so.
pub fn examine(folder: &Path) -> Result<Place, Unfit> {
    let folder = folder.canonicalize()?;
    let disk = disk_below(&folder)?;
    if ["zram", "ram", "pmem", "nullb"].iter().any(|memory| disk.starts_with(memory)) {
        return Err(Unfit::Memory { disk });
    }
    let space = statvfs(&folder).map_err(io::Error::from)?;
    let free_bytes = space.blocks_available().saturating_mul(space.fragment_size());
    if free_bytes < FREE_BYTES_NEEDED {
        return Err(Unfit::Full { free_bytes });
    }
    let file = tempfile::tempfile_in(&folder).map_err(Unfit::NotWritable)?;
    reopen_direct(&file).map_err(Unfit::NoDirectIo)?;
    Ok(Place { folder, disk, free_bytes })
}

/// Opens a file that may have no name a second time, for reads and writes past the page cache.
///
/// # Errors
/// `EINVAL` where the filesystem has no direct I/O.
pub(super) fn reopen_direct(file: &fs::File) -> io::Result<fs::File> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Memory for direct I/O: it must lie on a border of the disk's logical blocks; a page's border is one for all disks.
#[derive(Debug)]
pub(super) struct Aligned {
    memory: Vec<u8>,
    begin: usize,
    size: usize,
}

impl Aligned {
    const BORDER: usize = 4096;

    /// Zeroes.
    pub(super) fn new(size: usize) -> Self {
        let memory = vec![0; size + Self::BORDER];
        let begin = memory.as_ptr().align_offset(Self::BORDER);
        Self { memory, begin, size }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..self.begin + self.size]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.size]
    }
}

/// The whole disk that a folder's filesystem is on.
fn disk_below(folder: &Path) -> Result<String, Unfit> {
    if let Some(disk) = disk_of_number(fs::metadata(folder)?.dev()) {
        return Ok(disk);
    }
    // Some filesystems on a disk (btrfs) show a device number of their own: their mount names the disk.
    let mounts = Process::myself().and_then(|process| process.mountinfo()).map_err(io::Error::other)?;
    let mount = mounts
        .into_iter()
        .filter(|mount| folder.starts_with(&mount.mount_point))
        .max_by_key(|mount| mount.mount_point.as_os_str().len());
    let Some(mount) = mount else {
        return Err(Unfit::NoDisk { filesystem: "unknown".to_owned() });
    };
    let number =
        mount.mount_source.and_then(|source| fs::metadata(source).ok()).filter(|node| node.file_type().is_block_device());
    number.and_then(|node| disk_of_number(node.rdev())).ok_or(Unfit::NoDisk { filesystem: mount.fs_type })
}

/// The whole disk of a device number; `None` for a number that is no block device's.
fn disk_of_number(number: u64) -> Option<String> {
    let device = fs::canonicalize(format!("/sys/dev/block/{}:{}", major(number), minor(number))).ok()?;
    let whole = if device.join("partition").exists() { device.parent()? } else { &device };
    Some(whole.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_memory_is_refused_with_its_filesystem() {
        // /proc is on no disk on any machine.
        let error = examine(Path::new("/proc")).expect_err("procfs is no disk");
        assert!(matches!(&error, Unfit::NoDisk { filesystem } if filesystem == "proc"), "{error}");
        let named = choose(Some(Path::new("/proc"))).expect_err("named folder will not do").to_string();
        assert!(named.contains("/proc can't be used") && named.contains("--dir"), "{named}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_refused() {
        assert!(matches!(examine(Path::new("/proc/no-such-folder")), Err(Unfit::Unreadable(_))));
    }

    #[test]
    fn all_that_was_tried_is_listed() {
        let tried = vec![
            (PathBuf::from("/a"), Unfit::Full { free_bytes: 5 << 20 }),
            (PathBuf::from("/b"), Unfit::NoDisk { filesystem: "tmpfs".to_owned() }),
        ];
        let text = PlaceError::None { tried }.to_string();
        assert!(text.contains("\n  /a: only 5 MiB are free, 1024 are needed"), "{text}");
        assert!(text.contains("\n  /b: its filesystem (tmpfs)"), "{text}");
    }

    #[test]
    fn numbers_of_partitions_lead_to_the_whole_disk() {
        // Every block device that sysfs lists, whatever this machine has.
        for entry in fs::read_dir("/sys/dev/block").into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().expect("digits and a colon");
            let (major, minor) = name.split_once(':').expect("M:m");
            let number = nix::sys::stat::makedev(major.parse().expect("number"), minor.parse().expect("number"));
            let disk = disk_of_number(number).expect("listed device");
            assert!(Path::new("/sys/block").join(&disk).exists(), "{name} leads to {disk}, which is no whole disk");
        }
        assert_eq!(disk_of_number(0), None);
    }
}
