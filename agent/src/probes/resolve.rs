//! Looks up, in this kernel, what the programs of the table need.

use std::collections::BTreeMap;

use super::{
    table::{ABSENT, Attach, Need, Probe, Program, Source},
    verdict::Verdict,
};
use crate::kernel::{btf::Layout, tracefs::Tracefs};

/// The values of the globals, and a verdict for each program that can't be loaded.
#[derive(Debug, Default)]
pub struct Resolved {
    /// Value by global; only those that this kernel has, and [`ABSENT`] for optional ones that it does not.
    pub globals: BTreeMap<&'static str, u32>,
    /// Verdict by program; a program without one is to be loaded.
    pub verdicts: BTreeMap<&'static str, Verdict>,
}

/// What the kernel is asked through.
pub struct Kernel<'a> {
    /// Its types.
    pub layout: &'a Layout,
    /// Its classic tracepoints, or why they can't be seen.
    pub tracefs: Result<&'a Tracefs, &'a str>,
}

/// Resolves every need of every program of `probes`.
#[must_use]
pub fn resolve(probes: &[Probe], kernel: &Kernel<'_>) -> Resolved {
    let mut resolved = Resolved::default();
    for (probe, program) in probes.iter().flat_map(|probe| probe.programs.iter().map(move |program| (probe, program))) {
        if let Some(other) = program.unless.filter(|other| kernel.layout.has_tracepoint(other)) {
            let reason = format!("this kernel has {other}, which does it better");
            resolved.verdicts.insert(program.name, Verdict::NotApplicable { reason });
        }
        // The object is one: a global is set even where the program at hand is not needed.
        let missing: Vec<String> = program.needs.iter().filter_map(|need| resolved.look_up(need, kernel)).collect();
        if resolved.verdicts.contains_key(program.name) {
            continue;
        }
        let hook = missing_hook(program, kernel).map(|missing| replaced(probe, program).unwrap_or(missing));
        if let Some(verdict) = hook.or_else(|| resolved.missing_field(program, &missing)) {
            resolved.verdicts.insert(program.name, verdict);
        }
    }
    resolved
}

impl Resolved {
    /// Sets one global; returns what is missing where it can't be.
    fn look_up(&mut self, need: &Need, kernel: &Kernel<'_>) -> Option<String> {
        // Programs share their needs; a global has one source wherever it is asked for.
        let found = *self.globals.entry(need.global).or_insert_with(|| value(&need.source, kernel).unwrap_or(ABSENT));
        (found == ABSENT && !need.optional).then(|| describe(&need.source))
    }

    fn missing_field(&self, program: &Program, missing: &[String]) -> Option<Verdict> {
        let reason = if let [first, ..] = missing {
            format!("this kernel has no {first}")
        } else if !program.one_of.is_empty() && program.one_of.iter().all(|global| self.globals.get(global) == Some(&ABSENT)) {
            format!("this kernel has none of {}", program.one_of.join(", "))
        } else {
            return None;
        };
        Some(Verdict::Unsupported { reason, remedy: "report this kernel: `tailcomb check --json` and `uname -r`".to_owned() })
    }
}

/// The hooks of a program, as users know them.
#[must_use]
pub fn hooks(attach: &Attach) -> Vec<String> {
    match attach {
        Attach::Btf(name) => vec![format!("tp_btf:{name}")],
        Attach::Raw(name) | Attach::NewerRaw(name) => vec![format!("raw_tp:{name}")],
        Attach::Classic(points) => points.iter().map(|(category, name)| format!("tracepoint:{category}:{name}")).collect(),
    }
}

/// Other programs of the probe may do the work of one whose tracepoint is missing: those that are not needed where it exists.
fn replaced(probe: &Probe, program: &Program) -> Option<Verdict> {
    let Attach::Btf(hook) = program.attach else { return None };
    let others: Vec<&str> = probe.programs.iter().filter(|other| other.unless == Some(hook)).map(|other| other.name).collect();
    let reason = format!("this kernel has no tracepoint {hook}; done by {} instead", others.join(", "));
    (!others.is_empty()).then_some(Verdict::NotApplicable { reason })
}

