//! A long run of everything that clients do, with memory, descriptors and threads sampled: none of them grows.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use serve_bench::analysis::median;

use super::target::{Serve, Target};
use crate::TaskResult;
use crate::process::status_mib;

/// Between two samples.
const EVERY: Duration = Duration::from_secs(2);

/// MiB by which the resident memory of the last quarter may be above that of the second.
const GROWTH_MIB: f64 = 16.0;

/// One look at the process.
struct Sample {
    resident_mib: f64,
    files: usize,
    threads: usize,
}

/// Soaks the server with the embedded model for so many seconds.
pub(super) fn run(serve: &Serve, seconds: u64, as_json: bool) -> TaskResult {
    let target = serve.start(&[])?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let samples = thread::scope(|scope| {
        for client in 0..4 {
            let target = &target;
            scope.spawn(move || be_clients(target, client, end));
        }
        let mut samples = Vec::new();
        while Instant::now() < end {
            thread::sleep(EVERY);
            let (files, threads) = target.held()?;
            let resident_mib = status_mib(target.pid(), "VmRSS:").unwrap_or(f64::NAN);
            if as_json {
                println!(
                    "{}",
                    json!({"resident_mib": resident_mib, "files": files, "threads": threads})
                );
            }
            samples.push(Sample {
                resident_mib,
                files,
                threads,
            });
        }
        Ok::<_, String>(samples)
    })?;
    target.settled(Duration::from_secs(30))?;
    let arrived = target.metric("serve_requests_arrived_total")?;
    let status = target.stop()?;
    let quarter = samples.len() / 4;
    let of = |from: usize, to: usize, what: fn(&Sample) -> f64| {
        median(samples[from..to].iter().map(what)).unwrap_or(f64::NAN)
    };
    let mut faults = Vec::new();
    for (name, what, most) in [
        (
            "resident_mib",
            (|it| it.resident_mib) as fn(&Sample) -> f64,
            GROWTH_MIB,
        ),
        ("files", |it| it.files as f64, 16.0),
        ("threads", |it| it.threads as f64, 4.0),
    ] {
        let (before, after) = (
            of(quarter, 2 * quarter, what),
            of(3 * quarter, samples.len(), what),
        );
        let held = after - before <= most;
        if !held {
            faults.push(name);
        }
        if as_json {
            println!(
                "{}",
                json!({"soak": name, "second_quarter": before, "last_quarter": after, "held": held})
            );
        } else {
            println!(
                "{name}: {before:.1} in the second quarter, {after:.1} in the last, {most} more may be"
            );
        }
    }
    if !as_json {
        println!("{arrived} requests in {seconds} s; after SIGTERM {status}");
    }
    Ok(match faults.is_empty() && status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Asks, streams, leaves, and sends what means nothing, until `end`.
fn be_clients(target: &Target, client: u64, end: Instant) {
    let path = "/v1/completions";
    let mut turn = client;
    while Instant::now() < end {
        turn += 1;
        // What becomes of each is the attacks' business.
        match turn % 6 {
            0 => drop(target.ask(path, br#"{"prompt": "It was", "max_tokens": 16}"#)),
            1 => drop(target.ask(
                path,
                br#"{"prompt": "It was", "max_tokens": 16, "stream": true}"#,
            )),
            2 => {
                let left = target.sent(
                    path,
                    br#"{"prompt": "It was", "max_tokens": 200, "stream": true}"#,
                );
                thread::sleep(Duration::from_millis(turn * 37 % 200));
                drop(left);
            }
            3 => drop(target.ask(path, b"{\"prompt\": ")),
            4 => drop(target.ask("/v1/nothing", b"{}")),
            _ => {
                let long = "a ".repeat(500_000);
                drop(target.ask(path, format!(r#"{{"prompt": "{long}"}}"#).as_bytes()));
            }
        }
    }
}
