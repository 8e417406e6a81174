//! `cargo xtask mutants`: deliberate faults in a crate of pure decisions, and whether its tests notice.
//!
//! All of serve-sched are some thousand faults of minutes each, so a run takes a shard of them, spread over
//! the whole crate. `target/mutants.out` has the list and the output of each.

use std::process::ExitCode;

use clap::Args;

use crate::cargo::{self, TaskResult};

pub(crate) const EXIT_CODES: &str = "It needs cargo-mutants (cargo install cargo-mutants --locked). Exit \
                                     code 0: every fault was noticed; 2: one was not, or could not be tried.";

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The crate in which to make faults; its own tests are to notice them
    #[arg(long, default_value = "serve-sched")]
    package: String,
    /// Which of how many equal parts of the faults to try, counted from 0
    #[arg(long, value_name = "K/N", default_value = "0/50")]
    shard: String,
    /// Only faults in these files, as a pattern such as '**/admit/*.rs'
    #[arg(long, value_name = "PATTERN")]
    file: Option<String>,
}

/// Makes the faults of a shard one after another and runs the tests on each.
pub(crate) fn run(options: &Options) -> TaskResult {
    let mut mutants =
        cargo::command(&["mutants", "--output", "target", "--sharding", "round-robin"]);
    mutants.args(["--package", &options.package, "--shard", &options.shard]);
    // Its tests in optimised builds take seconds, and a fault can make any loop endless.
    mutants.args(["--timeout-multiplier", "4", "--minimum-test-timeout", "60"]);
    if let Some(file) = &options.file {
        mutants.args(["--file", file]);
    }
    let status = cargo::status(&mut mutants)?;
    Ok(match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(2),
    })
}
