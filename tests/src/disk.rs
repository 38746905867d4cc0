//! Real disks for the tests: loop devices, direct I/O, and the kernel's own counters as ground truth.
//!
//! Loop devices are made with `losetup`, util-linux' or busybox', by the arguments that both know.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    libc::{O_DIRECT, O_DSYNC},
    sys::stat::{major, minor},
};
use tailcomb::attribute::device;

/// Where the tests may write on a real disk: `TAILCOMB_TEST_DISK`, else the folder for temporary files, else the current one.
///
/// # Errors
/// None of them lies on a block device.
pub fn real_folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("TAILCOMB_TEST_DISK") {
        return Ok(PathBuf::from(folder));
    }
    let candidates = [std::env::temp_dir(), std::env::current_dir()?];
    candidates
        .into_iter()
        .find(|folder| number_of(folder).is_ok())
        .context("no folder on a real disk: set TAILCOMB_TEST_DISK to one")
}

/// Number (`major << 20 | minor`) of the whole disk that a file or folder lies on.
///
/// # Errors
/// It lies on none.
pub fn number_of(path: &Path) -> Result<u32> {
    let on = fs::metadata(path)?.dev();
    let place = device::place(Path::new("/sys"), u32::try_from(major(on))?, u32::try_from(minor(on))?);
    Ok(place.with_context(|| format!("{} lies on no block device", path.display()))?.disk)
}

/// A loop device, detached when dropped. Its backing file is removed too.
pub struct Loop {
    /// `/dev/loop3`
    pub path: PathBuf,
    /// `major << 20 | minor`
    pub number: u32,
    /// Its backing file.
    pub backing: PathBuf,
}

impl Loop {
    /// One of `bytes` over a new sparse file in `folder`.
    ///
    /// # Errors
    /// No loop device can be had.
    pub fn make(folder: &Path, bytes: u64) -> Result<Self> {
        let unique = format!("tailcomb-test-{}-{}", std::process::id(), tailcomb::clock::monotonic_ns());
        let backing = folder.join(unique);
        File::create(&backing)?.set_len(bytes)?;
        // Others may take the free one before we do: ask again.
        for _ in 0..20 {
            let path = PathBuf::from(run(Command::new("losetup").arg("-f"))?.trim());
            if run(Command::new("losetup").arg(&path).arg(&backing)).is_ok() {
                ensure!(fs::metadata(&path)?.file_type().is_block_device(), "{} is no block device", path.display());
                let device = fs::metadata(&path)?.rdev();
                let number = u32::try_from(major(device))? << 20 | u32::try_from(minor(device))?;
                return Ok(Self { path, number, backing });
            }
        }
        fs::remove_file(&backing)?;
        bail!("losetup gave no loop device");
    }

    /// Opens it for direct I/O; `flags` are added.
    ///
    /// # Errors
    /// As open(2).
    pub fn direct(&self, flags: i32) -> Result<File> {
        open(&self.path, O_DIRECT | flags)
    }

    /// Opens it for buffered I/O.
    ///
    /// # Errors
    /// As open(2).
    pub fn buffered(&self) -> Result<File> {
        open(&self.path, 0)
    }

    /// Its name: `loop3`.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Lets the kernel take it away; while it is open, it goes with the last that closes it.
    ///
    /// # Errors
    /// losetup's.
    pub fn detach(&self) -> Result<()> {
        run(Command::new("losetup").arg("-d").arg(&self.path)).map(drop)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // It may be detached already.
        let _ = self.detach();
        let _ = fs::remove_file(&self.backing);
    }
}

fn open(path: &Path, flags: i32) -> Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).with_context(|| path.display().to_string())
}

/// Opens a file for synchronous direct writes, as `dd oflag=direct,dsync` does.
///
/// # Errors
/// As open(2).
pub fn open_direct_sync(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .custom_flags(O_DIRECT | O_DSYNC)
        .open(path)
        .with_context(|| path.display().to_string())
}

/// Runs a program and returns what it printed.
///
/// # Errors
/// It can't be run, or fails.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Memory for direct I/O: aligned to a page.
pub struct Block {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Block {
    /// `bytes` of it, filled with something that no file system takes for a hole.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        const PAGE: usize = 4096;
        let memory = vec![0x5a; bytes + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start, bytes }
    }

    fn slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }

    /// Writes it at `offset`.
    ///
    /// # Errors
    /// As pwrite(2).
    pub fn write(&mut self, file: &File, offset: u64) -> Result<()> {
        Ok(file.write_all_at(self.slice(), offset)?)
    }

    /// Reads it at `offset`; returns how much came.
    ///
    /// # Errors
    /// As pread(2).
    pub fn read(&mut self, file: &File, offset: u64) -> Result<usize> {
        Ok(file.read_at(self.slice(), offset)?)
    }
}

/// `/sys/block/NAME/stat`, the kernel's own count of the same requests (Documentation/block/stat.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Requests, merges, bytes of reads.
    pub read: [u64; 3],
    /// The same of writes.
    pub write: [u64; 3],
    /// The same of discards.
    pub discard: [u64; 3],
    /// FLUSH requests.
    pub flushes: u64,
    /// Requests in flight.
    pub in_flight: u64,
}

impl Stat {
    /// Reads it for a whole disk.
    ///
    /// # Errors
    /// There is no such disk.
    pub fn of(number: u32) -> Result<Self> {
        let (major, minor) = device::major_minor(number);
        let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"))?;
        let fields: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let at = |index: usize| fields.get(index).copied().with_context(|| format!("no field {index} in {text}"));
        let group = |first: usize| Ok::<_, anyhow::Error>([at(first)?, at(first + 1)?, at(first + 2)? * 512]);
        Ok(Self { read: group(0)?, write: group(4)?, discard: group(11)?, flushes: at(15)?, in_flight: at(8)? })
    }

    /// What came since `earlier`, as soon as `complete` says that it is all there; else what is there after 2 s.
    ///
    /// The kernel wakes who waits for a request before it counts the request, so a figure read at once may lack the last one.
    ///
    /// # Errors
    /// There is no such disk.
    pub fn grown(number: u32, earlier: &Self, complete: impl Fn(&Self) -> bool) -> Result<Self> {
        let give_up = Instant::now() + Duration::from_secs(2);
        loop {
            let grown = Self::of(number)?.since(earlier);
            if complete(&grown) || Instant::now() > give_up {
                return Ok(grown);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// What came since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: [u64; 3], then: [u64; 3]| [now[0] - then[0], now[1] - then[1], now[2] - then[2]];
        Self {
            read: less(self.read, earlier.read),
            write: less(self.write, earlier.write),
            discard: less(self.discard, earlier.discard),
            flushes: self.flushes - earlier.flushes,
            in_flight: self.in_flight,
        }
    }
}
