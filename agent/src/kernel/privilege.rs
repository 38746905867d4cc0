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
const DAC_OVERRIDE: u64 = 1 << 1;
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

    /// May it read `/proc/PID/fd` of other users' processes? `ptrace_may_access` in kernel/ptrace.c wants CAP_SYS_PTRACE, the mode of
    /// the folder CAP_DAC_READ_SEARCH or CAP_DAC_OVERRIDE.
    ///
    /// # Errors
    /// What is missing for it, and what does not work then.
    pub fn sees_others(self) -> Result<(), OthersUnseen> {
        let has = |bit: u32| self.effective & (1 << bit) != 0 || (bit == 2 && self.effective & DAC_OVERRIDE != 0);
        let missing: Vec<_> = CAPABILITIES[3..5].iter().filter(|(bit, _)| !has(*bit)).map(|(_, name)| *name).collect();
        if missing.is_empty() { Ok(()) } else { Err(OthersUnseen { missing }) }
    }
}

/// What is measured less without a capability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} missing: which sockets the processes of other users hold can't be seen, so a `port:` target does not find their servers that \
     listened before the agent, and the ports of their other servers are not shown; run as root, or grant {}",
    missing.join(" and "), if missing.len() == 1 { "it" } else { "them" }
)]
pub struct OthersUnseen {
    /// The names of what is missing.
    pub missing: Vec<&'static str>,
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

    #[test]
    fn sockets_of_others_need_ptrace_and_a_way_past_modes() {
        let missing = |mask| Privileges::from_mask(mask).sees_others().map_err(|unseen| unseen.missing);
        assert_eq!(missing(1 << 19 | 1 << 2), Ok(()));
        assert_eq!(missing(1 << 19 | DAC_OVERRIDE), Ok(()));
        assert_eq!(missing(1 << 19), Err(vec!["CAP_DAC_READ_SEARCH"]));
        assert_eq!(missing(SYS_ADMIN | BPF), Err(vec!["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"]));
        let said = Privileges::from_mask(1 << 2).sees_others().expect_err("no CAP_SYS_PTRACE").to_string();
        assert!(said.starts_with("CAP_SYS_PTRACE missing: ") && said.ends_with("or grant it"), "{said}");
    }
}
