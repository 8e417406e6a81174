//! The `lab` binary, which `cargo xtask` builds and starts.

use std::process::ExitCode;

fn main() -> ExitCode {
    lab::main()
}
