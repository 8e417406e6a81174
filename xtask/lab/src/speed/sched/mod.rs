//! `cargo xtask speed sched` and `speed sim`: the scheduler and the simulation. Times of single calls and steps
//! are medians in one process; of those the median over several processes is reported, and beside it the least
//! and the most.

#[path = "../../../../../crates/serve-sched/benches/cases/mod.rs"]
mod cases;
#[cfg(test)]
mod tests;
mod trace;

use std::io::{self, Write};
use std::process::{Command, ExitCode};
use std::time::Duration;

use serve_bench::analysis::quantile as quantile_of;
use serve_bench::figure::Figure;
use serve_bench::workload::trace::{Traced, recorded};

use crate::TaskResult;
use crate::cli::{SpeedSched, SpeedSim};
use crate::percentile::percentile_ms;
use crate::process::peak_resident_mib;
use cases::Decoding;

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
    let trace = options.trace.as_deref().map(recorded).transpose()?;
    sim(trace, &mut report(options.json))?;
    Ok(ExitCode::SUCCESS)
}

fn report(json: bool) -> impl FnMut(&Figure) -> Result<(), String> {
    move |figure| {
        writeln!(io::stdout(), "{}", figure.line(json))
            .map_err(|error| format!("standard output: {error}"))
    }
}

type Report<'a> = &'a mut dyn FnMut(&Figure) -> Result<(), String>;

/// Measures each case in processes of its own, so that what one of them finds of memory and of the
/// machine is no property of the number.
fn sched(report: Report<'_>) -> Result<(), String> {
    for (name, _) in &CASES {
        let mut values = Vec::new();
        for _ in 0..PROCESSES {
            values.push(in_fresh_process(name)?);
        }
        let figure = |quantile| quantile_of(values.iter().copied(), quantile).unwrap_or(f64::NAN);
        let median = Figure::new(*name, figure(0.5), "us");
        report(&median.with("least", figure(0.0)).with("most", figure(1.0)))?;
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
                median_us(&submits.collect::<Vec<_>>()) / calls as f64
            }
            Self::Cancel => {
                let mut crowd = cases::Crowd::new(waiting);
                let ids = crowd.some_ids(rounds * calls);
                let cancels = ids
                    .chunks(calls as usize)
                    .map(|ids| timed(|| ids.iter().for_each(|&id| crowd.cancel(id))));
                median_us(&cancels.collect::<Vec<_>>()) / calls as f64
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
                median_us(&steps.collect::<Vec<_>>())
            }
        }
    }
}

/// The median, which a machine that is busy with something else disturbs less than the mean.
fn median_us(samples: &[Duration]) -> f64 {
    percentile_ms(samples, 50) * 1e3
}

fn sim(trace: Option<Vec<Traced>>, report: Report<'_>) -> Result<(), String> {
    for (name, reuse_prefixes) in [("sim_1m_wall", true), ("sim_1m_wall_no_reuse", false)] {
        let mut rows = Vec::new();
        let elapsed = timed(|| rows = cases::simulate_poisson(1_000_000, reuse_prefixes));
        report(&Figure::new(name, elapsed.as_secs_f64(), "s"))?;
        if rows.len() != 1_000_000 {
            return Err(format!("the simulation gave {} rows", rows.len()));
        }
    }
    if let Some(peak_mib) = peak_resident_mib(std::process::id()) {
        report(&Figure::new("sim_1m_rss", peak_mib, "MiB"))?;
    }
    if let Some(trace) = trace {
        let elapsed = timed(|| drop(trace::simulate(&trace)));
        report(&Figure::new(
            "sim_conversation_wall",
            elapsed.as_secs_f64(),
            "s",
        ))?;
    }
    Ok(())
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = std::time::Instant::now();
    work();
    start.elapsed()
}
