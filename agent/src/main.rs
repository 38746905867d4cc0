//! The binary `tailcomb`.

fn main() -> std::process::ExitCode {
    // The demo's server, clients and metrics writer are this binary under other names.
    tailcomb::demo::role::dispatch().unwrap_or_else(tailcomb::cli::main)
}
