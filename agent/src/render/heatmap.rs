//! Heatmaps of latency over time, one above the other on one time axis.
//!
//! A column is a time, a row a range of latencies on a logarithmic axis, a cell's colour or character how many fell into it. What
//! averages and percentile lines hide is seen: teeth, two bands, a cluster afar.

use std::{fmt::Write, iter};

use super::{
    axis::{Columns, Rows},
    terminal::{Colour, Style},
};

/// Characters for counts, from none to the most.
const RAMP: &[u8; 10] = b" .:-=+*#%@";
/// Characters of the latency axis.
const LABEL: usize = 9;
/// Levels that are not "none".
const LEVELS: u8 = 9;
/// Background colours for the levels: dark blue to pale yellow.
const RGB: [(u8, u8, u8); LEVELS as usize] = [
    (24, 24, 84),
    (48, 26, 120),
    (86, 28, 134),
    (126, 36, 130),
    (168, 50, 114),
    (206, 70, 88),
    (234, 106, 58),
    (248, 158, 48),
    (252, 230, 130),
];
/// The same in xterm's palette.
const INDEXED: [u8; LEVELS as usize] = [17, 18, 54, 90, 126, 161, 202, 214, 228];

/// One heatmap.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// What is shown.
    pub title: String,
    /// What is counted, in the plural: `requests`.
    pub unit: &'static str,
    /// Upper bounds of the buckets in seconds, rising; infinity for the overflow.
    pub bounds: Vec<f64>,
    /// Counts of each bucket, for each time.
    pub columns: Vec<Vec<u64>>,
}

/// A time to point at, in seconds after the start of the first column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    /// Its begin.
    pub from: f64,
    /// Its end.
    pub to: f64,
}

/// Heatmaps on one time axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Seconds of one column.
    pub step: f64,
    /// The heatmaps, from above.
    pub panels: Vec<Panel>,
    /// What is marked under the axis; nine characters are shown.
    pub marks_title: &'static str,
    /// Times marked there.
    pub marks: Vec<Mark>,
}

/// The chart as lines of text, each ended.
#[must_use]
pub fn render(chart: &Chart, style: &Style) -> String {
    let times = chart.panels.iter().map(|panel| panel.columns.len()).max().unwrap_or(0);
    let columns = Columns::fit(times, style.width.saturating_sub(LABEL + 3));
    let mut text = String::new();
    for panel in &chart.panels {
        panel_text(&mut text, panel, columns, style);
    }
    let (line, labels) = columns.axis(chart.step);
    let _ = writeln!(text, "{:LABEL$}  {line}", "");
    let _ = writeln!(text, "{:LABEL$}  {labels}", "");
    if !chart.marks.is_empty() {
        let marks = marks(&chart.marks, chart.step, columns);
        let _ = writeln!(text, "{:>LABEL$}  {}", chart.marks_title.get(..LABEL).unwrap_or(chart.marks_title), marks.trim_end());
    }
    #[expect(clippy::cast_precision_loss, reason = "as many columns as a terminal has")]
    let wide = columns.merge as f64 * chart.step;
    let _ = writeln!(text, "{:LABEL$}  a cell: {wide} s, up to its row's time", "");
    text
}

fn panel_text(text: &mut String, panel: &Panel, columns: Columns, style: &Style) {
    let merged: Vec<Vec<u64>> = panel.columns.chunks(columns.merge).map(add_up).collect();
    let seen = panel
        .bounds
        .iter()
        .enumerate()
        .filter(|(bucket, _)| merged.iter().any(|column| column.get(*bucket).is_some_and(|count| *count > 0)));
    let last = panel.bounds.iter().copied().filter(|bound| bound.is_finite()).fold(0.0, f64::max);
    let Some(rows) = Rows::fit(seen.map(|(_, bound)| *bound), last, style.rows) else {
        let _ = writeln!(text, "{}: no {} were seen", panel.title, panel.unit);
        return;
    };
    let cells: Vec<Vec<u64>> = merged.iter().map(|column| fold(column, &panel.bounds, &rows)).collect();
    let most = cells.iter().flatten().copied().max().unwrap_or(0);
    let total: u64 = cells.iter().flatten().sum();
    let _ = writeln!(text, "{} ({total} {})   {}", panel.title, panel.unit, legend(most, style.colour));
    for row in (0..rows.len()).rev() {
        let _ = write!(text, "{:>LABEL$} |", rows.label(row, style.colour == Colour::None));
        let levels = (0..columns.count).map(|column| cells.get(column).map_or(0, |cells| level(cells[row], most)));
        cells_text(text, levels.flat_map(|level| iter::repeat_n(level, columns.repeat)), style.colour);
        text.push_str("|\n");
    }
}

