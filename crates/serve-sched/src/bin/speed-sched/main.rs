//! Measures the scheduler and the simulation: `speed-sched sched|sim [--json] [--trace FILE]`. Times
//! of single calls and steps are medians.
//!
//! With `--json` one object a line, `name`, `value`, `unit`; without, the same as text. `--trace`
//! adds a simulation of a recorded conversation trace. Exit code 2 is a wrong argument.

mod cases;
#[cfg(test)]
mod tests;
mod trace;

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use cases::Decoding;

#[derive(Default)]
struct Options {
    suite: String,
    json: bool,
    trace: Option<String>,
}

struct Measured {
    name: &'static str,
    value: f64,
    unit: &'static str,
}

fn main() -> ExitCode {
    let result = parse(std::env::args().skip(1)).and_then(|options| run(&options));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // Nothing is left to report a failure of standard error to.
            let _ = writeln!(io::stderr(), "speed-sched: {message}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(word) = words.next() {
        match word.as_str() {
            "sched" | "sim" if options.suite.is_empty() => options.suite = word,
            "--json" => options.json = true,
            "--trace" => {
                let file = words.next().ok_or("--trace needs a file")?;
                options.trace = Some(file);
            }
            other => {
                return Err(format!(
                    "{other:?} is not an argument; known are sched, sim, --json, --trace FILE"
                ));
            }
        }
    }
    match options.suite.as_str() {
        "" => Err("name what to measure: sched or sim".to_owned()),
        _ => Ok(options),
    }
}

fn run(options: &Options) -> Result<(), String> {
    let trace = options.trace.as_deref().map(read_trace).transpose()?;
    let mut report = |measured: Measured| {
        let Measured { name, value, unit } = measured;
        let line = match options.json {
            true => format!(r#"{{"name":"{name}","value":{value:.3},"unit":"{unit}"}}"#),
            false => format!("{name:<32} {value:>12.3} {unit}"),
        };
        writeln!(io::stdout(), "{line}").map_err(|error| format!("standard output: {error}"))
    };
    match options.suite.as_str() {
        "sched" => sched(&mut report),
        _ => sim(trace, &mut report),
    }
}

fn read_trace(path: &str) -> Result<trace::Trace, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    trace::parse(&text).map_err(|error| format!("{path}: {error}"))
}

type Report<'a> = &'a mut dyn FnMut(Measured) -> Result<(), String>;

fn sched(report: Report<'_>) -> Result<(), String> {
    let waiting = 1_000_000;
    // Timed by the hundred, so that reading the clock does not count.
    let (rounds, calls) = (1_000, 100);
    let mut crowd = cases::Crowd::new(waiting);
    let submits = (0..rounds).map(|_| {
        let fresh = crowd.requests(calls);
        timed(|| fresh.into_iter().for_each(|request| crowd.submit(request)))
    });
    let value = median_us(submits.collect()) / calls as f64;
    report(Measured {
        name: "submit_1m_waiting",
        value,
        unit: "us",
    })?;
    let ids = crowd.some_ids(rounds * calls);
    let cancels = ids
        .chunks(calls as usize)
        .map(|ids| timed(|| ids.iter().for_each(|&id| crowd.cancel(id))));
    let value = median_us(cancels.collect()) / calls as f64;
    report(Measured {
        name: "cancel_1m_waiting",
        value,
        unit: "us",
    })?;
    drop(crowd);
    for (name, running) in [
        ("step_16_running_100k_waiting", 16),
        ("step_256_running_100k_waiting", 256),
        ("step_1024_running_100k_waiting", 1_024),
    ] {
        let mut decoding = Decoding::new(running, 100_000);
        let steps = (0..1_000).map(|_| {
            let planning = timed(|| decoding.plan());
            decoding.execute();
            planning + timed(|| decoding.complete())
        });
        report(Measured {
            name,
            value: median_us(steps.collect()),
            unit: "us",
        })?;
    }
    Ok(())
}

/// The median, which a machine that is busy with something else disturbs less than the mean.
fn median_us(mut samples: Vec<Duration>) -> f64 {
    samples.sort();
    samples[samples.len() / 2].as_secs_f64() * 1e6
}

fn sim(trace: Option<trace::Trace>, report: Report<'_>) -> Result<(), String> {
    let mut rows = Vec::new();
    let elapsed = timed(|| rows = cases::simulate_poisson(1_000_000));
    report(Measured {
        name: "sim_1m_wall",
        value: elapsed.as_secs_f64(),
        unit: "s",
    })?;
    if rows.len() != 1_000_000 {
        return Err(format!("the simulation gave {} rows", rows.len()));
    }
    if let Some(peak_mib) = peak_memory_mib() {
        report(Measured {
            name: "sim_1m_rss",
            value: peak_mib,
            unit: "MiB",
        })?;
    }
    drop(rows);
    if let Some(trace) = trace {
        let elapsed = timed(|| drop(cases::simulate_trace(&trace)));
        report(Measured {
            name: "sim_conversation_wall",
            value: elapsed.as_secs_f64(),
            unit: "s",
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

#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "measuring real time is what this binary is for"
)]
fn timed(work: impl FnOnce()) -> Duration {
    let start = std::time::Instant::now();
    work();
    start.elapsed()
}
