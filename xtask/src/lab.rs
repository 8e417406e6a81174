//! The commands of the lab: they are known here, so that `--help` and the rules for documents have them, and
//! they are done by its program.

use std::ffi::OsString;
use std::process::Command;

use crate::cargo::{self, TaskResult};

#[path = "../lab/src/cli.rs"]
mod cli;

pub(crate) use cli::Task;

/// The lab, and what it starts: the server, and the client that measures it.
const PROGRAMS: [&str; 3] = ["lab", "serve", "serve-bench"];

/// Builds the lab and hands it a command line; its exit code becomes ours.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> TaskResult {
    let metadata = match cargo::build(&PROGRAMS)? {
        Ok(metadata) => metadata,
        Err(code) => return Ok(code),
    };
    let program = metadata.target_directory.join("release/lab");
    let mut lab = Command::new(program);
    cargo::forget_package(&mut lab);
    Ok(cargo::exit_code(lab.args(args).status()?))
}
