//! One promise at one load: the server, its requests, and what came of them.

use std::path::Path;

use serde::Serialize;
use serve_core::Span;
use thiserror::Error;

use super::Policy;
use serve_bench::analysis::quantile;
use serve_bench::experiments::servers::ServerSettings;
use serve_bench::experiments::simulate::{ModelError, ServerModel, SimulateError, simulate};
use serve_bench::store::record::{Outcome, Record};
use serve_bench::workload::spec::{Spec, SpecError};
use serve_bench::workload::{Workload, WorkloadError};

/// Promises that cannot be simulated.
#[derive(Debug, Error)]
pub(crate) enum PromisesError {
    /// The specification is none.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The workload cannot be made.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// There is no such server.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// It cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

/// What keeps more requests from running at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Binding {
    /// Sixteen places in a batch, and memory for many more.
    Slots,
    /// Memory for sixteen requests, and places for 256.
    Memory,
}

impl Binding {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Slots, Self::Memory];

    /// Its name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Slots => "slots",
            Self::Memory => "memory",
        }
    }

    /// What the server is started with, apart from the policy.
    pub(crate) fn settings(self) -> ServerSettings {
        let (max_batch, kv_tokens) = match self {
            Self::Slots => ("16", "131072"),
            Self::Memory => ("256", "8448"),
        };
        let base = ServerSettings::default()
            .with("queue_cap", "0")
            .with("prefix_cache", "false");
        base.with("max_batch", max_batch)
            .with("kv_tokens", kv_tokens)
    }

    /// Tokens of a prompt and of an answer.
    const fn tokens(self) -> (u32, u32) {
        match self {
            Self::Slots => (100, 60),
            Self::Memory => (480, 48),
        }
    }

    /// Answers a second when everybody waits from the start.
    ///
    /// # Errors
    ///
    /// [`PromisesError`] when it cannot be simulated.
    pub(crate) fn capacity_per_s(self) -> Result<f64, PromisesError> {
        capacity_per_s(&self.settings(), self.tokens())
    }
}

/// Answers a second of the simulated server when everybody waits from the start, with so many tokens in each prompt and
/// each answer.
///
/// # Errors
///
/// [`PromisesError`] when it cannot be simulated.
pub(crate) fn capacity_per_s(
    settings: &ServerSettings,
    tokens: (u32, u32),
) -> Result<f64, PromisesError> {
    const WAITING: u32 = 1_500;
    let arrivals = format!("[arrivals.waves]\nsize = {WAITING}\nevery_s = 1");
    let workload = workload(tokens, &arrivals, WAITING, 1, "")?;
    let server = ServerModel::new(settings)?;
    let simulated = simulate(&workload, &server, Span::ZERO, |_| {})?;
    Ok(f64::from(WAITING) / simulated.end.as_secs_f64())
}

fn workload(
    (prompt, answer): (u32, u32),
    arrivals: &str,
    requests: u32,
    seed: u64,
    rest: &str,
) -> Result<Workload, PromisesError> {
    let text = format!(
        "seed = {seed}\nrequests = {requests}\n{arrivals}\n[request]\nendpoint = \"token_ids\"\n\
         vocabulary = {{ min = 256, max = 1000 }}\nignore_eos = true\n[[prompts]]\nname = \"alike\"\n\
         tokens = {{ fixed = {prompt} }}\noutput_tokens = {{ fixed = {answer} }}\n[measure]\n\
         timeout_s = 1000000\n{rest}"
    );
    Ok(Workload::new(
        Spec::parse("promises", &text)?,
        Path::new(""),
    )?)
}

/// A load with one seed.
pub(super) struct Point {
    pub(super) binding: Binding,
    pub(super) capacity_per_s: f64,
    pub(super) load: f64,
    pub(super) seed: u64,
    pub(super) requests: u32,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Kept {
    /// The p99 of what is promised, of the requests that were taken, in seconds; none if nobody was, or more than one
    /// in a hundred of them had no answer: those whose deadline passes are late, not left out.
    pub(crate) p99_s: Option<f64>,
    /// Answers in time over those that the device can give.
    pub(crate) goodput: f64,
    /// The share of all that was refused.
    pub(crate) refused: f64,
}

impl Kept {
    /// The worst of both in each number.
    pub(super) fn or_worse(self, other: Option<Self>) -> Self {
        let other = other.unwrap_or(self);
        Self {
            p99_s: self.p99_s.zip(other.p99_s).map(|(one, two)| one.max(two)),
            goodput: self.goodput.min(other.goodput),
            refused: self.refused.max(other.refused),
        }
    }
}

impl Point {
    /// Its requests, each with a deadline or none, on a server with a policy or none.
    pub(super) fn simulate(
        &self,
        policy: Option<(&str, &str)>,
        deadline_s: Option<f64>,
    ) -> Result<Vec<Record>, PromisesError> {
        let settings = self.binding.settings();
        let settings = match policy {
            Some((name, value)) => settings.with(name, value),
            None => settings,
        };
        let class = |deadline_s: f64| {
            let deadline_ms = deadline_s * 1e3;
            format!("[[classes]]\nname = \"paid\"\ndeadline_ms = {deadline_ms}\n")
        };
        let arrivals = format!(
            "[arrivals.poisson]\nrate_per_s = {}",
            self.load * self.capacity_per_s
        );
        let classes = deadline_s.map_or_else(String::new, class);
        let tokens = self.binding.tokens();
        let workload = workload(tokens, &arrivals, self.requests, self.seed, &classes)?;
        let mut rows = Vec::new();
        let server = ServerModel::new(&settings)?;
        simulate(&workload, &server, Span::ZERO, |row| rows.push(row))?;
        Ok(rows)
    }

    /// What a promise came to in these rows.
    pub(super) fn kept(&self, promise: Policy, rows: &[Record]) -> Kept {
        let taken = rows.iter().filter(|row| row.outcome != Outcome::Refused);
        let times = taken.map(|row| took_s(promise, row).unwrap_or(f64::INFINITY));
        let times = times.collect::<Vec<_>>();
        let target_s = promise.target_s();
        let in_time = times.iter().filter(|time| **time <= target_s).count() as f64;
        let last_ns = rows.iter().map(|row| row.scheduled_ns).max().unwrap_or(0);
        let able = self.capacity_per_s * last_ns as f64 / 1e9;
        let all = rows.len() as f64;
        let refused = (rows.len() - times.len()) as f64;
        let p99_s = quantile(times, 0.99);
        Kept {
            p99_s: p99_s.filter(|p99_s| p99_s.is_finite()),
            goodput: in_time / able.min(all),
            refused: refused / all,
        }
    }
}

/// How long a request took to what is promised; `None` if it was not answered.
fn took_s(promise: Policy, row: &Record) -> Option<f64> {
    let at_ns = match promise {
        Policy::LatencyBudget | Policy::DeadlineAdmission => row.end_ns,
        Policy::FirstTokenBudget | Policy::ConcurrencyLimit => row.first_token_ns(),
    };
    let took_s = |at_ns: u64| (at_ns - row.scheduled_ns) as f64 / 1e9;
    at_ns.filter(|_| row.outcome == Outcome::Ok).map(took_s)
}
