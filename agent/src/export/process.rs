//! The agent's own figures, as every exporter shows them.

use procfs::{WithCurrentSystemInfo as _, process::Process};

/// Figures of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// CPU time, user and system, seconds.
    pub cpu_seconds: f64,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// Address space, bytes.
    pub virtual_bytes: u64,
    /// Start, unix seconds.
    pub start_seconds: f64,
    /// Open file descriptors.
    pub open_fds: u64,
}

impl Figures {
    /// Reads them.
    ///
    /// # Errors
    /// When procfs is not mounted: the metrics are then absent.
    pub fn read() -> Result<Self, procfs::ProcError> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        #[expect(clippy::cast_precision_loss, reason = "an f64 is what is exported")]
        let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
        #[expect(clippy::cast_precision_loss, reason = "an f64 is what is exported")]
        let boot = procfs::boot_time_secs()? as f64;
        Ok(Self {
            cpu_seconds: seconds(stat.utime + stat.stime),
            resident_bytes: stat.rss_bytes().get(),
            virtual_bytes: stat.vsize,
            start_seconds: boot + seconds(stat.starttime),
            open_fds: process.fd_count()? as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn this_process_has_figures() {
        let figures = Figures::read().expect("procfs is mounted");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
        assert!(figures.start_seconds <= now + 1.0 && figures.start_seconds > now - 3_600.0, "{figures:?}");
        assert!(figures.resident_bytes > 1 << 20 && figures.virtual_bytes >= figures.resident_bytes, "{figures:?}");
        assert!(figures.open_fds >= 3, "{figures:?}");
    }
}
