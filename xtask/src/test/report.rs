//! The table at the end: step, result, seconds, and every skip with its reason.

use std::{fmt::Write, time::Duration};

use super::tally::Tally;

/// How a step ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// All that ran passed.
    Passed(Tally),
    /// It failed, for this reason.
    Failed(String, Tally),
    /// It did not run.
    Skipped {
        /// Why.
        reason: String,
        /// Is it among what must run in CI?
        required: bool,
    },
}

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Step {
    /// What ran.
    pub(crate) name: String,
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// How long it took.
    pub(crate) took: Duration,
}

/// All steps of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// In the order they ran.
    pub(crate) steps: Vec<Step>,
}

impl Report {
    /// Did anything fail? With `strict` (CI) a required step that was skipped did.
    pub(crate) fn failed(&self, strict: bool) -> bool {
        self.steps.iter().any(|step| match &step.outcome {
            Outcome::Passed(_) => false,
            Outcome::Failed(..) => true,
            Outcome::Skipped { required, .. } => strict && *required,
        })
    }

    /// The table in Markdown, which reads well in a terminal too.
    pub(crate) fn table(&self, strict: bool) -> String {
        let rows: Vec<[String; 3]> = self
            .steps
            .iter()
            .map(|step| [step.name.clone(), result(&step.outcome, strict), format!("{:.0}", step.took.as_secs_f64())])
            .collect();
        let head = ["step", "result", "seconds"];
        let width = |column: usize| rows.iter().map(|row| row[column].len()).chain([head[column].len()]).max().unwrap_or(0);
        let (first, second, third) = (width(0), width(1), width(2));
        let mut text = String::new();
        let mut line = |one: &str, two: &str, three: &str| {
            let _ = writeln!(text, "| {one:first$} | {two:second$} | {three:>third$} |");
        };
        line(head[0], head[1], head[2]);
        line(&"-".repeat(first), &"-".repeat(second), &format!("{}:", "-".repeat(third - 1)));
        for [name, result, seconds] in &rows {
            line(name, result, seconds);
        }
        text + &self.details()
    }

    /// What was skipped or failed, case by case.
    fn details(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            let (Outcome::Passed(tally) | Outcome::Failed(_, tally)) = &step.outcome else { continue };
            for (name, reason) in &tally.skipped {
                let _ = writeln!(text, "- skipped in {}: {name}: {reason}", step.name);
            }
            for name in &tally.failures {
                let _ = writeln!(text, "- failed in {}: {name}", step.name);
            }
        }
        if text.is_empty() { text } else { format!("\n{text}") }
    }
}

fn result(outcome: &Outcome, strict: bool) -> String {
    match outcome {
        Outcome::Passed(tally) => counts(tally),
        Outcome::Failed(reason, tally) => {
            // The whole reason has been printed when it happened.
            let first: String = reason.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
            let counts = if tally.finished { format!(" ({})", counts(tally)) } else { String::new() };
            format!("FAILED: {first}{counts}")
        }
        Outcome::Skipped { reason, required: true } if strict => format!("FAILED: skipped, which CI does not accept: {reason}"),
        Outcome::Skipped { reason, .. } => format!("skipped: {reason}"),
    }
}

fn counts(tally: &Tally) -> String {
    match tally.skipped.len() {
        // A step without cases, such as a build.
        0 if !tally.finished => "done".to_owned(),
        0 => format!("{} passed", tally.passed),
        skipped => format!("{} passed, {skipped} skipped", tally.passed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Outcome) -> Report {
        Report { steps: vec![Step { name: "kernel 6.1".to_owned(), outcome, took: Duration::from_millis(4_600) }] }
    }

    #[test]
    fn a_required_skip_fails_in_ci_only() {
        let skipped = |required| report(Outcome::Skipped { reason: "no network".to_owned(), required });
        assert!(!skipped(true).failed(false));
        assert!(skipped(true).failed(true));
        assert!(!skipped(false).failed(true));
        assert!(skipped(true).table(true).contains("FAILED: skipped, which CI does not accept: no network"));
        assert!(skipped(true).table(false).contains("| skipped: no network |"));
    }

    #[test]
    fn skips_of_cases_are_listed_under_the_table() {
        let tally =
            Tally { passed: 3, skipped: vec![("d3".to_owned(), "needs fio".to_owned())], finished: true, ..Tally::default() };
        let table = report(Outcome::Passed(tally)).table(true);
        assert!(table.contains("| kernel 6.1 | 3 passed, 1 skipped |       5 |"), "{table}");
        assert!(table.contains("- skipped in kernel 6.1: d3: needs fio"), "{table}");
    }

    #[test]
    fn a_failure_shows_its_first_line_and_its_names() {
        let tally = Tally { failed: 1, failures: vec!["d2".to_owned()], finished: true, ..Tally::default() };
        let bad = report(Outcome::Failed("the kernel panicked\n    lines".to_owned(), tally));
        assert!(bad.failed(false));
        let table = bad.table(false);
        assert!(
            table.contains("FAILED: the kernel panicked (0 passed)") && table.contains("- failed in kernel 6.1: d2"),
            "{table}"
        );
    }
}
