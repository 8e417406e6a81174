//! `cargo xtask ci`: every check that a change must pass, cheapest first.
//!
//! All steps share one profile, one target folder and one feature set (the whole workspace), so that
//! the CPU backend, minutes of compile time, is compiled once.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, CommandFactory};

use crate::cargo::{self, TaskResult};
use crate::deny::Check;
use crate::{Cli, examples, lab, package, tidy};

/// How the checks are run.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Run the remaining steps after one has failed
    #[arg(long)]
    keep_going: bool,
    /// End with the official OpenAI clients, which need Python, PyPI, Node and npm
    #[arg(long)]
    openai: bool,
    /// Only the decoder on GPUs: that it builds with the features for CUDA and WebGPU, and its tests on
    /// what GPUs there are. Takes half an hour the first time
    #[arg(long, conflicts_with = "openai")]
    cuda: bool,
}

/// One step: its name, and what it does.
struct Step {
    name: &'static str,
    action: Action,
}

enum Action {
    /// A cargo command line.
    Cargo(&'static [&'static str]),
    /// The house rules, in this process.
    Tidy,
    /// What the workspace depends on, where cargo-deny is installed.
    Deny(Check),
    /// Every example, as its readers start it.
    Examples,
    /// A crate outside of the workspace on the packaged ones.
    Package,
    /// A command of the lab.
    Lab(&'static [&'static str]),
}

const STEPS: [Step; 12] = [
    Step {
        name: "format",
        // xtask/peers is no member of the workspace; its format is all of it that is checked.
        action: Action::Cargo(&["fmt", "--all", "--", "--check", "xtask/peers/src/main.rs"]),
    },
    Step {
        name: "tidy",
        action: Action::Tidy,
    },
    Step {
        name: "dependencies",
        action: Action::Deny(Check::Rules),
    },
    Step {
        name: "advisories",
        action: Action::Deny(Check::Advisories),
    },
    Step {
        name: "clippy",
        action: Action::Cargo(&[
            "clippy",
            "--release",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]),
    },
    Step {
        name: "build",
        action: Action::Cargo(&["build", "--release", "--workspace", "--bins"]),
    },
    Step {
        name: "test",
        action: Action::Cargo(&[
            "test",
            "--release",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
        ]),
    },
    Step {
        name: "matrix",
        action: Action::Lab(&["matrix-check"]),
    },
    Step {
        name: "examples",
        action: Action::Examples,
    },
    Step {
        name: "doc tests",
        action: Action::Cargo(&["test", "--release", "--workspace", "--doc"]),
    },
    Step {
        name: "package",
        action: Action::Package,
    },
    Step {
        name: "docs",
        action: Action::Cargo(&["doc", "--release", "--workspace", "--no-deps"]),
    },
];

/// What `--cuda` runs. Burn with its GPU backends is another Burn, and gets a target folder of its own.
const CUDA_STEPS: [Step; 3] = [
    Step {
        name: "cuda clippy",
        action: Action::Cargo(&[
            "clippy",
            "--release",
            "--workspace",
            "--all-targets",
            "--features",
            CUDA_FEATURES,
            "--target-dir",
            CUDA_TARGET,
            "--",
            "-D",
            "warnings",
        ]),
    },
    Step {
        name: "cuda build",
        action: Action::Cargo(&[
            "build",
            "--release",
            "--workspace",
            "--bins",
            "--features",
            CUDA_FEATURES,
            "--target-dir",
            CUDA_TARGET,
        ]),
    },
    Step {
        name: "cuda test",
        action: Action::Cargo(&[
            "test",
            "--release",
            "--workspace",
            "--features",
            CUDA_FEATURES,
            "--target-dir",
            CUDA_TARGET,
            "--lib",
            "--test",
            "it",
            "--",
            "gpu",
            "devices",
        ]),
    },
];

const CUDA_FEATURES: &str = "serve-http/cuda,serve-http/webgpu";
const CUDA_TARGET: &str = "target/cuda";

