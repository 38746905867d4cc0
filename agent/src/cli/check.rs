//! `tailcomb check`: what this kernel and these privileges allow.

use std::fmt::Write;

use anyhow::Result;
use serde_json::json;

use super::{FAILED, OK, print};
use crate::config::Config;
use crate::pipeline::self_test;
use crate::probes::{
    loader::{self, LoadError, Options},
    table::PROBES,
    verdict::{ProbeVerdict, Verdict},
};

/// Loads, attaches, self-tests, prints, and takes everything off again.
pub(super) fn main(strict: bool, json: bool) -> Result<u8> {
    let mut proof = None;
    let outcome = loader::load(&Options::default()).map(|mut loaded| {
        proof = self_test(&mut loaded, &Config::default().state_dir);
        loaded.verdicts
    });
    let missing = outcome.as_ref().map_or(true, |verdicts| verdicts.iter().any(|verdict| verdict.required && !verdict.attached));
    if json {
        print(&format!("{:#}\n", as_json(&outcome, proof.as_deref())))?;
    } else {
        print(&as_text(&outcome, proof.as_deref()))?;
    }
    Ok(if outcome.is_err() || (strict && missing) { FAILED } else { OK })
}

fn as_json(outcome: &Result<Vec<ProbeVerdict>, LoadError>, proof: Option<&str>) -> serde_json::Value {
    let kernel = kernel_release();
    match outcome {
        Ok(verdicts) => json!({ "kernel": kernel, "probes": verdicts, "block_self_test": proof }),
        Err(error) => json!({ "kernel": kernel, "probes": [], "error": error.to_string() }),
    }
}

fn as_text(outcome: &Result<Vec<ProbeVerdict>, LoadError>, proof: Option<&str>) -> String {
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
    text
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
        let text = as_text(&Ok(verdict(broken)), None);
        assert!(text.contains("block (required): does not work"), "{text}");
        assert!(text.contains("why:    no such tracepoint\n      remedy: a newer kernel"), "{text}");
        assert!(as_text(&Ok(verdict(Verdict::Ok)), None).contains("block (required): works"));
    }

    #[test]
    fn json_has_a_flat_status_for_each_program() {
        let json = as_json(&Ok(verdict(Verdict::Ok)), None);
        assert_eq!(json["probes"][0]["programs"][0]["status"], "ok");
        assert_eq!(json["probes"][0]["programs"][1]["status"], "not_applicable");
        assert_eq!(json["probes"][0]["attached"], true);
    }
}
