//! The kernels of the matrix: Debian's own, fetched once and kept in the user's cache.
//!
//! apt does the fetching and checks the signatures, with lists of its own: the machine's sources stay as they are.

use std::{
    cmp::Ordering,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, anyhow, ensure};

use crate::{
    apt,
    command::{say, stdout_of},
    setup::bpf_toolchain::cache_dir,
};

/// A kernel series and where Debian has it.
#[derive(Debug)]
pub(crate) struct Series {
    /// As in `uname -r`: `6.1`.
    pub(crate) name: &'static str,
    /// End of the archive's address in the machine's own apt sources.
    archive: &'static str,
    suite: &'static str,
    /// The packages: what their names begin and end with. The newest is taken.
    packages: &'static [(&'static str, &'static str)],
}

const MAIN: &str = "/debian/";
const SECURITY: &str = "/debian-security/";

/// The matrix, oldest first.
pub(crate) const MATRIX: [Series; 4] = [
    Series { name: "5.10", archive: SECURITY, suite: "bullseye-security", packages: &[("linux-image-5.10.0-", "-cloud-amd64")] },
    Series { name: "6.1", archive: MAIN, suite: "bookworm", packages: &[("linux-image-6.1.0-", "-cloud-amd64")] },
    Series { name: "6.12", archive: SECURITY, suite: "bookworm-security", packages: &[("linux-image-6.12.", "-cloud-amd64")] },
    Series {
        name: "7.3",
        archive: MAIN,
        suite: "trixie-backports",
        packages: &[("linux-binary-7.3.", "-cloud-amd64"), ("linux-modules-7.3.", "-cloud-amd64")],
    },
];

/// A kernel that can be booted.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The image.
    pub(crate) image: PathBuf,
    /// `lib/modules/VERSION` as the package has it.
    pub(crate) modules: PathBuf,
}

/// Why a kernel can't be had.
#[derive(Debug)]
pub(crate) enum Unavailable {
    /// Debian does not serve it any more, or this is no machine for it: nobody's fault.
    NotServed(String),
    /// It should be there and could not be fetched.
    NotFetched(String),
}

impl Series {
    /// The kernel from the cache, else from Debian.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub(crate) fn kernel(&self) -> Result<Kernel, Unavailable> {
        let folder = cache_dir().join("kernels").join(self.name);
        if let Ok(kernel) = find(&folder) {
            return Ok(kernel);
        }
        if std::env::consts::ARCH != "x86_64" {
            return Err(Unavailable::NotServed("the matrix boots x86_64 kernels only".to_owned()));
        }
        self.fetch(&folder)?;
        find(&folder).map_err(|error| Unavailable::NotFetched(format!("{error:#}")))
    }

    fn fetch(&self, folder: &Path) -> Result<(), Unavailable> {
        let not_fetched = |error: anyhow::Error| Unavailable::NotFetched(format!("{error:#}"));
        let address = self.address().map_err(not_fetched)?;
        say(format!("fetching Debian's kernel {} (suite {}) for the matrix", self.name, self.suite));
        let lists = AptLists::new(&address, self.suite).map_err(not_fetched)?;
        lists.update().map_err(|error| self.judge(&error))?;
        let names = lists.packages().map_err(not_fetched)?;
        let mut version: Option<String> = None;
        for (begin, end) in self.packages {
            // The parts of one kernel must be of one version.
            let begin = version.as_ref().map_or_else(|| (*begin).to_owned(), |version| format!("{begin}{version}"));
            let found = newest(&names, &begin, end)
                .ok_or_else(|| Unavailable::NotServed(format!("suite {} has no package {begin}*{end} any more", self.suite)))?;
            version.get_or_insert_with(|| found[begin.len()..found.len() - end.len()].to_owned());
            lists.download(found).map_err(not_fetched)?;
        }
        // Unpacked aside and renamed: a fetch that is cut off must not look like a kernel.
        let aside = folder.with_extension("part");
        let unpack = || -> Result<()> {
            let _ = fs::remove_dir_all(&aside);
            fs::create_dir_all(&aside)?;
            apt::unpack_all(lists.folder.path(), &aside)?;
            let _ = fs::remove_dir_all(folder);
            fs::rename(&aside, folder).context("keeping the kernel")
        };
        unpack().map_err(not_fetched)
    }

    /// The archive's address in the machine's own sources.
    fn address(&self) -> Result<String> {
        ensure!(apt::is_here(), "the kernels are Debian's, and this machine has no apt");
        let mut ask = Command::new("apt-get");
        ask.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]);
        let addresses = stdout_of(&mut ask)?;
        let mine = addresses.lines().find(|address| address.ends_with(self.archive));
        mine.map(str::to_owned).ok_or_else(|| anyhow!("apt's sources have no archive that ends in {}", self.archive))
    }

    /// Gone for good, or not reached today?
    fn judge(&self, error: &anyhow::Error) -> Unavailable {
        let text = format!("{error:#}");
        if ["does not have a Release file", "404", "no longer has a Release file"].iter().any(|sign| text.contains(sign)) {
            Unavailable::NotServed(format!("suite {} is no longer served", self.suite))
        } else {
            Unavailable::NotFetched(text)
        }
    }
}

