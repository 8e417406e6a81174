//! `cargo xtask speed sched` and `speed sim`: the scheduler and the simulation. Times of single calls and steps
//! are medians in one process; of those the median over several processes is reported, and beside it the least
//! and the most.

#[path = "../../../../../crates/serve-sched/benches/cases/mod.rs"]
mod cases;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::TaskResult;
use crate::cli::{SpeedSched, SpeedSim};
use cases::{Decoding, trace};

struct Measured {
    name: &'static str,
    value: f64,
    unit: &'static str,
    /// The least and the most over processes, where there were several.
    between: Option<(f64, f64)>,
}

impl Measured {
    fn json(&self) -> String {
        let Self {
            name, value, unit, ..
        } = self;
        let between = self.between.map_or_else(String::new, |(least, most)| {
            format!(r#","least":{least:.3},"most":{most:.3}"#)
        });
        format!(r#"{{"name":"{name}","value":{value:.3},"unit":"{unit}"{between}}}"#)
    }

    fn text(&self) -> String {
        let Self {
            name, value, unit, ..
        } = self;
        let between = self.between.map_or_else(String::new, |(least, most)| {
            format!("   {least:.3} to {most:.3}")
        });
        format!("{name:<32} {value:>12.3} {unit}{between}")
    }
}

/// Measures the scheduler, or the one case that another process of this program asks for.
pub(crate) fn run_sched(options: &SpeedSched) -> TaskResult {
    match &options.case {
        Some(case) => one_case(case)?,
        None => sched(&mut report(options.json))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures the simulation.
pub(crate) fn run_sim(options: &SpeedSim) -> TaskResult {
    let trace = options.trace.as_deref().map(read_trace).transpose()?;
    sim(trace, &mut report(options.json))?;
    Ok(ExitCode::SUCCESS)
}

fn report(json: bool) -> impl FnMut(Measured) -> Result<(), String> {
    move |measured| {
        let line = match json {
            true => measured.json(),
            false => measured.text(),
        };
        writeln!(io::stdout(), "{line}").map_err(|error| format!("standard output: {error}"))
    }
}

fn read_trace(path: &Path) -> Result<trace::Trace, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    trace::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

type Report<'a> = &'a mut dyn FnMut(Measured) -> Result<(), String>;

/// Measures each case in processes of its own, so that what one of them finds of memory and of the
/// machine is no property of the number.
fn sched(report: Report<'_>) -> Result<(), String> {
    for (name, _) in CASES {
        let mut values = Vec::new();
        for _ in 0..PROCESSES {
            values.push(in_fresh_process(name)?);
        }
        values.sort_by(f64::total_cmp);
        report(Measured {
            name,
            value: values[values.len() / 2],
            unit: "us",
            between: Some((values[0], values[values.len() - 1])),
        })?;
    }
    Ok(())
}

/// How many processes measure a case.
const PROCESSES: usize = 7;

/// What one case measures.
enum Case {
    /// A submit with a million waiting.
    Submit,
    /// A cancel with a million waiting.
    Cancel,
    /// Plan and complete.
    Step {
        running: u32,
        waiting: u32,
        /// Positions of each running request.
        context: u32,
    },
}

const fn step(running: u32, waiting: u32, context: u32) -> Case {
    Case::Step {
        running,
        waiting,
        context,
    }
}

const CASES: [(&str, Case); 8] = [
    ("submit_1m_waiting", Case::Submit),
    ("cancel_1m_waiting", Case::Cancel),
    ("step_16_running_100k_waiting", step(16, 100_000, 1_000)),
    ("step_256_running", step(256, 0, 1_000)),
    ("step_256_running_100k_waiting", step(256, 100_000, 1_000)),
    ("step_256_running_16k_context", step(256, 100_000, 16_000)),
    (
        "step_1024_running_100k_waiting",
        step(1_024, 100_000, 1_000),
    ),
    (
        "step_1024_running_16k_context",
        step(1_024, 100_000, 16_000),
    ),
];

fn in_fresh_process(case: &str) -> Result<f64, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{case}: {error}");
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let output = Command::new(program)
        .args(["speed", "sched", "--case", case])
        .output()
        .map_err(|error| failed(&error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim()
        .parse()
        .map_err(|error| failed(&format!("{error} in {text:?}")))
}

/// Measures a case in this process and prints the number alone.
fn one_case(name: &str) -> Result<(), String> {
    let known = CASES.iter().find(|(known, _)| *known == name);
    let (_, case) = known.ok_or_else(|| format!("{name:?} is not a case"))?;
    writeln!(io::stdout(), "{}", case.median_us())
        .map_err(|error| format!("standard output: {error}"))
}

impl Case {
    /// The median time in microseconds. Calls are timed by the hundred, so that reading the clock
    /// does not count.
    fn median_us(&self) -> f64 {
        let (waiting, rounds, calls) = (1_000_000, 1_000, 100);
        match *self {
            Self::Submit => {
                let mut crowd = cases::Crowd::new(waiting);
                let submits = (0..rounds).map(|_| {
                    let fresh = crowd.requests(calls);
                    timed(|| fresh.into_iter().for_each(|request| crowd.submit(request)))
                });
                median_us(submits.collect()) / calls as f64
            }
            Self::Cancel => {
                let mut crowd = cases::Crowd::new(waiting);
                let ids = crowd.some_ids(rounds * calls);
                let cancels = ids
                    .chunks(calls as usize)
                    .map(|ids| timed(|| ids.iter().for_each(|&id| crowd.cancel(id))));
                median_us(cancels.collect()) / calls as f64
            }
            Self::Step {
                running,
                waiting,
                context,
            } => {
                let mut decoding = Decoding::new(running, waiting, context);
                let steps = (0..1_000).map(|_| {
                    let planning = timed(|| decoding.plan());
                    decoding.execute();
                    planning + timed(|| decoding.complete())
                });
                median_us(steps.collect())
            }
        }
    }
}

/// The median, which a machine that is busy with something else disturbs less than the mean.
fn median_us(mut samples: Vec<Duration>) -> f64 {
    samples.sort();
    samples[samples.len() / 2].as_secs_f64() * 1e6
}

fn sim(trace: Option<trace::Trace>, report: Report<'_>) -> Result<(), String> {
    for (name, reuse_prefixes) in [("sim_1m_wall", true), ("sim_1m_wall_no_reuse", false)] {
        let mut rows = Vec::new();
        let elapsed = timed(|| rows = cases::simulate_poisson(1_000_000, reuse_prefixes));
        report(Measured {
            name,
            value: elapsed.as_secs_f64(),
            unit: "s",
            between: None,
        })?;
        if rows.len() != 1_000_000 {
            return Err(format!("the simulation gave {} rows", rows.len()));
        }
    }
    if let Some(peak_mib) = peak_memory_mib() {
        report(Measured {
            name: "sim_1m_rss",
            value: peak_mib,
            unit: "MiB",
            between: None,
        })?;
    }
    if let Some(trace) = trace {
        let elapsed = timed(|| drop(cases::simulate_trace(&trace)));
        report(Measured {
            name: "sim_conversation_wall",
            value: elapsed.as_secs_f64(),
            unit: "s",
            between: None,
        })?;
    }
    Ok(())
}

/// The most memory that the process has ever had resident, where Linux tells.
fn peak_memory_mib() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1_024.0)
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = std::time::Instant::now();
    work();
    start.elapsed()
}
