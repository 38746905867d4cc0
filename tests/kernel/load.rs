//! Loading and attaching: every program on this kernel.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use aya_obj::{Object, generated::bpf_func_id};
use tailcomb::{
    kernel::{object, tracefs::Tracefs},
    probes::loader::{self, Options},
};
use tailcomb_tests::case::{Case, Need};

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "d11_every_program_has_a_verdict_and_none_is_broken",
        needs: &[Need::Kernel],
        run: every_program_has_a_verdict_and_none_is_broken,
    },
    Case { name: "d09_hooks_are_tracepoints_and_are_listed", needs: &[Need::Kernel], run: hooks_are_tracepoints },
    Case { name: "d10_record_layouts_are_read_and_not_guessed", needs: &[Need::Kernel], run: record_layouts_are_read },
    Case { name: "the_object_calls_only_helpers_that_read", needs: &[Need::Kernel], run: only_helpers_that_read },
];

fn every_program_has_a_verdict_and_none_is_broken() -> Result<()> {
    let loaded = loader::load(&Options::default())?;
    for probe in &loaded.verdicts {
        ensure!(probe.attached, "{} is not attached: {:?}", probe.probe, probe.missing());
        for program in &probe.programs {
            ensure!(program.verdict.word() != "broken", "{}: {:?}", program.program, program.verdict);
        }
    }
    Ok(())
}

/// A kernel without kprobes must do: this machine's has none, the guests' have them and they are not used.
fn hooks_are_tracepoints() -> Result<()> {
    let loaded = loader::load(&Options::default())?;
    for program in loaded.verdicts.iter().flat_map(|probe| &probe.programs) {
        ensure!(!program.hooks.is_empty(), "{} lists no hook", program.program);
        for hook in &program.hooks {
            let tracepoint = ["tp_btf:", "raw_tp:", "tracepoint:"].iter().any(|kind| hook.starts_with(kind));
            ensure!(tracepoint, "{} hooks {hook}", program.program);
        }
    }
    Ok(())
}

/// The offsets are those of the kernel's include/trace/syscall.h: a number of 4 bytes at 8, then arguments of 8 bytes.
fn record_layouts_are_read() -> Result<()> {
    let tracefs = Tracefs::find_or_mount()?;
    for (event, field, offset) in [
        ("sys_enter_read", "__syscall_nr", 8),
        ("sys_enter_read", "fd", 16),
        ("sys_enter_read", "buf", 24),
        ("sys_enter_read", "count", 32),
        ("sys_enter_recvfrom", "flags", 40),
        ("sys_exit_read", "ret", 16),
    ] {
        let found = tracefs.field_offset("syscalls", event, field)?;
        ensure!(found == Some(offset), "{event}.{field}: {found:?} instead of {offset}");
    }
    ensure!(
        tracefs.field_offset("syscalls", "sys_enter_read", "no_such_field")?.is_none(),
        "a field that is not there was found"
    );
    ensure!(tracefs.field_offset("syscalls", "no_such_event", "fd").is_err(), "a tracepoint that is not there was read");
    Ok(())
}

/// Everything that the object may call: looking up and changing our own maps, clocks, who runs, reading memory.
const READERS: &[bpf_func_id] = &[
    bpf_func_id::BPF_FUNC_map_lookup_elem,
    bpf_func_id::BPF_FUNC_map_update_elem,
    bpf_func_id::BPF_FUNC_map_delete_elem,
    bpf_func_id::BPF_FUNC_ktime_get_ns,
    bpf_func_id::BPF_FUNC_get_smp_processor_id,
    bpf_func_id::BPF_FUNC_get_current_pid_tgid,
    bpf_func_id::BPF_FUNC_get_current_comm,
    bpf_func_id::BPF_FUNC_get_current_task,
    bpf_func_id::BPF_FUNC_get_current_task_btf,
    bpf_func_id::BPF_FUNC_task_pt_regs,
    bpf_func_id::BPF_FUNC_get_current_cgroup_id,
    bpf_func_id::BPF_FUNC_probe_read_user,
    bpf_func_id::BPF_FUNC_probe_read_kernel,
    bpf_func_id::BPF_FUNC_ringbuf_output,
    bpf_func_id::BPF_FUNC_ringbuf_reserve,
    bpf_func_id::BPF_FUNC_ringbuf_submit,
    bpf_func_id::BPF_FUNC_ringbuf_discard,
    bpf_func_id::BPF_FUNC_ringbuf_query,
];

fn only_helpers_that_read() -> Result<()> {
    /// `BPF_JMP | BPF_CALL` with source register 0: a helper, by its number.
    const CALL: u8 = 0x85;
    let object = Object::parse(object::bytes()?).context("parsing the eBPF object")?;
    let calls: BTreeSet<i32> = object
        .functions
        .values()
        .flat_map(|function| &function.instructions)
        .filter(|instruction| instruction.code == CALL && instruction.src_reg() == 0)
        .map(|instruction| instruction.imm)
        .collect();
    ensure!(calls.contains(&(bpf_func_id::BPF_FUNC_ktime_get_ns as i32)), "no call was found: the search is broken");
    let others: Vec<_> = calls.iter().filter(|call| READERS.iter().all(|reader| *reader as i32 != **call)).collect();
    ensure!(others.is_empty(), "the object calls helpers {others:?}, which are not on the list");
    Ok(())
}
