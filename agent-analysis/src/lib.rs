//! Pure statistics.
