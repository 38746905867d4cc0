//! `tailcomb run`: the agent.

use anyhow::Result;

use super::{OK, Run, start_logging};

/// Runs until SIGTERM or SIGINT.
pub(super) fn main(run: &Run) -> Result<u8> {
    let config = run.settings.load()?;
    if run.print_config {
        print!("{}", config.to_commented_toml());
        return Ok(OK);
    }
    start_logging(&config);
    Ok(OK)
}
