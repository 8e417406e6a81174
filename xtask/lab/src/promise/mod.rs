//! What the server promises under overload, on the real binary, in real time, with the control beside
//! it.
//!
//! The device is the mock with a measured GPU's step times. Servers run at once, some in turns with others, each far
//! from busy itself, since their devices only pretend:
//!
//! - *budget* is offered twice what it can do, and takes what it can answer within a target;
//!   *everybody* is its control and takes all;
//! - *aging* is offered as many paid requests as it can do and some free ones, and lets a request that
//!   has waited for a while go first; *no aging* is its control;
//! - `limits`: the same target at four times the load, where slots bind and where memory does;
//! - `tenants`: a light tenant beside one that floods, behind each admission.

mod command;
mod limits;
mod offered;
mod simulated;
mod tenants;
mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use futures::future::try_join_all;
use serve_bench::experiments::servers::{Program, ServerSettings};
use serve_core::Span;
use serve_core::mock::CostModel;
use thiserror::Error;
use tokio::time::Instant;

use crate::server::{Served, ServedError, program};
pub(crate) use command::run;
use offered::{Offered, Row, Shape, Stream, Who, offer, watch};
use simulated::PromisesError;
use verdict::{Aging, Overload, Promise, Verdict, none_wrong};

/// Tokens of each answer.
const OUTPUT_TOKENS: u32 = 64;
/// Tokens of each prompt.
const PROMPT_WORDS: usize = 16;
/// Requests in one step.
const BATCH: u32 = 16;
const SHAPE: Shape = Shape {
    prompt_words: PROMPT_WORDS,
    output_tokens: OUTPUT_TOKENS,
    timeout: None,
};
/// Within this each request that is taken is to be answered.
const TARGET: Duration = Duration::from_millis(3_000);
/// A request that has waited this long goes first.
const AGE_AFTER: Duration = Duration::from_millis(2_000);

/// How long, and which requests.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// The `serve` binary; without one, the one beside this program.
    pub(crate) serve: Option<PathBuf>,
    /// How long requests come.
    pub(crate) lasts: Duration,
    /// Fixes when they come.
    pub(crate) seed: u64,
}

