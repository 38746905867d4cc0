//! What the terminal can show: its width, and how many colours.

use std::io::IsTerminal;

/// Columns where neither `COLUMNS` nor the terminal says.
const DEFAULT_WIDTH: usize = 100;
/// No chart is narrower: the labels of its axis take a fifth of this.
const LEAST_WIDTH: usize = 50;
/// No chart is wider: the eye does not follow a row so far.
const MOST_WIDTH: usize = 400;

/// How counts are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// As characters: a file, a pipe, `NO_COLOR`, a terminal without colours.
    None,
    /// The 256 colours of xterm.
    Indexed,
    /// 24 bits.
    True,
}

/// How a chart is to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Characters a line.
    pub width: usize,
    /// Most rows of one heatmap.
    pub rows: usize,
    /// How counts are shown.
    pub colour: Colour,
}

impl Style {
    /// For standard output as it is: a terminal, a pipe, a file.
    #[must_use]
    pub fn of_stdout() -> Self {
        let stdout = std::io::stdout();
        let terminal = terminal_size::terminal_size_of(&stdout).map(|(width, _)| usize::from(width.0));
        Self::choose(stdout.is_terminal(), terminal, |name| std::env::var(name).ok())
    }

    /// The rule: `COLUMNS` before the terminal's own width; colours on a terminal only, and never against `NO_COLOR`
    /// (no-color.org: set and not empty).
    #[must_use]
    pub fn choose(is_terminal: bool, width: Option<usize>, variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let columns = set("COLUMNS").and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
        let width = columns.or(width).unwrap_or(DEFAULT_WIDTH).clamp(LEAST_WIDTH, MOST_WIDTH);
        let dumb = set("TERM").is_none_or(|term| term == "dumb");
        let colour = if !is_terminal || dumb || set("NO_COLOR").is_some() {
            Colour::None
        } else if set("COLORTERM").is_some_and(|term| term == "truecolor" || term == "24bit") {
            Colour::True
        } else {
            Colour::Indexed
        };
        Self { width, rows: 14, colour }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(is_terminal: bool, width: Option<usize>, variables: &[(&str, &str)]) -> Style {
        Style::choose(is_terminal, width, |name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn width_is_what_the_user_says_then_the_terminal() {
        assert_eq!(choose(true, Some(120), &[("COLUMNS", "80")]).width, 80);
        assert_eq!(choose(true, Some(120), &[]).width, 120);
        assert_eq!(choose(false, None, &[]).width, 100);
        assert_eq!(choose(true, None, &[("COLUMNS", "wide")]).width, 100);
        assert_eq!(choose(true, Some(7), &[]).width, LEAST_WIDTH);
    }

    #[test]
    fn colours_are_for_terminals_that_have_them() {
        let xterm = ("TERM", "xterm-256color");
        assert_eq!(choose(true, None, &[xterm]).colour, Colour::Indexed);
        assert_eq!(choose(true, None, &[xterm, ("COLORTERM", "truecolor")]).colour, Colour::True);
        assert_eq!(choose(true, None, &[xterm, ("NO_COLOR", "1")]).colour, Colour::None);
        assert_eq!(choose(true, None, &[xterm, ("NO_COLOR", "")]).colour, Colour::Indexed, "empty is not set");
        assert_eq!(choose(false, None, &[xterm]).colour, Colour::None);
        assert_eq!(choose(true, None, &[("TERM", "dumb")]).colour, Colour::None);
        assert_eq!(choose(true, None, &[]).colour, Colour::None);
    }
}
