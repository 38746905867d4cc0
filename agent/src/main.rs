//! The binary `tailcomb`.

fn main() -> std::process::ExitCode {
    tailcomb::cli::main()
}