/// Adds up columns that share a character.
fn add_up(columns: &[Vec<u64>]) -> Vec<u64> {
    let buckets = columns.iter().map(Vec::len).max().unwrap_or(0);
    (0..buckets).map(|bucket| columns.iter().filter_map(|column| column.get(bucket)).sum()).collect()
}

/// Adds up buckets that share a row.
fn fold(column: &[u64], bounds: &[f64], rows: &Rows) -> Vec<u64> {
    let mut cells = vec![0; rows.len()];
    for (count, bound) in column.iter().zip(bounds) {
        if let Some(row) = rows.of(*bound) {
            cells[row] += count;
        }
    }
    cells
}

/// 0 for none, 1 for one, 9 for the most; logarithmic between, so that a single outlier is seen beside thousands.
fn level(count: u64, most: u64) -> u8 {
    match count {
        0 => 0,
        _ if count >= most => LEVELS,
        _ => {
            #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 8")]
            let above_one = ((count as f64).ln() / (most as f64).ln() * f64::from(LEVELS - 1)) as u8;
            1 + above_one
        }
    }
}

fn cells_text(text: &mut String, levels: impl Iterator<Item = u8>, colour: Colour) {
    let mut current = 0;
    for level in levels {
        if colour == Colour::None {
            text.push(char::from(RAMP[usize::from(level)]));
            continue;
        }
        if level != current {
            text.push_str(&background(level, colour));
            current = level;
        }
        text.push(' ');
    }
    if current != 0 {
        text.push_str(&background(0, colour));
    }
}

/// The escape sequence that sets a level's background (ECMA-48 SGR).
fn background(level: u8, colour: Colour) -> String {
    let Some(index) = level.checked_sub(1).map(usize::from) else { return "\x1b[0m".to_owned() };
    let (red, green, blue) = RGB[index];
    match colour {
        Colour::None => String::new(),
        Colour::Indexed => format!("\x1b[48;5;{}m", INDEXED[index]),
        Colour::True => format!("\x1b[48;2;{red};{green};{blue}m"),
    }
}

/// Which counts have which character: the fewest, the middle, the most.
fn legend(most: u64, colour: Colour) -> String {
    let mut shown = Vec::new();
    let middle = (1..=most).find(|count| level(*count, most) >= LEVELS.div_ceil(2)).unwrap_or(most);
    for count in [1, middle, most] {
        if !shown.contains(&count) {
            shown.push(count);
        }
    }
    let mut text = String::new();
    for count in shown {
        let separator = if text.is_empty() { "" } else { "  " };
        text.push_str(separator);
        cells_text(&mut text, iter::repeat_n(level(count, most), if colour == Colour::None { 1 } else { 2 }), colour);
        let _ = write!(text, " {count}");
    }
    text + " a cell"
}

