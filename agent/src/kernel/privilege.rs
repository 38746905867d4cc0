//! What this process may do, and what to do where it may not.

use procfs::process::Process;

/// `CAP_*` numbers of include/uapi/linux/capability.h.
const CAPABILITIES: [(u32, &str); 6] = [
    (21, "CAP_SYS_ADMIN"),
    (39, "CAP_BPF"),
    (38, "CAP_PERFMON"),
    (19, "CAP_SYS_PTRACE"),
    (2, "CAP_DAC_READ_SEARCH"),
    (34, "CAP_SYSLOG"),
];
const SYS_ADMIN: u64 = 1 << 21;
const BPF: u64 = 1 << 39;
const PERFMON: u64 = 1 << 38;

/// The effective capabilities of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privileges {
    effective: u64,
}

impl Privileges {
    /// Reads `/proc/self/status`.
    ///
    /// # Errors
    /// When procfs is not mounted.
    pub fn of_this_process() -> Result<Self, procfs::ProcError> {
        Ok(Self { effective: Process::myself()?.status()?.capeff })
    }

    /// From a mask as in `CapEff`.
    #[must_use]
    pub const fn from_mask(effective: u64) -> Self {
        Self { effective }
    }

    /// May it load and attach tracing programs? CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN, which includes both.
    #[must_use]
    pub const fn may_trace(self) -> bool {
        self.effective & SYS_ADMIN != 0 || self.effective & (BPF | PERFMON) == BPF | PERFMON
    }

    /// May it mount tracefs?
    #[must_use]
    pub const fn may_mount(self) -> bool {
        self.effective & SYS_ADMIN != 0
    }

    /// The names of what is missing for tracing; empty where nothing is.
    #[must_use]
    pub fn missing_for_tracing(self) -> Vec<&'static str> {
        if self.may_trace() {
            return Vec::new();
        }
        CAPABILITIES[1..3].iter().filter(|(bit, _)| self.effective & (1 << bit) == 0).map(|(_, name)| *name).collect()
    }
}

/// The kernel's lockdown mode (`none`, `integrity`, `confidentiality`), where it has one.
#[must_use]
pub fn lockdown() -> Option<String> {
    let modes = std::fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
    modes.split_whitespace().find_map(|mode| mode.strip_prefix('[')?.strip_suffix(']').map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracing_needs_both_capabilities_or_the_one_above_them() {
        assert!(Privileges::from_mask(SYS_ADMIN).may_trace());
        assert!(Privileges::from_mask(BPF | PERFMON).may_trace());
        assert_eq!(Privileges::from_mask(BPF).missing_for_tracing(), ["CAP_PERFMON"]);
        assert_eq!(Privileges::from_mask(0).missing_for_tracing(), ["CAP_BPF", "CAP_PERFMON"]);
        assert!(!Privileges::from_mask(BPF | PERFMON).may_mount());
    }
}
