//! `serve-bench self-test`: what this client can carry on this machine.

use std::num::NonZeroU64;
use std::process::ExitCode;

use crate::analysis::table::number;
use crate::experiments::capacity::{Carried, Trial};
use crate::experiments::progress::interrupted;
use clap::Args;

use super::{CommandResult, VOID};

/// Arguments of the command.
#[derive(Args, Debug)]
pub(crate) struct SelfTest {
    /// Requests a second to send
    #[arg(long, value_name = "PER_SECOND", default_value_t = 5_000.0)]
    rate: f64,
    /// Chunks a second to read
    #[arg(long, value_name = "PER_SECOND", default_value_t = 500_000.0)]
    chunks: f64,
    /// Chunks that the server writes at once
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    chunks_per_write: usize,
    /// How long each of the two loads lasts
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
}

/// Chunks in each answer of the load that is about chunks.
const LONG_ANSWER: usize = 1_000;

/// Chunks in each answer of the load that is about requests.
const SHORT_ANSWER: usize = 4;

/// Sends both loads and says of each whether it was sustained.
pub(crate) async fn run(options: &SelfTest) -> CommandResult {
    let stop = interrupted(None);
    let trial = |rate_per_s: f64, chunks| Trial {
        rate_per_s,
        requests: NonZeroU64::new((rate_per_s * options.seconds) as u64).unwrap_or(NonZeroU64::MIN),
        chunks,
        chunks_per_write: options.chunks_per_write,
    };
    let requests = trial(options.rate, SHORT_ANSWER).run(stop.clone()).await?;
    out!("requests  {}/s asked: {}", options.rate, words(&requests));
    let chunks = trial(options.chunks / LONG_ANSWER as f64, LONG_ANSWER)
        .run(stop)
        .await?;
    out!(
        "chunks    {}/s asked, {} in a write: {}",
        options.chunks,
        options.chunks_per_write,
        words(&chunks)
    );
    match requests.is_sustained() && chunks.is_sustained() {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::from(VOID)),
    }
}

fn words(carried: &Carried) -> String {
    let delivered = &carried.delivered;
    let verdict = match (carried.is_sustained(), delivered.void.first()) {
        (true, _) => "sustained".to_owned(),
        (false, Some(reason)) => format!("NOT sustained: {reason}"),
        (false, None) => "NOT sustained: not every answer came whole".to_owned(),
    };
    format!(
        "{verdict}\n          {} of {} answers whole, {}/s delivered, {} chunks/s; schedule lag p99 {} ms; {:.1} \
         cores, the server's threads included",
        carried.ok.0,
        carried.ok.1,
        number(delivered.delivered_per_s),
        number(Some(carried.chunks_per_s)),
        number(delivered.lag_p99_ms),
        carried.cpu_cores,
    )
}
