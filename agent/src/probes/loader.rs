//! Loads the eBPF object and attaches each program alone.
//!
//! A probe whose core programs are not all attached is taken off again, so that it yields no series rather than wrong ones.

use std::collections::BTreeMap;

use aya::{
    Btf, Ebpf, EbpfLoader,
    programs::{Program as AyaProgram, ProgramError},
};

use super::{
    resolve::{Kernel, Resolved, hooks, resolve},
    table::{Attach, PROBES, Probe, Program},
    verdict::{ProbeVerdict, ProgramVerdict, Verdict},
};
use crate::kernel::{
    btf::{Layout, LayoutError},
    object::{self, ObjectError},
    privilege::{self, Privileges},
    tracefs::Tracefs,
};

/// What the caller may set.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Globals beside those of the table.
    pub globals: BTreeMap<&'static str, u32>,
    /// Sizes of maps, by name.
    pub map_entries: BTreeMap<&'static str, u32>,
}

/// Why nothing could be loaded. Each message names the cause and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The binary has no usable object.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The kernel does not tell its types.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Privileges are missing.
    #[error(
        "not permitted to load eBPF programs: {missing} missing; run as root, or grant CAP_BPF and CAP_PERFMON (containers: securityContext.capabilities)"
    )]
    Privilege {
        /// The missing capabilities.
        missing: String,
    },
    /// Lockdown forbids it.
    #[error("kernel lockdown is `{mode}`, which forbids reading kernel memory from eBPF; boot with lockdown=integrity or none")]
    Lockdown {
        /// The mode.
        mode: String,
    },
    /// The kernel refused the object's maps.
    #[error("the kernel refused the eBPF maps: {0}")]
    Refused(#[source] Box<aya::EbpfError>),
    /// The kernel's BTF is unreadable to the loader.
    #[error("the kernel's type information is unreadable: {0}")]
    KernelBtf(#[source] Box<aya::BtfError>),
}

/// The object in the kernel, with what became of each probe. Dropping it detaches everything.
pub struct Loaded {
    /// Maps and programs.
    pub ebpf: Ebpf,
    /// By probe, in the table's order.
    pub verdicts: Vec<ProbeVerdict>,
}

impl Loaded {
    /// Is that probe attached?
    #[must_use]
    pub fn is_attached(&self, probe: &str) -> bool {
        self.verdicts.iter().any(|verdict| verdict.probe == probe && verdict.attached)
    }

    /// Takes one probe off, for `reason`.
    pub fn detach(&mut self, probe: &str, reason: &str) {
        let Some(row) = PROBES.iter().find(|row| row.name == probe) else { return };
        for program in row.programs {
            unload(&mut self.ebpf, program);
        }
        if let Some(verdict) = self.verdicts.iter_mut().find(|verdict| verdict.probe == probe) {
            verdict.attached = false;
            for program in verdict.programs.iter_mut().filter(|program| program.verdict.is_ok()) {
                program.verdict = Verdict::Broken { reason: reason.to_owned(), remedy: "see the agent's log".to_owned() };
            }
        }
    }
}

/// Loads the object and attaches what this kernel allows.
///
/// # Errors
/// [`LoadError`] when nothing at all can be loaded; a single program that fails is no error but a verdict.
pub fn load(options: &Options) -> Result<Loaded, LoadError> {
    let bytes = object::bytes()?;
    refuse_without_privileges()?;
    let layout = Layout::of_running_kernel()?;
    let tracefs = Tracefs::find_or_mount();
    let why = tracefs.as_ref().err().map(ToString::to_string);
    let kernel = Kernel { layout: &layout, tracefs: tracefs.as_ref().map_err(|_| why.as_deref().unwrap_or_default()) };
    let resolved = resolve(PROBES, &kernel);
    let mut ebpf = load_maps(bytes, &resolved, options)?;
    let btf = Btf::from_sys_fs().map_err(|error| LoadError::KernelBtf(Box::new(error)))?;
    let verdicts = PROBES.iter().map(|probe| attach_probe(&mut ebpf, &btf, probe, &resolved)).collect();
    Ok(Loaded { ebpf, verdicts })
}

fn refuse_without_privileges() -> Result<(), LoadError> {
    if let Some(mode) = privilege::lockdown().filter(|mode| mode == "confidentiality") {
        return Err(LoadError::Lockdown { mode });
    }
    match Privileges::of_this_process() {
        Ok(privileges) if !privileges.may_trace() => {
            Err(LoadError::Privilege { missing: privileges.missing_for_tracing().join(" and ") })
        }
        // Without procfs nothing is known beforehand: the kernel's own answer will tell.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn load_maps(bytes: &[u8], resolved: &Resolved, options: &Options) -> Result<Ebpf, LoadError> {
    let mut loader = EbpfLoader::new();
    for (name, value) in resolved.globals.iter().chain(&options.globals) {
        loader.override_global(name, value, true);
    }
    for (name, entries) in &options.map_entries {
        loader.map_max_entries(name, *entries);
    }
    let ebpf = loader.load(bytes).map_err(|error| LoadError::Refused(Box::new(error)))?;
    let abi = ebpf.map("ABI").and_then(|map| aya::maps::Array::<_, u32>::try_from(map).ok()).map_or(0, |map| map.len());
    object::check_abi(abi)?;
    Ok(ebpf)
}

/// Verifying takes the kernel a second, attaching a moment: so all programs of a probe are loaded before the first is attached,
/// and hardly anything is seen by half a probe.
fn attach_probe(ebpf: &mut Ebpf, btf: &Btf, probe: &'static Probe, resolved: &Resolved) -> ProbeVerdict {
    let mut failed: BTreeMap<&str, Verdict> = BTreeMap::new();
    for step in [load_program as Step, attach_program] {
        for program in probe.programs {
            if resolved.verdicts.contains_key(program.name) || failed.contains_key(program.name) {
                continue;
            }
            if let Err(verdict) = take(ebpf, btf, program, step) {
                unload(ebpf, program);
                failed.insert(program.name, verdict);
            }
        }
    }
    let verdict = |name| resolved.verdicts.get(name).or_else(|| failed.get(name)).cloned().unwrap_or(Verdict::Ok);
    let programs: Vec<ProgramVerdict> = probe
        .programs
        .iter()
        .map(|program| ProgramVerdict {
            program: program.name,
            hooks: hooks(&program.attach),
            core: program.core,
            verdict: verdict(program.name),
        })
        .collect();
    let attached = !programs.iter().any(|program| program.core && program.verdict.is_missing());
    if !attached {
        for program in probe.programs {
            unload(ebpf, program);
        }
    }
    ProbeVerdict { probe: probe.name, required: probe.required, attached, programs }
}

/// One step of a program's way into the kernel.
type Step = fn(&mut AyaProgram, &Btf, Attach) -> Result<(), ProgramError>;

fn take(ebpf: &mut Ebpf, btf: &Btf, program: &Program, step: Step) -> Result<(), Verdict> {
    let found = ebpf.program_mut(program.name).ok_or_else(|| Verdict::Broken {
        reason: format!("the eBPF object has no program {}", program.name),
        remedy: "build the agent and the object from one checkout".to_owned(),
    })?;
    step(found, btf, program.attach).map_err(|error| explain(&error))
}

fn load_program(program: &mut AyaProgram, btf: &Btf, attach: Attach) -> Result<(), ProgramError> {
    match (program, attach) {
        (AyaProgram::BtfTracePoint(program), Attach::Btf(name)) => program.load(name, btf),
        (AyaProgram::RawTracePoint(program), Attach::Raw(_) | Attach::NewerRaw(_)) => program.load(),
        (AyaProgram::TracePoint(program), Attach::Classic(_)) => program.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

fn attach_program(program: &mut AyaProgram, _: &Btf, attach: Attach) -> Result<(), ProgramError> {
    match (program, attach) {
        (AyaProgram::BtfTracePoint(program), Attach::Btf(_)) => program.attach().map(drop),
        (AyaProgram::RawTracePoint(program), Attach::Raw(name) | Attach::NewerRaw(name)) => program.attach(name).map(drop),
        (AyaProgram::TracePoint(program), Attach::Classic(points)) => {
            points.iter().try_for_each(|(category, name)| program.attach(category, name).map(drop))
        }
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// Detaches and unloads; a program that is not loaded is left as it is.
fn unload(ebpf: &mut Ebpf, program: &Program) {
    // "Not loaded" is the only error these give.
    let _ = match ebpf.program_mut(program.name) {
        Some(AyaProgram::BtfTracePoint(program)) => program.unload(),
        Some(AyaProgram::RawTracePoint(program)) => program.unload(),
        Some(AyaProgram::TracePoint(program)) => program.unload(),
        _ => Ok(()),
    };
}

/// A program's load or attach error in words.
fn explain(error: &ProgramError) -> Verdict {
    let mut reason = error.to_string();
    if let ProgramError::LoadError { io_error, verifier_log } = error {
        if io_error.raw_os_error() == Some(libc::EPERM) {
            return Verdict::Unsupported {
                reason: "the kernel does not permit loading this program".to_owned(),
                remedy: "run as root, or grant CAP_BPF and CAP_PERFMON".to_owned(),
            };
        }
        let log = verifier_log.to_string();
        let last: Vec<&str> = log.lines().rev().take(12).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        reason = format!("the verifier refused it ({io_error}): {}", last.join("\n"));
    }
    Verdict::Broken { reason, remedy: "report this kernel: `tailcomb check --json` and `uname -r`".to_owned() }
}
