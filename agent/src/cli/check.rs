//! `tailcomb check`: what this kernel and these privileges allow.

use std::fmt::Write;

use anyhow::Result;
use serde_json::json;

use super::{FAILED, OK, print};
use crate::config::Config;
use crate::kernel::privilege::{OthersUnseen, Privileges};
use crate::pipeline::self_test;
use crate::probes::{
    loader::{self, LoadError, Options},
    table::PROBES,
    verdict::{ProbeVerdict, Verdict},
};

/// What became of each probe, or why there is none.
type Outcome = Result<Vec<ProbeVerdict>, LoadError>;

/// Loads, attaches, self-tests, prints, and takes everything off again.
pub(super) fn main(strict: bool, json: bool) -> Result<u8> {
    let mut proof = None;
    let outcome = loader::load(&Options::default()).map(|mut loaded| {
        proof = self_test(&mut loaded, &Config::default().state_dir);
        loaded.verdicts
    });
    let unseen = Privileges::of_this_process().ok().and_then(|privileges| privileges.sees_others().err());
    if json {
        print(&format!("{:#}\n", as_json(&outcome, proof.as_deref(), unseen.as_ref())))?;
    } else {
        print(&as_text(&outcome, proof.as_deref(), unseen.as_ref()))?;
    }
    Ok(if outcome.is_err() || (strict && !is_ok(&outcome)) { FAILED } else { OK })
}

/// Does every required probe work?
fn is_ok(outcome: &Outcome) -> bool {
    outcome.as_ref().is_ok_and(|verdicts| verdicts.iter().all(|verdict| verdict.attached || !verdict.required))
}

fn as_json(outcome: &Outcome, proof: Option<&str>, unseen: Option<&OthersUnseen>) -> serde_json::Value {
    let (ok, kernel) = (is_ok(outcome), kernel_release());
    let warnings: Vec<String> = unseen.iter().map(ToString::to_string).collect();
    match outcome {
        Ok(verdicts) => {
            json!({ "ok": ok, "kernel": kernel, "probes": verdicts, "block_self_test": proof, "warnings": warnings })
        }
        Err(error) => {
            json!({ "ok": ok, "kernel": kernel, "probes": [], "error": error.to_string(), "warnings": warnings })
        }
    }
}

fn as_text(outcome: &Outcome, proof: Option<&str>, unseen: Option<&OthersUnseen>) -> String {
    let mut text = format!("kernel {}\n", kernel_release());
    match outcome {
        Err(error) => {
            let _ = writeln!(text, "no probe can be loaded: {error}");
        }
        Ok(verdicts) => verdicts.iter().for_each(|verdict| probe_text(&mut text, verdict)),
    }
    if let Some(proof) = proof {
        let _ = writeln!(text, "\nself-test of block on a read of our own: {proof}");
    }
    if let (Ok(_), Some(unseen)) = (outcome, unseen) {
        let _ = writeln!(text, "\nwarning: {unseen}");
    }
    let _ = writeln!(text, "\n{}", summary(outcome));
    text
}

/// The verdict in one line.
fn summary(outcome: &Outcome) -> String {
    let Ok(verdicts) = outcome else { return "Nothing can be measured here.".to_owned() };
    let broken: Vec<&str> =
        verdicts.iter().filter(|verdict| verdict.required && !verdict.attached).map(|verdict| verdict.probe).collect();
    match &broken[..] {
        [] => "All required probes work on this kernel.".to_owned(),
        broken => format!("Required probes that do not work here: {}.", broken.join(", ")),
    }
}

fn probe_text(text: &mut String, verdict: &ProbeVerdict) {
    let shows = PROBES.iter().find(|probe| probe.name == verdict.probe).map_or("", |probe| probe.shows);
    let state = if verdict.attached { "works" } else { "does not work" };
    let intent = if verdict.required { "required" } else { "optional" };
    let _ = writeln!(text, "\n{} ({intent}): {state} - {shows}", verdict.probe);
    for program in &verdict.programs {
        let _ = writeln!(text, "  {:<22} {:<14} {}", program.program, program.verdict.word(), hooks_text(&program.hooks));
        match &program.verdict {
            Verdict::Ok => {}
            Verdict::NotApplicable { reason } => {
                let _ = writeln!(text, "      {reason}");
            }
            Verdict::Unsupported { reason, remedy } | Verdict::Broken { reason, remedy } => {
                let _ = writeln!(text, "      why:    {reason}\n      remedy: {remedy}");
            }
        }
    }
}

/// Many hooks of one program are shown as the first and a number.
fn hooks_text(hooks: &[String]) -> String {
    match hooks {
        [first, rest @ ..] if !rest.is_empty() => format!("{first} and {} more", rest.len()),
        [only] => only.clone(),
        _ => String::new(),
    }
}

fn kernel_release() -> String {
    nix::sys::utsname::uname().map_or_else(|_| "unknown".to_owned(), |name| name.release().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::verdict::ProgramVerdict;

    fn verdict(core: Verdict) -> Vec<ProbeVerdict> {
        let attached = core.is_ok();
        let programs = vec![
            ProgramVerdict {
                program: "block_rq_issue",
                hooks: vec!["tp_btf:block_rq_issue".to_owned()],
                core: true,
                verdict: core,
            },
            ProgramVerdict {
                program: "block_rq_insert",
                hooks: vec!["tp_btf:block_rq_insert".to_owned()],
                core: false,
                verdict: Verdict::NotApplicable { reason: "another does it".to_owned() },
            },
        ];
        vec![ProbeVerdict { probe: "block", required: true, attached, programs }]
    }

    #[test]
    fn a_missing_program_shows_cause_and_remedy() {
        let broken = Verdict::Unsupported { reason: "no such tracepoint".to_owned(), remedy: "a newer kernel".to_owned() };
        let text = as_text(&Ok(verdict(broken)), None, None);
        assert!(text.contains("block (required): does not work"), "{text}");
        assert!(text.contains("why:    no such tracepoint\n      remedy: a newer kernel"), "{text}");
        assert!(text.ends_with("\nRequired probes that do not work here: block.\n"), "{text}");
        let text = as_text(&Ok(verdict(Verdict::Ok)), None, None);
        assert!(text.contains("block (required): works") && !text.contains("warning"), "{text}");
        assert!(text.ends_with("\nAll required probes work on this kernel.\n"), "{text}");
    }

    #[test]
    fn json_has_a_flat_status_for_each_program() {
        let json = as_json(&Ok(verdict(Verdict::Ok)), None, None);
        assert_eq!((&json["ok"], &json["warnings"]), (&true.into(), &json!([])));
        assert_eq!(json["probes"][0]["programs"][0]["status"], "ok");
        assert_eq!(json["probes"][0]["programs"][1]["status"], "not_applicable");
        assert_eq!(json["probes"][0]["attached"], true);
    }

    #[test]
    fn a_missing_capability_is_a_warning_and_a_missing_probe_is_not_ok() {
        let unseen = Privileges::from_mask(0).sees_others().expect_err("nothing is allowed");
        let text = as_text(&Ok(verdict(Verdict::Ok)), None, Some(&unseen));
        assert!(text.contains("\nwarning: CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH missing: "), "{text}");
        let json = as_json(&Ok(verdict(Verdict::Ok)), None, Some(&unseen));
        assert_eq!((&json["ok"], &json["warnings"]), (&true.into(), &json!([unseen.to_string()])));
        let broken = Verdict::Unsupported { reason: "no such tracepoint".to_owned(), remedy: "a newer kernel".to_owned() };
        assert_eq!(as_json(&Ok(verdict(broken)), None, None)["ok"], false);
    }
}
