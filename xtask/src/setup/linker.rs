//! bpf-linker: the ones that are there, and building one for a given LLVM.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    apt,
    command::{on_path, run, say, stdout_of},
    setup::{bpf_toolchain::cache_dir, choose::LlvmSource},
};

/// The release that is built; its cargo features name the LLVM majors it knows.
const VERSION: &str = "0.13.0";

/// The LLVM majors that [`VERSION`] can be built for.
pub(crate) const SUPPORTED_LLVM: [u32; 3] = [21, 22, 23];

/// The linkers on this machine by the major of their LLVM: those built by an earlier setup, and one on the PATH.
pub(crate) fn present() -> BTreeMap<u32, PathBuf> {
    let on_path = on_path("bpf-linker").and_then(|path| Some((llvm_of(&path)?, path)));
    let ours = SUPPORTED_LLVM.into_iter().map(|llvm| (llvm, folder(llvm).join("bin/bpf-linker"))).filter(|(_, path)| runs(path));
    on_path.into_iter().chain(ours).collect()
}

/// Does it start at all? One whose LLVM library has been removed does not.
pub(crate) fn runs(linker: &Path) -> bool {
    Command::new(linker).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The major of the LLVM library that a linker loads; `None` for one that was linked statically.
pub(crate) fn llvm_of(linker: &Path) -> Option<u32> {
    llvm_library(&stdout_of(Command::new("ldd").arg(linker)).ok()?)
}

/// Builds a linker for `llvm` into the cache folder.
pub(crate) fn build(llvm: u32, source: &LlvmSource) -> Result<PathBuf> {
    if let LlvmSource::Linker(linker) = source {
        return Ok(linker.clone());
    }
    let prefix = match source {
        LlvmSource::Linker(linker) => return Ok(linker.clone()),
        LlvmSource::Prefix(prefix) => prefix.clone(),
        LlvmSource::Apt => {
            apt::ensure_installed(&llvm_packages(llvm), &format!("bpf-linker has to be built on the compiler's LLVM {llvm}"))?;
            PathBuf::from(format!("/usr/lib/llvm-{llvm}"))
        }
    };
    let root = folder(llvm);
    say(format!("building bpf-linker {VERSION} on LLVM {llvm} (once; about a minute): core for BPF is linked by it"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["install", "bpf-linker", "--quiet", "--version", VERSION, "--locked", "--no-default-features"])
        .args(["--features", &format!("llvm-{llvm}"), "--root"])
        .arg(&root)
        .env("LLVM_PREFIX", &prefix)
        // The workspace's own target settings are none of bpf-linker's business.
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("RUSTFLAGS")
        .current_dir(std::env::temp_dir());
    run(&mut cargo).with_context(|| format!("bpf-linker did not build against {}", prefix.display()))?;
    let linker = root.join("bin/bpf-linker");
    match llvm_of(&linker) {
        Some(other) if other != llvm => {
            bail!(
                "{} loads LLVM {other} where LLVM {llvm} was asked for: unset LLVM_PREFIX, or point it at LLVM {llvm}",
                linker.display()
            )
        }
        _ if !runs(&linker) => bail!("{} was built and does not start", linker.display()),
        _ => Ok(linker),
    }
}

/// The LLVM installations with headers, by major; `LLVM_PREFIX`, where set, is the only one looked at.
pub(crate) fn installed_llvm() -> BTreeMap<u32, PathBuf> {
    if let Some(prefix) = std::env::var_os("LLVM_PREFIX").map(PathBuf::from) {
        return major_of(&prefix.join("bin/llvm-config")).map(|major| (major, prefix)).into_iter().collect();
    }
    let by_name = SUPPORTED_LLVM.iter().filter_map(|major| on_path(&format!("llvm-config-{major}")));
    let by_folder = SUPPORTED_LLVM.iter().map(|major| PathBuf::from(format!("/usr/lib/llvm-{major}/bin/llvm-config")));
    let configs = on_path("llvm-config").into_iter().chain(by_name).chain(by_folder);
    configs.filter_map(|config| Some((major_of(&config)?, prefix_of(&config)?))).collect()
}

fn major_of(config: &Path) -> Option<u32> {
    stdout_of(Command::new(config).arg("--version")).ok()?.split('.').next()?.trim().parse().ok()
}

fn prefix_of(config: &Path) -> Option<PathBuf> {
    let ask = |what: &str| stdout_of(Command::new(config).arg(what)).ok().map(|text| PathBuf::from(text.trim()));
    // llvm-config can be there without the headers.
    ask("--includedir")?.join("llvm-c/Core.h").is_file().then_some(())?;
    ask("--prefix")
}

/// Debian's packages for building on one LLVM.
pub(crate) fn llvm_packages(llvm: u32) -> Vec<String> {
    let own = [format!("llvm-{llvm}-dev"), format!("libpolly-{llvm}-dev")];
    own.into_iter().chain(["zlib1g-dev", "libzstd-dev", "libxml2-dev"].map(str::to_owned)).collect()
}

fn folder(llvm: u32) -> PathBuf {
    cache_dir().join(format!("bpf-linker-llvm{llvm}"))
}

/// The major in what `ldd` prints of the library: `libLLVM.so.22.1`, before LLVM 18 `libLLVM-17.so.1`.
fn llvm_library(ldd: &str) -> Option<u32> {
    let name = ldd.lines().find_map(|line| line.trim().strip_prefix("libLLVM"))?;
    let digits: String =
        name.trim_start_matches(".so").trim_start_matches(['.', '-']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_tells_its_major() {
        assert_eq!(
            llvm_library("\tlinux-vdso.so.1 (0x0)\n\tlibLLVM.so.22.1 => /usr/lib/llvm-22/lib/libLLVM.so.22.1 (0x0)\n"),
            Some(22)
        );
        assert_eq!(llvm_library("\tlibLLVM-17.so.1 => /lib/libLLVM-17.so.1 (0x0)\n"), Some(17));
        assert_eq!(llvm_library("\tlibc.so.6 => /lib/libc.so.6 (0x0)\n"), None);
    }

    #[test]
    fn debian_packages_follow_the_major() {
        assert!(llvm_packages(23).contains(&"libpolly-23-dev".to_owned()));
    }
}
