//! Counts cases from what a test binary prints, libtest's or libtest-mimic's.

/// The cases of one or more test binaries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Cases that passed.
    pub(crate) passed: u64,
    /// Cases that failed.
    pub(crate) failed: u64,
    /// Cases that did not run, each with its reason.
    pub(crate) skipped: Vec<(String, String)>,
    /// Names of the cases that failed, as far as they could be read.
    pub(crate) failures: Vec<String>,
    /// Did every binary that began come to its summary?
    pub(crate) finished: bool,
}

impl Tally {
    /// Reads the whole output. The numbers are those of the summaries; single lines give only names and reasons, since a
    /// case's own output can break them.
    pub(crate) fn of(output: &str) -> Self {
        let mut tally = Self::default();
        let (mut begun, mut ended) = (0, 0);
        for line in output.lines().map(str::trim) {
            begun += u32::from(is_title(line));
            if let Some(summary) = line.strip_prefix("test result: ") {
                ended += 1;
                tally.passed += number_before(summary, "passed");
                tally.failed += number_before(summary, "failed");
            } else if let Some(rest) = line.strip_prefix("test ") {
                tally.case(rest.trim_start());
            }
        }
        tally.finished = begun > 0 && begun == ended;
        tally
    }

    /// `[KIND] NAME ... OUTCOME`, after `test `; skipped cases have the kind `skipped: REASON`.
    fn case(&mut self, line: &str) {
        let Some((what, outcome)) = line.rsplit_once(" ... ") else { return };
        let (kind, name) = match what.strip_prefix('[').and_then(|rest| rest.rsplit_once(']')) {
            Some((kind, name)) => (kind, name.trim()),
            None => ("", what.trim()),
        };
        if outcome.starts_with("ignored") {
            let reason = kind.strip_prefix("skipped: ").or_else(|| outcome.strip_prefix("ignored, "));
            self.skipped.push((name.to_owned(), reason.unwrap_or("marked #[ignore]").to_owned()));
        } else if outcome.starts_with("FAILED") {
            self.failures.push(name.to_owned());
        }
    }
}

fn is_title(line: &str) -> bool {
    line.strip_prefix("running ").is_some_and(|rest| rest.ends_with(" tests") || rest.ends_with(" test"))
}

fn number_before(summary: &str, word: &str) -> u64 {
    let before = summary.split(word).next().unwrap_or_default();
    before.split_whitespace().next_back().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_binaries_add_up() {
        let output = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured\n\
            running 1 test\ntest c ... ignored, too slow\n\ntest result: ok. 0 passed; 0 failed; 1 ignored; 0 measured\n";
        let tally = Tally::of(output);
        assert_eq!((tally.passed, tally.failed, tally.finished), (1, 1, true));
        assert_eq!(tally.failures, ["b"]);
        assert_eq!(tally.skipped, [("c".to_owned(), "too slow".to_owned())]);
    }

    #[test]
    fn a_reason_with_brackets_and_dots_is_kept() {
        let tally = Tally::of("running 1 test\ntest [skipped: needs /sys/[a] ... now] d1_name ... ignored\n");
        assert_eq!(tally.skipped, [("d1_name".to_owned(), "needs /sys/[a] ... now".to_owned())]);
        assert!(!tally.finished, "no summary came");
    }

    #[test]
    fn a_line_broken_by_a_case_costs_a_name_and_no_number() {
        let tally = Tally::of(
            "running 1 test\ntest a ... said something\nFAILED\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n",
        );
        assert_eq!((tally.failed, tally.failures.len()), (1, 0));
    }

    #[test]
    fn nothing_is_not_finished() {
        assert!(!Tally::of("").finished);
    }
}
