//! What the tests need of the machine beside the BPF toolchain.

use std::{
    env, fs,
    os::linux::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    apt,
    command::{on_path, say, stdout_of},
    setup::bpf_toolchain::cache_dir,
};

/// Programs and the Debian packages that have them.
const TOOLS: [(&str, &str); 7] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("mkfs.ext4", "e2fsprogs"),
    ("xz", "xz-utils"),
    ("fio", "fio"),
    ("curl", "curl"),
    ("ldd", "libc-bin"),
];

/// Installs the programs that are missing.
///
/// Prometheus is unpacked into the cache instead: Debian's package would start a server and keep it running.
pub(crate) fn install() -> Result<()> {
    let missing = TOOLS.iter().filter(|(program, _)| on_path(program).is_none()).map(|(_, package)| (*package).to_owned());
    apt::ensure_installed(&missing.collect::<Vec<_>>(), "running the kernel tests in guests and on real disks")?;
    if on_path("prometheus").is_none() && !unpacked().join("prometheus").is_file() {
        say(
            "the end-to-end tests scrape with a real Prometheus: unpacking Debian's into the cache, its service is not installed",
        );
        apt::unpack("prometheus", &cache_dir().join("packages"))?;
    }
    Ok(())
}

/// The PATH with what was unpacked at its end.
pub(crate) fn path_with_unpacked() -> Result<String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from)).chain([unpacked()]);
    Ok(env::join_paths(folders)?.to_string_lossy().into_owned())
}

fn unpacked() -> PathBuf {
    cache_dir().join("packages/usr/bin")
}

/// A folder of the tests' own on a real block device; `None`, said aloud, where there is none.
pub(crate) fn disk_folder(target_dir: &Path) -> Result<Option<tempfile::TempDir>> {
    let candidates = [target_dir.to_owned(), PathBuf::from("/var/tmp"), cache_dir()];
    let Some(place) = candidates.iter().find(|place| lies_on_block_device(place)) else {
        say("no folder here lies on a block device: cases that need a disk are skipped");
        return Ok(None);
    };
    let folder = tempfile::Builder::new().prefix("tailcomb-test-").tempdir_in(place);
    folder.map(Some).with_context(|| format!("making a folder in {}", place.display()))
}

fn lies_on_block_device(path: &Path) -> bool {
    let Ok(metadata) = fs::metadata(path) else { return false };
    let device = metadata.st_dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    // overlay, tmpfs and network file systems have numbers too, with no block device behind them.
    Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists()
}

/// The running kernel, as `uname -r`.
pub(crate) fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Today, as `2026-01-31`.
pub(crate) fn date() -> Result<String> {
    Ok(stdout_of(Command::new("date").args(["-u", "+%F"]))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_device_is_no_disk() {
        assert!(!lies_on_block_device(Path::new("/proc")));
        assert!(!lies_on_block_device(Path::new("/no/such/folder")));
    }
}
