//! Debian packages: installed as root with the reason said first, or unpacked beside the system.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::geteuid;

use crate::command::{on_path, run, say, stdout_of};

/// Is this a machine with apt?
pub(crate) fn is_here() -> bool {
    on_path("apt-get").is_some() && on_path("dpkg-query").is_some()
}

/// May packages be installed?
pub(crate) fn may_install() -> bool {
    is_here() && geteuid().is_root()
}

/// Installs what is missing of `packages`, saying `why` before.
///
/// # Errors
/// Without apt or root, with the command that a person with both would type; and when apt fails.
pub(crate) fn ensure_installed(packages: &[String], why: &str) -> Result<()> {
    install(&not_installed(packages), why)
}

/// The same, and brings those up to date that are there: Debian's security suite has compilers that are years younger than the
/// release's.
///
/// # Errors
/// As [`ensure_installed`].
pub(crate) fn ensure_newest(packages: &[String], why: &str) -> Result<()> {
    if may_install() {
        refresh_lists();
    }
    install(&packages.iter().filter(|package| !is_newest(package)).cloned().collect::<Vec<_>>(), why)
}

fn install(missing: &[String], why: &str) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    ensure!(is_here(), "{why} needs {list} (their Debian names): install them with this system's package manager");
    ensure!(geteuid().is_root(), "{why} needs root to install {list}: run as root, or once: apt-get install -y {list}");
    say(format!("{why}: installing with apt: {list}"));
    refresh_lists();
    let mut apt = Command::new("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive").args(["-qq", "-y", "--no-install-recommends"]);
    // Nothing of the machine's own may go for our sake.
    apt.args(["--no-remove", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=120", "install"]).args(missing);
    run(apt.stdin(Stdio::null()).stdout(Stdio::null()))
        .with_context(|| format!("{why}: apt could not install {list}; see above, then try again"))
}

/// Those of `packages` that apt could install, by the lists it has.
pub(crate) fn available<'a>(packages: &[&'a str]) -> BTreeSet<&'a str> {
    packages.iter().copied().filter(|package| has_candidate(package)).collect()
}

/// Downloads a package and unpacks it into `folder`: nothing is installed, no service is started.
pub(crate) fn unpack(package: &str, folder: &Path) -> Result<()> {
    refresh_lists();
    let download = tempfile::tempdir()?;
    let mut apt = Command::new("apt-get");
    apt.args(["-qq", "-o", "APT::Sandbox::User=root", "download", package]).current_dir(download.path());
    stdout_of(&mut apt)?;
    unpack_all(download.path(), folder)
}

/// Unpacks every package file in `from` into `to`.
pub(crate) fn unpack_all(from: &Path, to: &Path) -> Result<()> {
    let mut found = false;
    for entry in std::fs::read_dir(from)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            stdout_of(Command::new("dpkg-deb").arg("-x").arg(&file).arg(to))?;
            found = true;
        }
    }
    if found { Ok(()) } else { bail!("no package was downloaded") }
}

fn not_installed(packages: &[String]) -> Vec<String> {
    let installed = |package: &String| {
        let query = Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", package]).output();
        query.is_ok_and(|output| output.stdout == b"installed")
    };
    packages.iter().filter(|package| !installed(package)).cloned().collect()
}

fn has_candidate(package: &str) -> bool {
    let policy = stdout_of(Command::new("apt-cache").env("LC_ALL", "C").args(["policy", package]));
    policy.is_ok_and(|text| candidate(&text).is_some())
}

/// The version that apt would install, from `apt-cache policy`.
fn candidate(policy: &str) -> Option<&str> {
    let version = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (version != "(none)").then_some(version)
}

/// Is the version installed that apt would install?
fn is_newest(package: &str) -> bool {
    let policy = stdout_of(Command::new("apt-cache").env("LC_ALL", "C").args(["policy", package]));
    policy.is_ok_and(|text| candidate(&text).is_some_and(|newest| installed(&text) == Some(newest)))
}

fn installed(policy: &str) -> Option<&str> {
    policy.lines().find_map(|line| line.trim().strip_prefix("Installed: "))
}

/// Brings apt's lists up to date, at most once a run: a fresh image has none, or old ones, by which an old package would be chosen or
/// one that is gone.
pub(crate) fn refresh_lists() {
    static DONE: OnceLock<()> = OnceLock::new();
    if !geteuid().is_root() {
        return;
    }
    DONE.get_or_init(|| {
        say("updating apt's lists");
        // One repository that fails must not hide the others' lists; what is then still unknown is reported by name.
        if let Err(error) = stdout_of(Command::new("apt-get").args(["-qq", "-o", "DPkg::Lock::Timeout=120", "update"])) {
            say(format!("updating apt's lists: {error:#}"));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_candidate_is_not_available() {
        assert_eq!(candidate("llvm-23-dev:\n  Installed: (none)\n  Candidate: (none)\n"), None);
        assert_eq!(candidate("fio:\n  Installed: (none)\n  Candidate: 3.33-3\n"), Some("3.33-3"));
        assert_eq!(candidate(""), None);
    }

    #[test]
    fn an_old_version_is_told_from_the_newest() {
        let old = "rustc-web:\n  Installed: 1.85.0\n  Candidate: 1.96.0\n";
        assert_eq!((installed(old), candidate(old)), (Some("1.85.0"), Some("1.96.0")));
    }
}
