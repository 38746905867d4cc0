//! The two axes: rows of latency on a logarithmic scale, columns of time.

use std::fmt::Write;

/// Octave fractions that one row may span, in eighths of an octave: the finest that fits is taken.
const SPANS: [i32; 15] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 160, 320];

/// Rows of a logarithmic axis. Row edges lie at 2^(span · n / 8) seconds: each is an edge of Prometheus' native schema 3, so a
/// bucket of that schema lies in one row only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rows {
    span: i32,
    lowest: i32,
    count: usize,
    /// Where there is a row for values above the last bound: that bound.
    overflow: Option<f64>,
}

impl Rows {
    /// The finest rows, at most `most` of them, that hold all these upper bounds (seconds; infinity = above `last`, the last
    /// finite bound there is).
    pub(super) fn fit(bounds: impl Iterator<Item = f64> + Clone, last: f64, most: usize) -> Option<Self> {
        let finite = bounds.clone().filter(|bound| bound.is_finite());
        let (low, high) = finite.fold(None, |range: Option<(f64, f64)>, bound| {
            Some(range.map_or((bound, bound), |(low, high)| (low.min(bound), high.max(bound))))
        })?;
        let overflow = bounds.into_iter().any(f64::is_infinite).then_some(last);
        SPANS
            .into_iter()
            .map(|span| {
                let lowest = row(low, span);
                Self { span, lowest, count: usize::try_from(row(high, span) - lowest + 1).unwrap_or(usize::MAX), overflow }
            })
            .find(|rows| rows.len() <= most.max(2))
    }

    /// How many rows, from the lowest latency (0) up.
    pub(super) fn len(&self) -> usize {
        self.count + usize::from(self.overflow.is_some())
    }

    /// The row of an upper bound; `None` where it is on none.
    pub(super) fn of(&self, bound: f64) -> Option<usize> {
        if bound.is_infinite() {
            return self.overflow.map(|_| self.count);
        }
        usize::try_from(row(bound, self.span) - self.lowest).ok().filter(|row| *row < self.count)
    }

    /// What a row's upper edge is called; the overflow row is called by its lower one.
    pub(super) fn label(&self, row: usize, ascii: bool) -> String {
        match self.overflow.filter(|_| row == self.count) {
            Some(last) => format!("> {}", duration(last, ascii)),
            None => {
                let number = self.lowest + i32::try_from(row).unwrap_or(i32::MAX);
                duration(f64::exp2(f64::from(number * self.span) / 8.0), ascii)
            }
        }
    }
}

/// Number of the row whose upper edge is the first not below `bound`. Bounds are cut to whole ns, so they may lie a little below
/// their edge, never a whole bucket.
fn row(bound: f64, span: i32) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "seconds of u64 ns: within ±600")]
    let row = (bound.max(1e-9).log2() * 8.0 / f64::from(span) - 1e-6).ceil() as i32;
    row
}

/// A duration with three digits and its unit: `31.2 ms`.
pub(super) fn duration(seconds: f64, ascii: bool) -> String {
    let (value, unit) = match seconds {
        _ if seconds < 9.995e-7 => (seconds * 1e9, "ns"),
        _ if seconds < 9.995e-4 => (seconds * 1e6, if ascii { "us" } else { "µs" }),
        _ if seconds < 0.9995 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    let mut text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    let _ = write!(text, " {unit}");
    text
}

/// How time columns become columns of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    /// Time columns that share a character.
    pub(super) merge: usize,
    /// Characters for one (merged) column.
    pub(super) repeat: usize,
    /// Merged columns.
    pub(super) count: usize,
}

impl Columns {
    pub(super) fn fit(columns: usize, width: usize) -> Self {
        let merge = columns.div_ceil(width.max(1)).max(1);
        let count = columns.div_ceil(merge);
        Self { merge, repeat: (width / count.max(1)).clamp(1, 4), count }
    }

    pub(super) fn characters(&self) -> usize {
        self.count * self.repeat
    }

    /// The character that shows a time, seconds after the first column's start.
    pub(super) fn character(&self, seconds: f64, step: f64) -> Option<usize> {
        #[expect(clippy::cast_precision_loss, reason = "at most some hundred")]
        let at = seconds / step / self.merge as f64 * self.repeat as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
        (at >= 0.0 && at < self.characters() as f64).then_some(at as usize)
    }