const OPENAI: Step = Step {
    name: "openai clients",
    action: Action::Lab(&["clients", "--only", "openai,openai-node"]),
};

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// Runs all steps and prints how each went and how long it took.
pub(crate) fn run(options: &Options) -> TaskResult {
    let steps: Vec<&Step> = if options.cuda {
        CUDA_STEPS.iter().collect()
    } else {
        STEPS
            .iter()
            .chain(options.openai.then_some(&OPENAI))
            .collect()
    };
    let mut seconds = Vec::new();
    let verdicts = walk(&steps, options.keep_going, |step| {
        println!("\n=== {}: {} ===", step.name, step.action.describe());
        let start = Instant::now();
        let verdict = step.action.run().unwrap_or_else(|error| {
            eprintln!("error: {error}");
            Verdict::Failed
        });
        seconds.push((step.name, start.elapsed()));
        if verdict == Verdict::Failed {
            println!("\n*** {} failed: {}", step.name, step.action.describe());
        }
        verdict
    });
    println!("\n{}", summary(&steps, &verdicts, &seconds));
    let failed = verdicts.contains(&Verdict::Failed);
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

impl Action {
    fn describe(&self) -> String {
        match self {
            Self::Cargo(args) => format!("cargo {}", args.join(" ")),
            Self::Deny(check) => format!("cargo {}", check.args().join(" ")),
            Self::Tidy => "cargo xtask tidy".to_owned(),
            Self::Lab(args) => format!("cargo xtask {}", args.join(" ")),
            Self::Examples => "cargo xtask examples".to_owned(),
            Self::Package => "cargo xtask package".to_owned(),
        }
    }

    fn run(&self) -> Result<Verdict, Box<dyn std::error::Error>> {
        let passed = match self {
            Self::Cargo(args) => {
                let mut command = cargo::command(args);
                // Only rustdoc reads this variable; a broken link in a doc is an error.
                command.env("RUSTDOCFLAGS", "-D warnings");
                cargo::status(&mut command)?.success()
            }
            Self::Tidy => tidy::run(&Cli::command())? == ExitCode::SUCCESS,
            Self::Examples => examples::run()? == ExitCode::SUCCESS,
            Self::Package => package::run()? == ExitCode::SUCCESS,
            Self::Deny(check) => {
                if let Some(lacks) = check.lacks() {
                    println!("skipped: {lacks}");
                    return Ok(Verdict::Skipped);
                }
                check.run()?
            }
            Self::Lab(args) => lab::run(args.iter().map(Into::into))? == ExitCode::SUCCESS,
        };
        Ok(match passed {
            true => Verdict::Passed,
            false => Verdict::Failed,
        })
    }
}

/// Runs the steps in order; after a failure the rest is skipped, unless `keep_going`. A step that this machine lacks
/// something for skips itself and stops nothing.
fn walk(
    steps: &[&Step],
    keep_going: bool,
    mut execute: impl FnMut(&Step) -> Verdict,
) -> Vec<Verdict> {
    let mut stopped = false;
    let each = steps.iter().map(|step| {
        if stopped {
            return Verdict::Skipped;
        }
        let verdict = execute(step);
        stopped = verdict == Verdict::Failed && !keep_going;
        verdict
    });
    each.collect()
}

/// A table: step, verdict, minutes and seconds.
fn summary(steps: &[&Step], verdicts: &[Verdict], times: &[(&str, Duration)]) -> String {
    let mut out = String::new();
    for (step, verdict) in steps.iter().zip(verdicts) {
        let time = times.iter().find(|(name, _)| *name == step.name);
        let time = time.map_or_else(|| "-".to_owned(), |(_, time)| clock(*time));
        let word = match verdict {
            Verdict::Passed => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Skipped => "skipped",
        };
        let _ = writeln!(out, "{:<14} {word:<8} {time:>8}", step.name);
    }
    let total = clock(times.iter().map(|(_, time)| *time).sum());
    let _ = write!(out, "{:<14} {:<8} {total:>8}", "total", "");
    out
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked(failing: &str, keep_going: bool) -> Vec<Verdict> {
        let steps = STEPS.iter().take(4).collect::<Vec<_>>();
        walk(&steps, keep_going, |step| {
            match (step.name == failing, &step.action) {
                (true, _) => Verdict::Failed,
                (false, Action::Deny(Check::Advisories)) => Verdict::Skipped,
                (false, _) => Verdict::Passed,
            }
        })
    }

    #[test]
    fn the_first_failure_ends_the_run() {
        use Verdict::{Failed, Passed, Skipped};
        assert_eq!(walked("tidy", false), [Passed, Failed, Skipped, Skipped]);
        assert_eq!(walked("tidy", true), [Passed, Failed, Passed, Skipped]);
        let all = [Passed, Passed, Passed, Skipped];
        assert_eq!(walked("none", false), all, "what is skipped stops nothing");
    }

    #[test]
    fn the_summary_tells_failed_from_skipped() {
        let steps = STEPS.iter().take(3).collect::<Vec<_>>();
        let verdicts = [Verdict::Passed, Verdict::Failed, Verdict::Skipped];
        let times = [
            ("format", Duration::from_secs(3)),
            ("tidy", Duration::from_secs(62)),
        ];
        let table = summary(&steps, &verdicts, &times);
        let rows = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let expected: [&[&str]; 4] = [
            &["format", "ok", "0:03"],
            &["tidy", "FAILED", "1:02"],
            &["dependencies", "skipped", "-"],
            &["total", "1:05"],
        ];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn every_building_step_shares_the_profile_and_the_feature_set() {
        for step in &STEPS {
            let Action::Cargo(args) = step.action else {
                continue;
            };
            let builds = args[0] != "fmt";
            assert_eq!(args.contains(&"--release"), builds, "{}", step.name);
            assert_eq!(args.contains(&"--workspace"), builds, "{}", step.name);
        }
    }
}
