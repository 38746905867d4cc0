//! Text for a terminal: heatmaps of latency over time.

pub mod axis;
pub mod heatmap;
pub mod terminal;

pub use heatmap::{Chart, Mark, Panel, render};
pub use terminal::{Colour, Style};
