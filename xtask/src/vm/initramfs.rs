//! The guest's root file system: busybox, the modules, the test binary and a script, as a cpio archive in memory.
//!
//! Format: `newc`, in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

/// A file of the root file system.
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const DEVICE: u32 = 0o020_600;

impl Archive {
    /// An archive with the folders that mounts need, and the console that the first process writes to.
    pub(crate) fn new() -> Self {
        let mut archive = Self { bytes: Vec::new(), entries: 0 };
        for folder in ["bin", "dev", "etc", "mnt", "mnt/disk", "modules", "proc", "root", "run", "sys", "tmp", "var", "var/tmp"] {
            archive.push(folder, FOLDER, (0, 0), &[]);
        }
        archive.push("dev/console", DEVICE, (5, 1), &[]);
        archive
    }

    /// Adds an executable file.
    pub(crate) fn program(&mut self, name: &str, content: &[u8]) {
        self.push(name, PROGRAM, (0, 0), content);
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.push("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn push(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("a file of the guest is below 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
    }
}

/// Modules to load, unpacked, each after those it depends on.
#[derive(Default)]
pub(crate) struct LoadOrder {
    /// Name and content.
    pub(crate) modules: Vec<(String, Vec<u8>)>,
    /// Those that this kernel has neither as module nor built in.
    pub(crate) missing: Vec<String>,
    seen: HashSet<String>,
}

/// A kernel's modules, looked up by name.
pub(crate) struct Modules {
    files: Vec<PathBuf>,
    built_in: HashSet<String>,
}

impl Modules {
    /// Reads the tree of `lib/modules/VERSION`.
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let mut files = Vec::new();
        collect(&folder.join("kernel"), &mut files)?;
        let list = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        Ok(Self { files, built_in: list.lines().map(|line| module_name(Path::new(line))).collect() })
    }

    /// The modules asked for, with all that they depend on.
    pub(crate) fn load_order(&self, wanted: &[&str]) -> Result<LoadOrder> {
        let mut order = LoadOrder::default();
        for name in wanted {
            self.add(name, &mut order)?;
        }
        Ok(order)
    }

    fn add(&self, name: &str, order: &mut LoadOrder) -> Result<()> {
        let name = name.replace('-', "_");
        if self.built_in.contains(&name) || !order.seen.insert(name.clone()) {
            return Ok(());
        }
        let Some(file) = self.files.iter().find(|file| module_name(file) == name) else {
            order.missing.push(name);
            return Ok(());
        };
        let content = unpacked(file)?;
        for dependency in dependencies(&content) {
            self.add(&dependency, order)?;
        }
        order.modules.push((name, content));
        Ok(())
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.to_string_lossy().contains(".ko") {
            files.push(path);
        }
    }
    Ok(())
}

/// `dm-mod.ko.xz` is the module `dm_mod`.
fn module_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.split(".ko").next().unwrap_or_default().replace('-', "_")
}

fn unpacked(file: &Path) -> Result<Vec<u8>> {
    let packer = match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return Ok(fs::read(file)?),
    };
    let output = Command::new(packer).arg("-dc").arg(file).output().with_context(|| format!("starting {packer}"))?;
    anyhow::ensure!(output.status.success(), "{packer} could not unpack {}", file.display());
    Ok(output.stdout)
}

/// The names after `depends=` in a module's .modinfo section, which is text ended by NUL bytes.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|window| window == KEY).map(|at| at + KEY.len()) else {
        return Vec::new();
    };
    let end = module[start..].iter().position(|byte| *byte == 0).map_or(module.len(), |length| start + length);
    let text = String::from_utf8_lossy(&module[start..end]);
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_and_none_is_none() {
        assert_eq!(dependencies(b"junk\0license=GPL\0depends=jbd2,mbcache\0name=ext4\0"), ["jbd2", "mbcache"]);
        assert!(dependencies(b"license=GPL\0depends=\0name=loop\0").is_empty());
        assert!(dependencies(b"no module").is_empty());
    }

    #[test]
    fn a_module_has_one_name_however_its_file_is_called() {
        assert_eq!(module_name(Path::new("kernel/drivers/md/dm-mod.ko.xz")), "dm_mod");
        assert_eq!(module_name(Path::new("kernel/drivers/block/loop.ko")), "loop");
    }

    #[test]
    fn modules_come_after_what_they_depend_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let kernel = folder.path().join("kernel/fs");
        fs::create_dir_all(&kernel).expect("a folder in it");
        fs::write(kernel.join("ext4.ko"), b"\0depends=jbd2,crc16\0").expect("a module");
        fs::write(kernel.join("jbd2.ko"), b"\0depends=\0").expect("a module");
        fs::write(folder.path().join("modules.builtin"), "kernel/lib/crc16.ko\n").expect("a list");
        let order = Modules::of(folder.path()).and_then(|all| all.load_order(&["ext4", "null_blk"])).expect("readable");
        assert_eq!(order.modules.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["jbd2", "ext4"]);
        assert_eq!(order.missing, ["null_blk"]);
    }

    #[test]
    fn the_archive_is_what_cpio_reads() {
        let mut archive = Archive::new();
        archive.program("init", b"#!/bin/sh\n");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"070701"));
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("init\0") && text.contains("TRAILER!!!"));
        // Every header is 110 bytes, and the name's size is its twelfth number.
        let at = text.find("TRAILER!!!").expect("the end");
        assert_eq!(&text[at - 16..at - 8], "0000000b");
    }
}
