//! One guest: its files, its run, its end.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    initramfs::{Archive, LoadOrder, Modules},
    series::Kernel,
    verdict::Verdict,
};
use crate::{
    command::{on_path, stdout_of, wait_up_to},
    test::Tier,
};

/// What the cases need loaded. A kernel without one of them says so, and the cases that need it are skipped with the reason.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "ext4", "loop"];
/// The last two are for emulation on a busy host: timer interrupts that come late would stop the boot with a panic ("IO-APIC +
/// timer doesn't work"), and a clock found unstable at run time makes the kernel patch its own code, over which an emulated
/// second CPU stumbled once (6.12, `sched_clock_cpu`).
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=4 panic=-1 random.trust_cpu=on no_timer_check tsc=reliable";
const INIT: &str = include_str!("init.sh");
const DISK_BYTES: u64 = 256 << 20;

/// What is put into every guest alike.
pub(crate) struct Image {
    /// The static test binary.
    pub(crate) tests: Vec<u8>,
    /// busybox, static too.
    pub(crate) busybox: Vec<u8>,
}

/// How the cases run in a guest.
pub(crate) struct Guest<'a> {
    /// The files.
    pub(crate) image: &'a Image,
    /// How long cases take.
    pub(crate) tier: Tier,
    /// Arguments of the test binary: names of cases.
    pub(crate) cases: &'a [String],
    /// How long it may print nothing before it is given up. A busy machine slows a guest down; a guest that hangs is silent.
    pub(crate) silence: Duration,
}

impl Guest<'_> {
    /// Boots `kernel`, runs the cases, and judges what came back.
    ///
    /// # Errors
    /// Only what is wrong on this side: a guest that hangs or panics is a verdict.
    pub(crate) fn run(&self, kernel: &Kernel) -> Result<Verdict> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        fs::write(path("initramfs"), self.root_file_system(kernel)?)?;
        make_disk(&path("disk"))?;
        let mut emulator = Command::new("qemu-system-x86_64");
        emulator
            // Emulated in software, on any machine alike; -cpu max has the RDRAND that the guest's random pool waits for.
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(path("initramfs"))
            .args(["-append", KERNEL_ARGUMENTS])
            .args(["-serial", &format!("file:{}", path("console").display())])
            .args(["-serial", &format!("file:{}", path("results").display())])
            .args(["-drive", &format!("if=none,id=scratch,format=raw,cache=unsafe,file={}", path("disk").display())])
            .args(["-device", "virtio-blk-pci,drive=scratch"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut child = emulator.spawn().context("starting qemu-system-x86_64")?;
        let gave_up = self.wait(&mut child, &path("results"))?;
        let read = |name: &str| fs::read(path(name)).map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', ""));
        Ok(Verdict::judge(&read("results").unwrap_or_default(), &read("console").unwrap_or_default(), gave_up))
    }

    /// Waits for the guest's end; after too long a silence ends it, and says how long it was.
    ///
    /// Only `results` counts: a kernel that is locked up may go on complaining on its console.
    fn wait(&self, child: &mut Child, results: &Path) -> Result<Option<Duration>> {
        let written = || fs::metadata(results).map_or(0, |metadata| metadata.len());
        let (mut so_far, mut last) = (written(), Instant::now());
        while wait_up_to(child, Duration::from_millis(250))?.is_none() {
            let now = written();
            if now != so_far {
                (so_far, last) = (now, Instant::now());
            } else if last.elapsed() > self.silence {
                child.kill()?;
                child.wait()?;
                return Ok(Some(last.elapsed()));
            }
        }
        Ok(None)
    }

    fn root_file_system(&self, kernel: &Kernel) -> Result<Vec<u8>> {
        let mut archive = Archive::new();
        archive.program("init", INIT.as_bytes());
        archive.program("bin/busybox", &self.image.busybox);
        archive.program("kernel-tests", &self.image.tests);
        let LoadOrder { modules, missing, .. } = Modules::of(&kernel.modules)?.load_order(&MODULES)?;
        // What is missing is in the guest's list too, so that loading it fails there and is shown with the results.
        let names: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).chain(missing.iter().map(String::as_str)).collect();
        archive.program("modules/order", names.join("\n").as_bytes());
        for (name, content) in &modules {
            archive.program(&format!("modules/{name}.ko"), content);
        }
        archive.program("settings", self.settings().as_bytes());
        Ok(archive.finish())
    }

    /// Sourced by the guest's first process.
    fn settings(&self) -> String {
        format!(
            "export TAILCOMB_TEST_TIER={} TAILCOMB_TEST_GUEST=1 TAILCOMB_TEST_DISK=/mnt/disk\nCASES={}\n",
            self.tier.word(),
            quoted(&self.cases.join(" "))
        )
    }
}

/// For busybox' shell; names of cases have no quotes in them.
fn quoted(word: &str) -> String {
    format!("\"{}\"", word.replace(['"', '$', '`', '\\'], ""))
}

/// A file system of the size of a small disk, sparse.
fn make_disk(path: &Path) -> Result<()> {
    fs::File::create(path)?.set_len(DISK_BYTES)?;
    let tool = on_path("mkfs.ext4").context("mkfs.ext4 is not installed (package e2fsprogs)")?;
    stdout_of(Command::new(tool).args(["-q", "-F"]).arg(path)).map(drop)
}
