//! `cargo xtask sanitize`: the tests of serve-model's kernels, where its `unsafe` code is, under tools that
//! see what a test alone does not: memory that is not theirs, and threads that race.
//!
//! They are compiled as a crate of their own, `crates/serve-model/sanitize`, since everything has to be
//! compiled anew for each tool, and Burn takes minutes.

use std::process::{Command, ExitCode};

use clap::{Args, ValueEnum};
use thiserror::Error;

use crate::cargo::{self, TaskResult};

const MANIFEST: &str = "crates/serve-model/sanitize/Cargo.toml";
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// What Miri interprets: threads that share an operation, and the formats. Products are made with rayon,
/// whose own dependencies Miri objects to.
const INTERPRETED: [&str; 2] = ["team::", "stored::"];

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The tools, one after the other [default: address]
    #[arg(value_enum)]
    tools: Vec<Tool>,
}

/// A tool that watches the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tool {
    /// AddressSanitizer: memory out of bounds or freed, on all instructions
    Address,
    /// ThreadSanitizer: threads that race, on all instructions; needs a nightly toolchain with rust-src, as
    /// the standard library is compiled for it too
    Thread,
    /// Miri, an interpreter: undefined behaviour of any kind, data races and orders of memory that this
    /// processor does not have; needs a nightly toolchain with miri
    Miri,
}

/// A toolchain lacks what a tool needs.
#[derive(Debug, Error)]
#[error(
    "{tool} needs a nightly toolchain with {component}: rustup toolchain install nightly --component {component}"
)]
struct NoComponent {
    tool: &'static str,
    component: &'static str,
}

/// Runs the tests under each tool; the first that finds something ends the run.
pub(crate) fn run(options: &Options) -> TaskResult {
    let tools = match options.tools.as_slice() {
        [] => &[Tool::Address],
        tools => tools,
    };
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    for tool in tools {
        let mut command = tool.command();
        command.current_dir(&metadata.workspace_root);
        if let Some((tool, component)) = tool.needs()
            && !is_installed(component)
        {
            return Err(NoComponent { tool, component }.into());
        }
        println!("\n=== {tool:?}: the tests of {MANIFEST} ===");
        let status = cargo::status(&mut command)?;
        if !status.success() {
            return Ok(cargo::exit_code(status));
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Tool {
    fn needs(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Address => None,
            Self::Thread => Some(("ThreadSanitizer", "rust-src")),
            Self::Miri => Some(("Miri", "miri")),
        }
    }

    fn command(self) -> Command {
        let tests = ["--manifest-path", MANIFEST, "--lib", "--target", TARGET];
        match self {
            Self::Address => {
                let mut command = cargo::command(&["test", "--release"]);
                // The sanitizer is an unstable flag of the same compiler as everything else.
                command.env("RUSTC_BOOTSTRAP", "1");
                command.env("RUSTFLAGS", "-Zsanitizer=address");
                command.args(tests);
                command.args(["--target-dir", "target/sanitize/address"]);
                command
            }
            Self::Thread => {
                let mut command = nightly(&["test", "-Zbuild-std", "--release"]);
                // crossbeam's fences, which the sanitizer does not understand, become accesses that it does.
                let flags = "-Zsanitizer=thread --cfg crossbeam_sanitize_thread";
                command.env("RUSTFLAGS", flags);
                command.args(tests);
                command.args(["--target-dir", "target/sanitize/thread"]);
                command
            }
            Self::Miri => {
                let mut command = nightly(&["miri", "test"]);
                // Property tests read their number of cases from the environment.
                command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
                command.env("PROPTEST_CASES", "4");
                command.args(tests);
                command.args(["--target-dir", "target/sanitize/miri", "--"]);
                command.args(INTERPRETED);
                command
            }
        }
    }
}

/// cargo of the nightly toolchain.
fn nightly(args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(args);
    command
}

fn is_installed(component: &str) -> bool {
    let mut rustup = Command::new("rustup");
    rustup.args(["+nightly", "component", "list", "--installed"]);
    let output = rustup
        .output()
        .ok()
        .filter(|output| output.status.success());
    let listed = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    listed.is_some_and(|text| text.lines().any(|line| line.starts_with(component)))
}
