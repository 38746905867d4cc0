//! Which processes are measured: `--target` and `auto`.
