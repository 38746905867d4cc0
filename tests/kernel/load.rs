//! Loading and attaching: every program on this kernel.

use anyhow::{Result, ensure};
use tailcomb::probes::loader::{self, Options};
use tailcomb_tests::case::{Case, Need};

pub(crate) const CASES: &[Case] = &[Case {
    name: "d11_every_program_has_a_verdict_and_none_is_broken",
    needs: &[Need::Kernel],
    run: every_program_has_a_verdict_and_none_is_broken,
}];

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