fn missing_hook(program: &Program, kernel: &Kernel<'_>) -> Option<Verdict> {
    match program.attach {
        Attach::Btf(name) | Attach::Raw(name) => (!kernel.layout.has_tracepoint(name)).then(|| Verdict::Unsupported {
            reason: format!("this kernel has no tracepoint {name}"),
            remedy: "none on this kernel; it needs a newer one or another configuration".to_owned(),
        }),
        Attach::NewerRaw(name) => (!kernel.layout.has_tracepoint(name)).then(|| Verdict::NotApplicable {
            reason: format!("this kernel has no tracepoint {name}; other programs do without it"),
        }),
        Attach::Classic(points) => match kernel.tracefs {
            Err(why) => Some(Verdict::Unsupported {
                reason: why.to_owned(),
                remedy: "mount -t tracefs tracefs /sys/kernel/tracing, or let the agent do it (CAP_SYS_ADMIN)".to_owned(),
            }),
            Ok(tracefs) => {
                points.iter().find(|(category, name)| !tracefs.has(category, name)).map(|(category, name)| Verdict::Unsupported {
                    reason: format!("this kernel has no tracepoint {category}:{name}"),
                    remedy: "a kernel built with CONFIG_FTRACE_SYSCALLS=y".to_owned(),
                })
            }
        },
    }
}

fn value(source: &Source, kernel: &Kernel<'_>) -> Option<u32> {
    match source {
        Source::Field(paths) => paths.iter().find_map(|path| kernel.layout.offset(path)),
        Source::Enumerator(names) => names.iter().find_map(|(name, enumerator)| kernel.layout.enumerator(name, enumerator)),
        Source::Argument { tracepoint, type_name } => kernel.layout.argument(tracepoint, type_name),
        Source::Format { category, name, field } => kernel.tracefs.ok()?.field_offset(category, name, field).ok().flatten(),
        Source::HasTracepoint(name) => Some(u32::from(kernel.layout.has_tracepoint(name))),
    }
}

fn describe(source: &Source) -> String {
    match source {
        Source::Field(paths) => format!("field {}", paths.join(" or ")),
        Source::Enumerator(names) => {
            let names: Vec<String> = names.iter().map(|(name, enumerator)| format!("{name}.{enumerator}")).collect();
            format!("value {}", names.join(" or "))
        }
        Source::Argument { tracepoint, type_name } => format!("argument `struct {type_name} *` of tracepoint {tracepoint}"),
        Source::Format { category, name, field } => format!("field {field} in the record of tracepoint {category}:{name}"),
        Source::HasTracepoint(name) => format!("tracepoint {name}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn without_tracefs_a_classic_tracepoint_is_unsupported_and_says_how_to_get_it() {
        let program = Program {
            name: "enter",
            attach: Attach::Classic(&[("syscalls", "sys_enter_read")]),
            needs: &[],
            one_of: &[],
            unless: None,
            core: true,
        };
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/btf/one_argument.btf");
        let layout = Layout::from_file(&fixture).expect("a fixture of the repository");
        let kernel = Kernel { layout: &layout, tracefs: Err("tracefs is not mounted") };
        let programs = Box::leak(Box::new([program]));
        let resolved = resolve(&[Probe { name: "socket", required: true, shows: "", programs }], &kernel);
        let Some(Verdict::Unsupported { reason, remedy }) = resolved.verdicts.get("enter") else { panic!("{resolved:?}") };
        assert_eq!(reason, "tracefs is not mounted");
        assert!(remedy.contains("mount -t tracefs"), "{remedy}");
    }

    #[test]
    fn a_missing_field_is_named() {
        const NEEDS: &[Need] = &[Need { global: "X", source: Source::Field(&["request.no_such_field"]), optional: false }];
        let program =
            Program { name: "issue", attach: Attach::Btf("block_rq_issue"), needs: NEEDS, one_of: &[], unless: None, core: true };
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/btf/one_argument.btf");
        let layout = Layout::from_file(&fixture).expect("a fixture of the repository");
        let kernel = Kernel { layout: &layout, tracefs: Err("not asked") };
        let programs = Box::leak(Box::new([program]));
        let resolved = resolve(&[Probe { name: "block", required: true, shows: "", programs }], &kernel);
        let Some(Verdict::Unsupported { reason, .. }) = resolved.verdicts.get("issue") else { panic!("{resolved:?}") };
        assert_eq!(reason, "this kernel has no field request.no_such_field");
    }
}