    /// The axis line and its labels.
    pub(super) fn axis(&self, step: f64) -> (String, String) {
        #[expect(clippy::cast_precision_loss, reason = "at most some hundred")]
        let total = (self.count * self.merge) as f64 * step;
        let tick = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0];
        // A label every ten characters or more.
        #[expect(clippy::cast_precision_loss, reason = "at most some hundred")]
        let wanted = total * 10.0 / self.characters().max(1) as f64;
        let tick = tick.into_iter().find(|tick| *tick >= wanted).unwrap_or(7200.0);
        let mut line = vec!['-'; self.characters()];
        let mut labels = String::new();
        for number in 0u32.. {
            let seconds = f64::from(number) * tick;
            let Some(at) = self.character(seconds, step) else { break };
            line[at] = '+';
            let label = if number == 0 { "0 s".to_owned() } else { format!("{seconds}") };
            if labels.len() <= at && at + label.len() <= self.characters() + 4 {
                let _ = write!(labels, "{:1$}{label}", "", at - labels.len());
            }
        }
        (line.into_iter().collect(), labels)
    }
}

#[cfg(test)]
mod tests {
    use tailcomb_common::bucket;

    use super::*;

    #[test]
    fn durations_have_three_digits() {
        for (seconds, text) in [
            (2.38e-7, "238 ns"),
            (9.77e-4, "977 us"),
            (9.997e-4, "1 ms"),
            (0.03125, "31.2 ms"),
            (0.25, "250 ms"),
            (1.0, "1 s"),
            (1.1892, "1.19 s"),
            (64.0, "64 s"),
            (8192.0, "8192 s"),
        ] {
            assert_eq!(duration(seconds, true), text);
        }
        assert_eq!(duration(2e-5, false), "20 µs");
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "ns of some hours")]
    fn each_native_bucket_lies_in_one_row_in_order() {
        let bounds: Vec<f64> =
            (1..=bucket::BUCKETS).map(|slot| bucket::upper_bound_ns(slot).expect("finite") as f64 / 1e9).collect();
        for most in [6, 14, 40, 280] {
            let rows = Rows::fit(bounds.iter().copied(), 8192.0, most).expect("there are bounds");
            assert!(rows.len() <= most);
            let span = usize::try_from(rows.span).expect("positive");
            let of: Vec<usize> = bounds.iter().map(|bound| rows.of(*bound).expect("fits")).collect();
            assert!(of.is_sorted());
            // Every row but the outer ones has exactly its span of buckets.
            for row in 1..rows.len() - 1 {
                assert_eq!(of.iter().filter(|of| **of == row).count(), span, "row {row} of {}", rows.len());
            }
        }
    }

    #[test]
    fn values_above_the_last_bound_have_a_row_of_their_own() {
        let rows = Rows::fit([0.5, 1.0, f64::INFINITY].into_iter(), 8.0, 14).expect("bounds");
        assert_eq!(rows.of(f64::INFINITY), Some(rows.len() - 1));
        assert_eq!(rows.label(rows.len() - 1, true), "> 8 s");
        assert_eq!(Rows::fit([0.5].into_iter(), 8.0, 14).expect("bounds").of(f64::INFINITY), None);
        assert_eq!(Rows::fit(std::iter::empty(), 8.0, 14), None);
    }

    #[test]
    fn columns_are_merged_or_repeated_to_fit() {
        assert_eq!(Columns::fit(90, 88), Columns { merge: 2, repeat: 1, count: 45 });
        assert_eq!(Columns::fit(30, 88), Columns { merge: 1, repeat: 2, count: 30 });
        assert_eq!(Columns::fit(3, 88).characters(), 12);
        assert_eq!(Columns::fit(1, 1), Columns { merge: 1, repeat: 1, count: 1 });
    }

    #[test]
    fn labels_stand_under_their_ticks() {
        let (line, labels) = Columns::fit(80, 88).axis(1.0);
        assert_eq!(line.len(), 80);
        for (at, _) in line.match_indices('+').skip(1) {
            assert!(labels[at..].starts_with(&at.to_string()), "{at}: {labels}");
        }
    }
}
