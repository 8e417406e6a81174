//! `cargo xtask`: what is done to this repository rather than by its products.
//!
//! It depends on nothing heavy, so that it builds in seconds. What needs a model, a server or the scheduler is a
//! command of the lab, whose program is built and started from here.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool answers on its standard streams"
)]

mod cargo;
mod ci;
mod deny;
mod examples;
mod gpu;
mod lab;
mod mutants;
mod package;
mod sanitize;
mod tidy;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Tasks of the serve workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// The whole check: format, house rules, dependencies, clippy, build, tests, doc tests, docs
    Ci(ci::Options),
    /// The house rules: dependency edges, file openings and lengths, docs that name what exists
    Tidy,
    /// Write what others can name of serve-core and serve-sched, so that review shows what changes of it
    Api,
    /// Start every example: it explains itself, takes a seed, prints JSON, and survives `| head`
    Examples,
    /// Package what others depend on, and build a crate outside of the workspace on it as docs/embedding.md says
    Package,
    /// Run the tests of the kernels under a sanitizer or Miri
    Sanitize(sanitize::Options),
    /// Run the tests of the CUDA path on a GPU that is emulated on this processor
    #[command(after_help = gpu::emulate::EXIT_CODES)]
    GpuEmulate(gpu::emulate::Options),
    /// Compile the kernels of a step for every generation of GPUs, and compare what a decode step launches
    #[command(after_help = gpu::compile::EXIT_CODES)]
    GpuCompile(gpu::compile::Options),
    /// Make deliberate faults in the scheduler one by one and see whether its tests notice
    #[command(after_help = mutants::EXIT_CODES)]
    Mutants(mutants::Options),
    #[command(flatten)]
    Lab(lab::Task),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Ci(options) => ci::run(&options),
        Task::Tidy => tidy::run(&Cli::command()),
        Task::Api => tidy::write_api(),
        Task::Examples => examples::run(),
        Task::Package => package::run(),
        Task::Sanitize(options) => sanitize::run(&options),
        Task::GpuEmulate(options) => gpu::emulate::run(&options),
        Task::GpuCompile(options) => gpu::compile::run(&options),
        Task::Mutants(options) => mutants::run(&options),
        Task::Lab(_) => lab::run(std::env::args_os().skip(1)),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_lab_is_asked_for_what_it_knows_and_a_wrong_argument_is_refused_here() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.task);
        for line in [
            "xtask speed sim --trace t.csv --json",
            "xtask speed decode random:qwen2.5-0.5b --batches 1,4",
            "xtask check-model DIR --quantize q8",
        ] {
            assert!(matches!(parse(line), Ok(Task::Lab(_))), "{line}");
        }
        for line in [
            "xtask speed sim --trase t.csv",
            "xtask campaign --requests 0",
            "xtask gpu-compile --only 75",
            "xtask gpu-compile --only 90 --write",
            "xtask upstream --seconds 0",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
