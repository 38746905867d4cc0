//! What a guest's two serial ports say about its run.

use std::{collections::VecDeque, time::Duration};

use crate::test::Tally;

/// How many of the console's last lines are shown when a guest fails.
const LAST_LINES: usize = 60;

/// What came back from a guest.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Its `uname -r`, if it came so far.
    pub(crate) kernel: Option<String>,
    /// The cases.
    pub(crate) tally: Tally,
    /// What the test binary printed.
    pub(crate) output: String,
    /// Did it come so far as to start the test binary?
    pub(crate) started: bool,
    /// What the guest could not do for the cases.
    pub(crate) notes: Vec<String>,
    /// Why the run counts as failed, with the last lines of the console.
    pub(crate) failure: Option<String>,
}

impl Verdict {
    /// Judges by the second port (`results`) first, and explains by the console.
    ///
    /// Only an exit status that came back counts as an end: silence, a panic and a reset do not.
    pub(crate) fn judge(results: &str, console: &str, silent: Option<Duration>) -> Self {
        let said = |key: &str| results.lines().find_map(|line| line.strip_prefix("@@")?.strip_prefix(key)).map(str::trim);
        let output: Vec<&str> = results.lines().filter(|line| !line.starts_with("@@")).collect();
        let output = output.join("\n");
        let tally = Tally::of(&output);
        let failure = match said("exit ") {
            Some("0") if tally.finished => None,
            Some("0") => Some("the test binary ended well without a result".to_owned()),
            Some(status) if tally.failed == 0 => Some(format!("the test binary ended with status {status}")),
            Some(_) => Some(format!("{} failed", tally.failed)),
            None => Some(no_end(said("broken "), said("start").is_some(), console, &output, silent)),
        };
        let notes = results.lines().filter_map(|line| line.strip_prefix("@@note ")).map(str::to_owned).collect();
        Self { kernel: said("kernel ").map(str::to_owned), tally, output, started: said("start").is_some(), notes, failure }
    }
}

fn no_end(broken: Option<&str>, started: bool, console: &str, output: &str, silent: Option<Duration>) -> String {
    let panicked = console.contains("Kernel panic");
    let what = match (broken, silent) {
        (Some(reason), _) => reason.to_owned(),
        (None, _) if panicked => "the kernel panicked".to_owned(),
        (None, Some(silent)) => format!("nothing heard from the guest for {} s, ended it", silent.as_secs()),
        (None, None) => "the guest went away without a result".to_owned(),
    };
    let during = if started { last_line(output) } else { "before the tests began".to_owned() };
    format!("{what} ({during})\nThe console's last lines:\n{}", tail(console))
}

fn last_line(output: &str) -> String {
    output
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map_or_else(|| "before the first case".to_owned(), |line| format!("at `{}`", line.trim()))
}

fn tail(text: &str) -> String {
    let mut last = VecDeque::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        last.push_back(format!("    {}", line.trim_end()));
        if last.len() > LAST_LINES {
            last.pop_front();
        }
    }
    Vec::from(last).join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "@@kernel 6.1.0-40-cloud-amd64\n@@start\n\nrunning 2 tests\ntest                                   d11_load ... ok\n\
        test [skipped: needs the program fio] d2_mixed ... ignored\n\n\
        test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.20s\n\n@@exit 0\n";

    #[test]
    fn a_good_run_is_good_and_names_its_skips() {
        let verdict = Verdict::judge(GOOD, "", None);
        assert!(verdict.failure.is_none(), "{verdict:?}");
        assert_eq!((verdict.tally.passed, verdict.kernel.as_deref()), (1, Some("6.1.0-40-cloud-amd64")));
        assert_eq!(verdict.tally.skipped, [("d2_mixed".to_owned(), "needs the program fio".to_owned())]);
    }

    #[test]
    fn a_failed_case_fails_the_run() {
        let bad = GOOD.replace("load ... ok", "load ... FAILED").replace("1 passed; 0 failed", "0 passed; 1 failed");
        let verdict = Verdict::judge(&bad.replace("@@exit 0", "@@exit 101"), "", None);
        assert_eq!(verdict.failure.as_deref(), Some("1 failed"));
    }

    #[test]
    fn a_panic_is_a_failure_with_the_console() {
        let cut = &GOOD[..GOOD.find("d11_load ... ok").expect("in it") + 8];
        let console = "booting\n[ 1.0] Kernel panic - not syncing: Fatal exception\n";
        let failure = Verdict::judge(cut, console, None).failure.expect("failed");
        assert!(failure.starts_with("the kernel panicked (at `test"), "{failure}");
        assert!(failure.contains("Fatal exception"), "{failure}");
    }

    #[test]
    fn a_hang_is_a_failure_even_after_passed_cases() {
        let cut = &GOOD[..GOOD.find("\n\ntest result").expect("in it")];
        let failure = Verdict::judge(cut, "last words\n", Some(Duration::from_secs(300))).failure.expect("failed");
        assert!(failure.contains("nothing heard from the guest for 300 s") && failure.contains("last words"), "{failure}");
    }

    #[test]
    fn silence_and_an_early_end_are_failures() {
        assert!(Verdict::judge("", "", None).failure.expect("failed").contains("before the tests began"));
        let early = "@@kernel 5.10\n@@start\n@@exit 0\n";
        assert!(Verdict::judge(early, "", None).failure.expect("failed").contains("without a result"));
        let killed = "@@kernel 5.10\n@@start\nrunning 1 test\n@@exit 137\n";
        assert!(Verdict::judge(killed, "", None).failure.expect("failed").contains("status 137"));
        assert!(Verdict::judge("@@broken no disk\n", "", None).failure.expect("failed").starts_with("no disk"));
    }
}
