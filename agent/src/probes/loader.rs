//! Loads the eBPF object and attaches each program alone.
//!
//! A probe whose core programs are not all attached is taken off again, so that it yields no series rather than wrong ones.

use std::{collections::BTreeMap, hint::black_box, panic::resume_unwind, thread};

use aya::{
    Btf, Ebpf, EbpfLoader,
    programs::{Program as AyaProgram, ProgramError},
};

use tailcomb_common::block::MAX_SERIES;

use super::{
    block,
    resolve::{Kernel, Resolved, hooks, resolve},
    table::{Attach, PROBES, Probe, Program},
    verdict::{ProbeVerdict, ProgramVerdict, Verdict},
};
use crate::kernel::{
    btf::{Layout, LayoutError},
    object::{self, ObjectError},
    privilege::{self, Privileges},
    tracefs::{Tracefs, TracefsError},
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
    // What it mounts is there until all is attached.
    let tracefs = Tracefs::find_or_mount();
    let resolved = with_a_heap_of_its_own(|| look_up(&tracefs))?;
    let mut ebpf = load_maps(bytes, &resolved, options)?;
    let mut failed = with_a_heap_of_its_own(|| load_programs(&mut ebpf, &resolved))?;
    let verdicts = PROBES.iter().map(|probe| attach_probe(&mut ebpf, probe, &resolved, &mut failed)).collect();
    Ok(Loaded { ebpf, verdicts })
}

/// Runs a step that reads the kernel's types, which takes some twenty MiB for a moment, so that they are given back.
///
/// glibc keeps what is freed below anything that stays. So the step has a thread, and with it a heap, of its own. The top of a
/// heap is given back when it is larger than a threshold that glibc raises by itself, to 64 MiB at most: blocks that are taken
/// there untouched, too small to be mapped apart, and freed again make it so. That is for a second thread, which gets the heap
/// of the first: at its end the first one lets go of small pieces that it held back. Other allocators need none of this and
/// lose nothing.
fn with_a_heap_of_its_own<T: Send>(step: impl FnOnce() -> T + Send) -> T {
    const BLOCK: usize = 120 << 10;
    const BLOCKS: usize = (64 << 20) / BLOCK + 1;
    let result = in_a_thread(step);
    in_a_thread(|| drop(black_box((0..BLOCKS).map(|_| Vec::<u8>::with_capacity(BLOCK)).collect::<Vec<_>>())));
    result
}

fn in_a_thread<T: Send>(step: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(step).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

/// What the programs need of this kernel.
fn look_up(tracefs: &Result<Tracefs, TracefsError>) -> Result<Resolved, LoadError> {
    let layout = Layout::of_running_kernel()?;
    let why = tracefs.as_ref().err().map(ToString::to_string);
    let kernel = Kernel { layout: &layout, tracefs: tracefs.as_ref().map_err(|_| why.as_deref().unwrap_or_default()) };
    Ok(resolve(PROBES, &kernel))
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
    let shards = tailcomb_common::block::shards(aya::util::nr_cpus().unwrap_or(usize::MAX));
    let mut loader = EbpfLoader::new();
    loader.override_global(block::SHARDS, &shards, true);
    for map in block::SHARDED {
        loader.map_max_entries(map, MAX_SERIES * shards);
    }
    // The loader has read the kernel's types for relocations; the object has none.
    loader.btf(None);
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

/// Why a program is not there, by name.
type Failed = BTreeMap<&'static str, Verdict>;

/// Verifying takes the kernel a second, attaching a moment: so all programs are loaded before the first is attached, and hardly
/// anything is seen by half a probe.
fn load_programs(ebpf: &mut Ebpf, resolved: &Resolved) -> Result<Failed, LoadError> {
    let btf = Btf::from_sys_fs().map_err(|error| LoadError::KernelBtf(Box::new(error)))?;
    let mut failed = Failed::new();
    for probe in PROBES {
        each_program(ebpf, probe, resolved, &mut failed, |program, attach| load_program(program, &btf, attach));
    }
    Ok(failed)
}

/// Takes one step with every program of a probe that has not failed yet; one that fails is unloaded.
fn each_program(
    ebpf: &mut Ebpf,
    probe: &'static Probe,
    resolved: &Resolved,
    failed: &mut Failed,
    step: impl Fn(&mut AyaProgram, Attach) -> Result<(), ProgramError>,
) {
    for program in probe.programs {
        if resolved.verdicts.contains_key(program.name) || failed.contains_key(program.name) {
            continue;
        }
        let taken = ebpf.program_mut(program.name).map(|found| step(found, program.attach).map_err(|error| explain(&error)));
        let missing = || Verdict::Broken {
            reason: format!("the eBPF object has no program {}", program.name),
            remedy: "build the agent and the object from one checkout".to_owned(),
        };
        if let Err(verdict) = taken.unwrap_or_else(|| Err(missing())) {
            unload(ebpf, program);
            failed.insert(program.name, verdict);
        }
    }
}

/// Attaches the programs of a probe; all of them are taken off again where a core one is missing.
fn attach_probe(ebpf: &mut Ebpf, probe: &'static Probe, resolved: &Resolved, failed: &mut Failed) -> ProbeVerdict {
    each_program(ebpf, probe, resolved, failed, attach_program);
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

fn load_program(program: &mut AyaProgram, btf: &Btf, attach: Attach) -> Result<(), ProgramError> {
    match (program, attach) {
        (AyaProgram::BtfTracePoint(program), Attach::Btf(name)) => program.load(name, btf),
        (AyaProgram::RawTracePoint(program), Attach::Raw(_) | Attach::NewerRaw(_)) => program.load(),
        (AyaProgram::TracePoint(program), Attach::Classic(_)) => program.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

fn attach_program(program: &mut AyaProgram, attach: Attach) -> Result<(), ProgramError> {
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
