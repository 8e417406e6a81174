//! `cargo xtask speed start-up`: how long `serve` takes from its start to being ready, and how much memory
//! it needs for that, beside the weights and the KV cache that it says it has.
//!
//! The first start fills the page cache and is not counted.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use serve_bench::analysis::median;
use serve_bench::figure::Figure;
use thiserror::Error;

use crate::TaskResult;
use crate::child::Server;
use crate::cli::SpeedStartUp;
use crate::place;
use crate::process::peak_resident_mib;

/// How long a server may load.
const PATIENCE: Duration = Duration::from_secs(600);
const MIB: f64 = 1_048_576.0;

/// What a server did not tell.
#[derive(Debug, Error)]
#[error("/proc/{pid}/status has no VmHWM; peak memory is read there, which Linux has")]
struct NoPeak {
    pid: u32,
}

/// One start.
#[derive(Clone, Copy, Debug)]
struct Start {
    ready: Duration,
    /// The most that was resident at once, also of files.
    peak_bytes: f64,
    memory: Memory,
}

/// What the banner says of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Memory {
    weights_bytes: f64,
    kv_bytes: f64,
}

/// Starts the server again and again, and prints what it took.
pub(crate) fn run(options: &SpeedStartUp) -> TaskResult {
    let serve = place::beside("serve")?;
    let mut starts = Vec::new();
    for _ in 0..=options.runs {
        starts.push(start(&serve, options)?);
    }
    let starts = &starts[1..];
    let seconds = || starts.iter().map(|start| start.ready.as_secs_f64());
    let most = |peak: f64, start: &Start| peak.max(start.peak_bytes);
    let peak = starts.iter().fold(0.0, most);
    let Memory {
        weights_bytes: weights,
        kv_bytes: kv,
    } = starts[0].memory;
    let rows = [
        ("ready_p50", median(seconds()).unwrap_or(f64::NAN), "s"),
        ("ready_max", seconds().fold(0.0, f64::max), "s"),
        ("peak_resident", peak / 1e6, "MB"),
        ("weights", weights / 1e6, "MB"),
        ("kv_cache", kv / 1e6, "MB"),
        ("peak_of_weights", peak / weights, "x"),
        ("peak_of_weights_and_kv", peak / (weights + kv), "x"),
    ];
    for (name, value, unit) in rows {
        let model = options.model.as_deref().unwrap_or("embedded");
        let figure = Figure::new(name, value, unit);
        let figure = match options.json {
            true => figure.with("model", model),
            false => figure,
        };
        println!("{}", figure.line(options.json));
    }
    if !options.json {
        println!(
            "pages of the KV cache become resident when a request first writes to them, so the peak of \
             a start has few of them"
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn start(serve: &Path, options: &SpeedStartUp) -> Result<Start, Box<dyn std::error::Error>> {
    let mut command = Command::new(serve);
    command.args(["--log", "warn"]);
    command.args(options.model.iter().flat_map(|model| ["--model", model]));
    command.args(&options.serve);
    let begin = Instant::now();
    let server = Server::start(&mut command)?;
    // Both are in the banner, which is printed when the server is ready.
    let memory = server.printed("sizes of weights and KV cache", PATIENCE, memory)?;
    let ready = begin.elapsed();
    server.address(PATIENCE)?;
    let pid = server.pid();
    let peak_bytes = peak_resident_mib(pid).ok_or(NoPeak { pid })? * MIB;
    server.stop()?;
    Ok(Start {
        ready,
        peak_bytes,
        memory,
    })
}

/// `memory    weights 256.6 MiB, KV cache 16.0 MiB for 8,192 tokens`
fn memory(line: &str) -> Option<Memory> {
    let mib = |after: &str| -> Option<f64> {
        let (_, rest) = line.split_once(after)?;
        let (number, _) = rest.split_once(" MiB")?;
        number.parse().ok()
    };
    let line = line.trim_start();
    line.starts_with("memory").then_some(())?;
    Some(Memory {
        weights_bytes: mib("weights ")? * MIB,
        kv_bytes: mib("KV cache ")? * MIB,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banner_is_understood() {
        let line = "  memory    weights 256.6 MiB, KV cache 1440.0 MiB for 32,768 tokens";
        let found = memory(line).unwrap();
        assert_eq!(found.weights_bytes, 256.6 * MIB);
        assert_eq!(found.kv_bytes, 1_440.0 * MIB);
        assert_eq!(
            memory("  kind      weights 1.0 MiB, KV cache 1.0 MiB"),
            None
        );
        assert_eq!(memory("serve: weights: 25% of 256.6 MiB"), None);
    }
}