/// A trial that cannot be made.
#[derive(Debug, Error)]
pub(crate) enum TrialError {
    /// A server cannot be started.
    #[error(transparent)]
    Served(#[from] ServedError),
    /// A capacity cannot be simulated.
    #[error(transparent)]
    Capacity(#[from] PromisesError),
}

/// Runs the servers and says what became of each promise.
///
/// # Errors
///
/// [`TrialError`] when a server cannot be started or the capacity of one is not known.
pub(crate) async fn promises(trial: &Trial) -> Result<Vec<Promise>, TrialError> {
    let program = program(trial.serve.clone())?;
    let mut rows = Vec::new();
    let mut promises = overload_and_aging(&program, trial, &mut rows).await?;
    promises.extend(slots_and_memory(&program, trial, &mut rows).await?);
    promises.extend(beside_a_flood(&program, trial, &mut rows).await?);
    promises.push(none_wrong(&rows));
    Ok(promises)
}

async fn overload_and_aging(
    program: &Program,
    trial: &Trial,
    rows: &mut Vec<Row>,
) -> Result<Vec<Promise>, ServedError> {
    let overload = Offered {
        streams: vec![Stream {
            who: Who::Class("paid"),
            rate_per_s: 2.0 * capacity_per_s(),
        }],
        shape: SHAPE,
        lasts: trial.lasts,
        patience: Duration::from_secs(5),
        seed: trial.seed,
    };
    let two_classes = Offered {
        streams: vec![
            Stream {
                who: Who::Class("paid"),
                rate_per_s: capacity_per_s(),
            },
            Stream {
                who: Who::Class("free"),
                rate_per_s: 0.05 * capacity_per_s(),
            },
        ],
        patience: Duration::from_secs(15),
        ..overload.clone()
    };
    let settings = settings().with("max_batch", BATCH.to_string());
    let first_come = settings.clone().with("order", "fifo");
    let budget = first_come
        .clone()
        .with("latency_budget", TARGET.as_secs_f64().to_string());
    let everybody = first_come.with("latency_budget", "0");
    let aging = settings.with("order", "aging-tiers");
    let no_aging = aging.clone().with("age_after", "0");
    let aging = aging.with("age_after", AGE_AFTER.as_secs_f64().to_string());
    let (budget, everybody, aging, no_aging) = tokio::try_join!(
        served(program, &budget, &overload),
        served(program, &everybody, &overload),
        served(program, &aging, &two_classes),
        served(program, &no_aging, &two_classes),
    )?;
    for seen in [&budget, &everybody, &aging, &no_aging] {
        rows.extend_from_slice(&seen.rows);
    }
    let overload = Overload {
        lasts: trial.lasts,
        budget: &budget.rows,
        everybody: &everybody.rows,
        live: [&budget.live[..], &everybody.live[..]].concat(),
    };
    let aging = Aging {
        aging: &aging.rows,
        no_aging: &no_aging.rows,
    };
    Ok([overload.promises(), aging.promises()].concat())
}

/// Half as long: four times the load makes as many requests.
async fn slots_and_memory(
    program: &Program,
    trial: &Trial,
    rows: &mut Vec<Row>,
) -> Result<Vec<Promise>, TrialError> {
    let limits = limits::limits(trial.lasts / 2, trial.seed)?;
    let each = limits.iter().map(|limit| async {
        tokio::try_join!(
            served(program, &limit.on, &limit.offered),
            served(program, &limit.off, &limit.offered),
        )
    });
    let mut promises = Vec::new();
    for (limit, (on, off)) in limits.iter().zip(try_join_all(each).await?) {
        promises.extend(limit.promises(&on.rows, &off.rows));
        rows.extend([on.rows, off.rows].concat());
    }
    Ok(promises)
}

/// Three admissions at a time, with the light tenant alone beside them each time.
async fn beside_a_flood(
    program: &Program,
    trial: &Trial,
    rows: &mut Vec<Row>,
) -> Result<Vec<Promise>, TrialError> {
    let tenants = tenants::tenants(trial.lasts / 2, trial.seed)?;
    let (settings, offered) = &tenants.alone;
    let mut promises = Vec::new();
    for guards in tenants.guards.chunks(3) {
        let each = guards.iter().map(|guard| async {
            tokio::try_join!(
                served(program, &guard.fair, &guard.offered),
                served(program, &guard.first_come, &guard.offered),
            )
        });
        let (alone, each) =
            tokio::try_join!(served(program, settings, offered), try_join_all(each))?;
        for (guard, (fair, first_come)) in guards.iter().zip(each) {
            promises.extend(guard.promises(&fair.rows, &first_come.rows, &alone.rows));
            rows.extend([fair.rows, first_come.rows].concat());
        }
        rows.extend(alone.rows);
    }
    Ok(promises)
}

struct Seen {
    rows: Vec<Row>,
    live: Vec<Duration>,
}

async fn served(
    program: &Program,
    settings: &ServerSettings,
    offered: &Offered,
) -> Result<Seen, ServedError> {
    let server = Served::start(program, settings).await?;
    let address = server.address();
    let until = Instant::now() + offered.lasts;
    let (rows, live) = tokio::join!(offer(address, offered), watch(address, until));
    server.stop().await;
    Ok(Seen { rows, live })
}

/// What all servers have in common. Nobody is refused for the length of the queue alone.
fn settings() -> ServerSettings {
    let settings = [
        ("backend", "mock"),
        ("mock_speed", "1"),
        ("context", "1024"),
        ("queue_cap", "0"),
        ("drain_timeout", "0"),
        ("log", "off"),
    ];
    settings
        .into_iter()
        .fold(ServerSettings::default(), |all, (name, value)| {
            all.with(name, value)
        })
}

/// Answers a second that the mock can make.
fn capacity_per_s() -> f64 {
    f64::from(BATCH) / service_time().as_secs_f64()
}

/// How long a full batch takes, prompts included.
fn service_time() -> Duration {
    let cost = CostModel::default();
    let load = |segments, prefill_tokens| serve_core::StepLoad {
        segments,
        prefill_tokens,
        ..Default::default()
    };
    let with_prompts = cost.step(&load(1, u64::from(BATCH) * PROMPT_WORDS as u64));
    let prompts = with_prompts.saturating_sub(cost.step(&load(1, 0)));
    let decode: Span = cost.decode(BATCH) * u64::from(OUTPUT_TOKENS);
    (decode + prompts).into()
}
