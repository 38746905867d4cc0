//! The binary `tailcomb`.
fn main() {}