/// apt with one source and lists of its own.
struct AptLists {
    folder: tempfile::TempDir,
}

impl AptLists {
    fn new(address: &str, suite: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::create_dir_all(folder.path().join("lists/partial"))?;
        fs::create_dir_all(folder.path().join("cache/archives/partial"))?;
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        fs::write(folder.path().join("source.list"), format!("deb [signed-by={keyring}] {address} {suite} main\n"))?;
        Ok(Self { folder })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = |part: &str| self.folder.path().join(part).display().to_string();
        let options = [
            format!("Dir::Etc::sourcelist={}", path("source.list")),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::Lists={}", path("lists")),
            format!("Dir::Cache={}", path("cache")),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Retries=2".to_owned(),
            "Acquire::http::Timeout=30".to_owned(),
        ];
        command.env("LC_ALL", "C").current_dir(self.folder.path());
        for option in options {
            command.args(["-o", &option]);
        }
        command
    }

    fn update(&self) -> Result<()> {
        // Without this option an unreachable archive is a warning only.
        stdout_of(self.command("apt-get").args(["-qq", "-o", "APT::Update::Error-Mode=any", "update"])).map(drop)
    }

    fn packages(&self) -> Result<Vec<String>> {
        Ok(stdout_of(self.command("apt-cache").args(["pkgnames", "linux-"]))?.lines().map(str::to_owned).collect())
    }

    fn download(&self, package: &str) -> Result<()> {
        stdout_of(self.command("apt-get").args(["-qq", "download", package])).map(drop)
    }
}

/// The image and the modules in an unpacked package.
fn find(folder: &Path) -> Result<Kernel> {
    // Debian has had modules under lib/ and under usr/lib/, and the image under boot/ and beside the modules.
    let under = |path: &str| fs::read_dir(folder.join(path)).into_iter().flatten().flatten().map(|entry| entry.path());
    let modules = under("lib/modules").chain(under("usr/lib/modules")).find(|path| path.join("kernel").is_dir());
    let modules = modules.with_context(|| format!("no modules in {}", folder.display()))?;
    let mut images =
        under("boot").filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz")));
    let beside = Some(modules.join("vmlinuz")).filter(|path| path.is_file());
    let image = images.next().or(beside).with_context(|| format!("no kernel image in {}", folder.display()))?;
    Ok(Kernel { image, modules })
}

/// The newest of the packages whose name begins and ends so; between stand digits, points and `+deb…`, never a further part
/// of a name: `-rt` and `-unsigned` are other packages.
fn newest<'a>(names: &'a [String], begin: &str, end: &str) -> Option<&'a str> {
    let fits = |name: &&String| {
        let middle = name.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end));
        middle.is_some_and(|middle| !middle.contains('-'))
    };
    names.iter().filter(fits).max_by(|one, other| by_number(one, other)).map(String::as_str)
}

/// Compares names as people do: runs of digits by their value.
fn by_number(one: &str, other: &str) -> Ordering {
    parts(one).cmp(&parts(other))
}

fn parts(name: &str) -> Vec<(u64, &str)> {
    let mut found = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number = rest[..digits].parse().unwrap_or(0);
        rest = &rest[digits..];
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        found.push((number, &rest[..text]));
        rest = &rest[text..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_newest_is_newest_by_number_and_no_other_flavour() {
        let names = names(&[
            "linux-image-5.10.0-9-cloud-amd64",
            "linux-image-5.10.0-38-cloud-amd64",
            "linux-image-5.10.0-40-cloud-amd64-unsigned",
            "linux-image-5.10.0-41-rt-cloud-amd64",
            "linux-image-6.1.0-0.deb11.35-cloud-amd64",
        ]);
        assert_eq!(newest(&names, "linux-image-5.10.0-", "-cloud-amd64"), Some("linux-image-5.10.0-38-cloud-amd64"));
        assert_eq!(newest(&names, "linux-image-6.12.", "-cloud-amd64"), None);
    }

    #[test]
    fn a_version_with_a_suffix_is_compared_too() {
        let names = names(&["linux-binary-7.3.9+deb13-cloud-amd64", "linux-binary-7.3.10+deb13-cloud-amd64"]);
        assert_eq!(newest(&names, "linux-binary-7.3.", "-cloud-amd64"), Some("linux-binary-7.3.10+deb13-cloud-amd64"));
    }

    #[test]
    fn a_suite_that_is_gone_is_told_from_one_that_is_not_reached() {
        let gone = anyhow!("E: The repository 'X bullseye-security Release' does not have a Release file.");
        assert!(matches!(MATRIX[0].judge(&gone), Unavailable::NotServed(_)));
        let offline = anyhow!("E: Failed to fetch X  Temporary failure resolving 'X'");
        assert!(matches!(MATRIX[0].judge(&offline), Unavailable::NotFetched(_)));
    }
}
