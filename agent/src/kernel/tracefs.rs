//! tracefs: where the kernel shows its classic tracepoints and the layout of their records.
//!
//! Mounted by the agent where it is missing, and only for as long as programs are being attached: what is attached stays
//! attached when tracefs goes, and nothing is left mounted, however the agent ends.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// The places where it may be mounted, best first.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// A usable tracefs.
#[derive(Debug)]
pub struct Tracefs {
    root: PathBuf,
    mounted_here: bool,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum TracefsError {
    /// Not mounted, and mounting failed.
    #[error("tracefs is not mounted and could not be ({0}); as root: mount -t tracefs tracefs /sys/kernel/tracing")]
    NotMounted(#[source] nix::Error),
    /// A tracepoint, or the layout of its record, can't be read.
    #[error("tracepoint {event}: {source}")]
    Event {
        /// `category/name`.
        event: String,
        /// What failed.
        #[source]
        source: io::Error,
    },
}

impl Tracefs {
    /// Finds tracefs, or mounts it until the value is dropped.
    ///
    /// # Errors
    /// [`TracefsError::NotMounted`] with the reason and the command that remedies it.
    pub fn find_or_mount() -> Result<Self, TracefsError> {
        if let Some(root) = PLACES.iter().map(Path::new).find(|place| place.join("events").is_dir()) {
            return Ok(Self { root: root.to_owned(), mounted_here: false });
        }
        let root = PathBuf::from(PLACES[0]);
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("tracefs"), &root, Some("tracefs"), flags, None::<&str>).map_err(TracefsError::NotMounted)?;
        Ok(Self { root, mounted_here: true })
    }

    /// Was it mounted by this call?
    #[must_use]
    pub const fn was_mounted_here(&self) -> bool {
        self.mounted_here
    }

    /// Is there a tracepoint of that name?
    #[must_use]
    pub fn has(&self, category: &str, name: &str) -> bool {
        self.root.join("events").join(category).join(name).join("id").is_file()
    }

    /// Offset of one field in the tracepoint's record, from its `format` file; `None` where there is no such field.
    ///
    /// # Errors
    /// [`TracefsError::Event`] when the file can't be read.
    pub fn field_offset(&self, category: &str, name: &str, field: &str) -> Result<Option<u32>, TracefsError> {
        let path = self.root.join("events").join(category).join(name).join("format");
        let format =
            fs::read_to_string(path).map_err(|source| TracefsError::Event { event: format!("{category}/{name}"), source })?;
        Ok(field_offset(&format, field))
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.mounted_here
            && let Err(error) = umount2(&self.root, MntFlags::MNT_DETACH)
        {
            tracing::warn!(place = %self.root.display(), %error, "tracefs was mounted for the probes and could not be unmounted");
        }
    }
}

/// Finds a field's offset in the text of a `format` file.
///
/// A line reads `field:TYPE NAME;\toffset:N;\tsize:N;\tsigned:N;`, an array's name ends in `[N]`. The layout has been so
/// since the file exists (Documentation/trace/events.rst); a line of another form is passed over.
#[must_use]
pub fn field_offset(format: &str, field: &str) -> Option<u32> {
    format.lines().find_map(|line| {
        let mut parts = line.trim().split(';').map(str::trim);
        let declaration = parts.next()?.strip_prefix("field:")?;
        let name = declaration.rsplit([' ', '*']).next()?.split('[').next()?;
        if name != field {
            return None;
        }
        parts.find_map(|part| part.strip_prefix("offset:")).and_then(|offset| offset.parse().ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECVFROM: &str = "name: sys_enter_recvfrom\nID: 1\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:int fd;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:void * ubuf;\toffset:24;\tsize:8;\tsigned:0;\n\
        \tfield:char comm[16];\toffset:32;\tsize:16;\tsigned:0;\n\nprint fmt: \"fd: 0x%08lx\", REC->fd\n";

    #[test]
    fn fields_are_found_whatever_their_type() {
        assert_eq!(field_offset(RECVFROM, "fd"), Some(16));
        assert_eq!(field_offset(RECVFROM, "ubuf"), Some(24));
        assert_eq!(field_offset(RECVFROM, "comm"), Some(32));
        assert_eq!(field_offset(RECVFROM, "__syscall_nr"), Some(8));
    }

    #[test]
    fn what_is_not_there_is_not_guessed() {
        assert_eq!(field_offset(RECVFROM, "size"), None);
        assert_eq!(field_offset("", "fd"), None);
        assert_eq!(field_offset("field:int fd;\tsize:8;", "fd"), None);
    }
}