fn marks(marks: &[Mark], step: f64, columns: Columns) -> String {
    let mut line = vec![' '; columns.characters()];
    for mark in marks {
        let Some(from) = columns.character(mark.from, step) else { continue };
        let to = columns.character(mark.to, step).unwrap_or(line.len() - 1).max(from);
        line[from..=to].fill('^');
    }
    line.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style { width: 50, rows: 5, colour: Colour::None };

    /// 20 s: a band at 16-31 ms, and a tooth through the axis each 6 s.
    fn comb() -> Chart {
        let bounds = (0..6).map(|octave| f64::exp2(f64::from(octave) - 6.0)).collect();
        let (quiet, tooth) = (vec![0, 30, 2, 0, 0, 0], vec![0, 25, 3, 4, 4, 1]);
        let columns = (0..20).map(|second| if second % 6 == 5 { tooth.clone() } else { quiet.clone() }).collect();
        let panel = Panel { title: "Requests".to_owned(), unit: "requests", bounds, columns };
        let marks = [5.1, 11.1, 17.1].map(|from| Mark { from, to: from + 0.5 }).to_vec();
        Chart { step: 1.0, panels: vec![panel], marks_title: "flushes", marks }
    }

    #[test]
    fn a_comb_is_seen_at_a_glance() {
        let expected = "\
Requests (655 requests)   . 1  + 6  @ 30 a cell
   500 ms |     .     .     .  |
   250 ms |     =     =     =  |
   125 ms |     =     =     =  |
  62.5 ms |:::::-:::::-:::::-::|
  31.2 ms |@@@@@%@@@@@%@@@@@%@@|
           +---------+---------
           0 s       10
  flushes       ^     ^     ^
           a cell: 1 s, up to its row's time
";
        assert_eq!(render(&comb(), &PLAIN), expected);
    }

    #[test]
    fn two_heatmaps_share_the_axis() {
        let mut chart = comb();
        let mut disk = chart.panels[0].clone();
        disk.title = "Disk".to_owned();
        // A heatmap that ends earlier is filled up.
        disk.columns.truncate(10);
        chart.panels.push(disk);
        let text = render(&chart, &PLAIN);
        let grid: Vec<&str> = text.lines().filter(|line| line.contains('|')).collect();
        assert_eq!(grid.len(), 10);
        assert!(grid.iter().all(|line| line.len() == grid[0].len()), "{text}");
        assert_eq!(text.matches("0 s").count(), 1);
    }

    #[test]
    fn more_times_than_characters_are_added_up_and_none_is_lost() {
        let mut chart = comb();
        let columns = chart.panels[0].columns.clone();
        chart.panels[0].columns = columns.iter().cycle().take(400).cloned().collect();
        let text = render(&chart, &PLAIN);
        assert!(text.starts_with("Requests (13100 requests)"), "{text}");
        assert!(text.lines().all(|line| line.starts_with("Requests") || line.len() <= PLAIN.width), "{text}");
    }

    #[test]
    fn a_single_outlier_is_shown_and_so_is_what_is_above_the_axis() {
        let mut chart = comb();
        chart.marks.clear();
        chart.panels[0].bounds.push(f64::INFINITY);
        chart.panels[0].columns[3] = vec![0, 100_000, 0, 0, 0, 0, 1];
        let text = render(&chart, &PLAIN);
        let top = text.lines().nth(1).expect("a first row");
        assert_eq!(top, " > 500 ms |   .                |");
    }

    #[test]
    fn nothing_seen_is_said_and_not_drawn() {
        let panel = Panel { title: "Disk".to_owned(), unit: "I/Os", bounds: vec![1.0], columns: vec![vec![0]; 5] };
        let chart = Chart { step: 1.0, panels: vec![panel], marks_title: "", marks: Vec::new() };
        assert!(render(&chart, &PLAIN).starts_with("Disk: no I/Os were seen\n"));
    }

    #[test]
    fn colours_are_set_where_they_change_and_taken_back() {
        for (colour, most) in [(Colour::Indexed, "\x1b[48;5;228m"), (Colour::True, "\x1b[48;2;252;230;130m")] {
            let text = render(&comb(), &Style { colour, ..PLAIN });
            assert!(text.contains(most), "{text:?}");
            for line in text.lines().filter(|line| line.contains('\x1b')) {
                let last = line.rfind("\x1b[").expect("there is one");
                assert!(line[last..].starts_with("\x1b[0m"), "{line:?} leaves its colour behind");
            }
        }
        assert!(!render(&comb(), &PLAIN).contains('\x1b'));
    }

    #[test]
    fn levels_rise_with_counts() {
        let levels: Vec<u8> = (0..=1000).map(|count| level(count, 1000)).collect();
        assert!(levels.is_sorted());
        assert_eq!((levels[0], levels[1], levels[1000]), (0, 1, LEVELS));
        assert_eq!(level(1, 1), LEVELS, "the most is the most, also where it is one");
    }
}
