//! Pure statistics: exact histograms and time windows. No I/O, no clock, no unsafe: the caller brings values and times.
#![forbid(unsafe_code)]

pub mod histogram;
pub mod scale;
pub mod window;
