//! What the edge costs: the real `serve` on the mock in a process of its own, and clients that read
//! streams.
//!
//! Two loads for each number of streams. *Free*: the mock takes no time, so everything that is
//! measured is the server's own, and it is as busy as it can be. *Paced*: the mock takes twice the
//! speed of the measured GPU, as steps of one token for each stream, so that each token is a write of
//! its own: what a server does all day.
//!
//! The control of the first-token time is the same work without HTTP: the same service in this
//! process, asked by function call.

mod control;
mod load;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use serve_bench::experiments::servers::{Program, ServerSettings};
use serve_http::LaunchError;
use thiserror::Error;

use crate::cli::{Pace, SpeedEdge};
use crate::percentile::percentile_ms;
use crate::provenance::provenance;
use crate::server::{Served, ServedError, program};
use crate::{TaskResult, block_on};
use serve_bench::figure::Figure;

/// Tokens of one answer.
const OUTPUT_TOKENS: u32 = 128;
/// Words of one prompt.
const PROMPT_WORDS: u64 = 32;
/// Positions that one request may have; prompt and answer fit.
const CONTEXT: u32 = 512;
/// Prompt tokens in one step at most: all prompts of a few hundred streams.
const STEP_TOKENS: u32 = 16_384;

/// Why nothing was measured.
#[derive(Debug, Error)]
enum EdgeError {
    /// The server.
    #[error(transparent)]
    Server(#[from] ServedError),
    /// The system does not tell how much processor time a process has used.
    #[error("/proc/PID/stat does not tell the server's processor time; this needs Linux")]
    NoCpuTime,
    /// Clients were refused or cut short.
    #[error("{0} requests failed")]
    Failed(u64),
    /// The control.
    #[error("the control did not start: {0}")]
    Control(#[from] LaunchError),
}

/// What a load came to.
#[derive(Clone, Debug, Default)]
struct Measured {
    requests: u64,
    errors: u64,
    tokens: u64,
    took: Duration,
    first_tokens: Vec<Duration>,
}

/// One load.
#[derive(Clone, Copy, Debug)]
struct Load {
    streams: u32,
    /// Answers that each stream reads, one after the other.
    rounds: u32,
    pace: Pace,
    seed: u64,
}

/// Measures, and prints each figure as soon as it is there.
pub(crate) fn run(options: &SpeedEdge) -> TaskResult {
    let report = |figure: Figure| writeln!(io::stdout(), "{}", figure.line(options.json));
    provenance(options.seed).into_iter().try_for_each(report)?;
    let program = program(options.serve.clone())?;
    let mut errors = 0;
    for &pace in &options.pace {
        for &streams in &options.streams {
            let load = Load::new(streams, pace, options.seed);
            let (measured, cpu, control) = block_on(measure(&program, &load))??;
            errors += measured.errors + control.errors;
            let figures = figures(&load, &measured, cpu, &control);
            figures.into_iter().try_for_each(report)?;
        }
    }
    match errors {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(EdgeError::Failed(errors).into()),
    }
}

/// A load against the real binary, the processor time that it cost the server, and the control.
async fn measure(
    program: &Program,
    load: &Load,
) -> Result<(Measured, Duration, Measured), EdgeError> {
    let (measured, cpu) = served(program, load).await?;
    Ok((measured, cpu, control::run(load).await?))
}

impl Load {
    fn new(streams: u32, pace: Pace, seed: u64) -> Self {
        let answers = match pace {
            Pace::Free => 3_000,
            Pace::Paced => 200,
        };
        Self {
            streams,
            rounds: (answers / streams).clamp(1, answers / 4),
            pace,
            seed,
        }
    }

    /// Clients do not begin all at once, but within this time.
    fn spread(&self) -> Duration {
        match self.pace {
            Pace::Free => Duration::ZERO,
            Pace::Paced => Duration::from_millis(u64::from(self.streams).min(1_000)),
        }
    }

    /// How much faster than the measured GPU the mock is.
    fn mock_speed(&self) -> f64 {
        match self.pace {
            // A step of 16 ms takes no whole nanosecond.
            Pace::Free => 1e9,
            Pace::Paced => 2.0,
        }
    }

    fn settings(&self) -> ServerSettings {
        let numbers = [
            ("max_batch", self.streams),
            ("queue_cap", 0),
            ("context", CONTEXT),
            ("step_tokens", STEP_TOKENS),
        ];
        let settings = ServerSettings::default()
            .with("backend", "mock")
            .with("mock_speed", self.mock_speed().to_string())
            .with("mock_seed", self.seed.to_string())
            .with("log", "off");
        numbers.iter().fold(settings, |settings, (name, number)| {
            settings.with(name, number.to_string())
        })
    }

    /// The prompt of one request.
    fn prompt(&self, client: u32, round: u32) -> String {
        use serve_core::rng::{Rng, mix2};

        let request = u64::from(client) << 32 | u64::from(round);
        let mut rng = Rng::new(mix2(self.seed, request));
        let words = [
            "bade", "gizo", "hepa", "lomi", "sano", "tobe", "vire", "zako",
        ];
        let drawn = (0..PROMPT_WORDS).map(|_| words[rng.below(8) as usize]);
        drawn.flat_map(|word| [" ", word]).collect()
    }
}

/// The load against the real binary, and the processor time that it cost the server.
async fn served(program: &Program, load: &Load) -> Result<(Measured, Duration), EdgeError> {
    let server = Served::start(program, &load.settings()).await?;
    let cpu = || server.cpu_time().ok_or(EdgeError::NoCpuTime);
    let before = cpu()?;
    let measured = load::run(server.address(), load).await;
    let used = cpu()?.saturating_sub(before);
    server.stop().await;
    Ok((measured, used))
}

fn figures(load: &Load, measured: &Measured, cpu: Duration, control: &Measured) -> Vec<Figure> {
    let pace = match load.pace {
        Pace::Free => "free",
        Pace::Paced => "paced",
    };
    let name = |what: &str| format!("edge_{pace}_{}_{what}", load.streams);
    let secs = measured.took.as_secs_f64();
    let tokens = measured.tokens.max(1) as f64;
    let mut figures = vec![
        Figure::new(name("requests"), measured.requests as f64 / secs, "1/s"),
        Figure::new(name("tokens"), measured.tokens as f64 / secs, "1/s"),
        Figure::new(
            name("cpu_per_token"),
            cpu.as_secs_f64() * 1e6 / tokens,
            "us",
        ),
    ];
    for (percent, label) in [(50, "p50"), (99, "p99")] {
        let edge = percentile_ms(&measured.first_tokens, percent);
        let without = percentile_ms(&control.first_tokens, percent);
        figures.extend([
            Figure::new(name(&format!("ttft_{label}")), edge, "ms"),
            Figure::new(name(&format!("ttft_{label}_in_process")), without, "ms"),
            Figure::new(name(&format!("ttft_{label}_added")), edge - without, "ms"),
        ]);
    }
    figures.push(Figure::new(name("errors"), measured.errors as f64, "1"));
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_token_of_every_stream_is_counted() {
        let load = Load {
            streams: 3,
            rounds: 2,
            pace: Pace::Free,
            seed: 1,
        };
        let service = control::launch(&load).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_http::run(service, listener, std::future::pending()));
        let measured = load::run(address, &load).await;
        assert_eq!((measured.requests, measured.errors), (6, 0));
        assert_eq!(measured.tokens, u64::from(6 * OUTPUT_TOKENS));
        assert_eq!(measured.first_tokens.len(), 6);
        let control = control::run(&load).await.unwrap();
        assert_eq!((control.requests, control.errors), (6, 0));
    }
}
