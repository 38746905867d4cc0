//! Running other programs, with errors that name the command.

use std::{
    ffi::OsStr,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Tells the user what is about to be done, and why.
pub(crate) fn say(text: impl AsRef<str>) {
    println!("xtask: {}", text.as_ref());
}

/// Runs to the end with the terminal's own output.
///
/// # Errors
/// When it can't be started or exits with a status other than 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {}", shown(command)))?;
    if status.success() { Ok(()) } else { bail!("{} ended with {status}", shown(command)) }
}

/// As [`run`], killed after `limit`.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = command.stdin(Stdio::null()).spawn().with_context(|| format!("starting {}", shown(command)))?;
    match wait_within(&mut child, limit)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("{} ended with {status}", shown(command)),
        None => bail!("{} took longer than {} s", shown(command), limit.as_secs()),
    }
}

/// Waits for a child; `None` where it was still running after `limit` and has been killed.
fn wait_within(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let status = wait_up_to(child, limit)?;
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    Ok(status)
}

/// Waits for a child; `None` where it is still running after `limit`.
pub(crate) fn wait_up_to(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= end {
            return Ok(status);
        }
        sleep(Duration::from_millis(20));
    }
}

/// Runs quietly and returns what was printed.
///
/// # Errors
/// As [`run`], with what the program said on its error output.
pub(crate) fn stdout_of(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}\n{}", shown(command), output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The program's path, if it is on the PATH.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    // An administrator's programs are not always on the PATH of the one who may run them.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The command as one would type it.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_ended_and_named() {
        let error = run_within(Command::new("sleep").arg("60"), Duration::from_millis(100)).expect_err("it hangs");
        assert!(error.to_string().contains("sleep 60 took longer"), "{error}");
    }

    #[test]
    fn a_failure_carries_what_the_program_said() {
        let error = stdout_of(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).expect_err("it fails");
        assert!(error.to_string().contains("broken") && error.to_string().contains('3'), "{error}");
    }
}
