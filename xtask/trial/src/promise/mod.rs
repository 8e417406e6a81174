//! What the server promises under overload, on the real binary, in real time, with the control beside
//! it.
//!
//! The device is the mock with a measured GPU's step times. Four servers run at once, each far from
//! busy itself, since their devices only pretend:
//!
//! - *budget* is offered twice what it can do, and takes what it can answer within a target;
//!   *everybody* is its control and takes all;
//! - *aging* is offered as many paid requests as it can do and some free ones, and lets a request that has
//!   waited for a while go first; *no aging* is its control.

mod offered;
mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use serve_bench::servers::{Program, Settings};
use serve_core::Span;
use serve_core::mock::CostModel;
use tokio::time::Instant;

use crate::server::{Served, ServedError, program};
use offered::{Offered, Row, Stream, offer, watch};
pub use verdict::Promise;
use verdict::{Aging, Overload};

/// Tokens of each answer.
const OUTPUT_TOKENS: u32 = 64;
/// Tokens of each prompt.
const PROMPT_WORDS: usize = 16;
/// Requests in one step.
const BATCH: u32 = 16;
/// Within this each request that is taken is to be answered.
const TARGET: Duration = Duration::from_millis(3_000);
/// Who has waited this long goes first.
const AGE_AFTER: Duration = Duration::from_millis(2_000);

/// How long, and which requests.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The `serve` binary; without one, the one beside this program.
    pub serve: Option<PathBuf>,
    /// How long requests come.
    pub lasts: Duration,
    /// Fixes when they come.
    pub seed: u64,
}

/// Runs the four servers and says what became of each promise.
///
/// # Errors
///
/// [`ServedError`] when a server cannot be started.
pub async fn promises(trial: &Trial) -> Result<Vec<Promise>, ServedError> {
    let program = program(trial.serve.clone())?;
    let overload = Offered {
        streams: vec![Stream {
            class: "paid",
            rate_per_s: 2.0 * capacity_per_s(),
        }],
        lasts: trial.lasts,
        patience: Duration::from_secs(5),
        seed: trial.seed,
    };
    let two_classes = Offered {
        streams: vec![
            Stream {
                class: "paid",
                rate_per_s: capacity_per_s(),
            },
            Stream {
                class: "free",
                rate_per_s: 0.05 * capacity_per_s(),
            },
        ],
        patience: Duration::from_secs(15),
        ..overload.clone()
    };
    let budget = settings()
        .with("latency_budget", TARGET.as_secs_f64().to_string())
        .with("order", "fifo");
    let everybody = settings().with("latency_budget", "0").with("order", "fifo");
    let aging = settings().with("order", "aging-tiers");
    let no_aging = aging.clone().with("age_after", "0");
    let aging = aging.with("age_after", AGE_AFTER.as_secs_f64().to_string());
    let (budget, everybody, aging, no_aging) = tokio::try_join!(
        served(&program, &budget, &overload),
        served(&program, &everybody, &overload),
        served(&program, &aging, &two_classes),
        served(&program, &no_aging, &two_classes),
    )?;
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
    Ok(overload
        .promises()
        .into_iter()
        .chain(aging.promises())
        .collect())
}

struct Seen {
    rows: Vec<Row>,
    live: Vec<Duration>,
}

async fn served(
    program: &Program,
    settings: &Settings,
    offered: &Offered,
) -> Result<Seen, ServedError> {
    let server = Served::start(program, settings).await?;
    let address = server.address();
    let until = Instant::now() + offered.lasts;
    let (rows, live) = tokio::join!(offer(address, offered), watch(address, until));
    server.stop().await;
    Ok(Seen { rows, live })
}

/// What all four servers have in common. Nobody is refused for the length of the queue alone.
fn settings() -> Settings {
    let settings = [
        ("backend", "mock"),
        ("mock_speed", "1"),
        ("context", "512"),
        ("queue_cap", "0"),
        ("drain_timeout", "0"),
        ("log", "off"),
    ];
    let settings = settings
        .into_iter()
        .fold(Settings::default(), |all, (name, value)| {
            all.with(name, value)
        });
    settings.with("max_batch", BATCH.to_string())
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
