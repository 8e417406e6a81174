//! The sections of the matrix: one question each, in the order in which they are measured.

mod batching;
mod ladder;
mod limits;
mod memory;
mod overload;
mod streaming;
mod tenants;
mod waves;

use std::fmt;

use super::{Bench, MatrixError};

/// Name and question of each section.
pub(crate) const NAMES: &[(&str, &str)] = &[
    (
        "batching",
        "what do batches buy, one at a time against static against continuous?",
    ),
    ("steps", "what does a step cost as its batch grows?"),
    (
        "concurrency-8",
        "eight clients, one place against a place for each",
    ),
    (
        "streaming",
        "when does a reader see the first word, streamed or not?",
    ),
    (
        "first-token",
        "when does the first token come, below and above capacity?",
    ),
    (
        "admission",
        "twice the capacity, with and without a limit on the queue",
    ),
    (
        "tiers",
        "paid before free, and free refused at a shallower depth",
    ),
    (
        "aging",
        "how long does the lowest class wait, with and without aging?",
    ),
    (
        "waves",
        "64 clients at once, three times: who is answered in time?",
    ),
    (
        "kv",
        "long prompts with half the KV cache: who has to yield?",
    ),
    (
        "limits",
        "four times the load, short of slots or of memory: what does a latency budget keep?",
    ),
    (
        "tenants",
        "what is left for a light tenant beside one that floods?",
    ),
    ("ladder", "from a light load to the capacity, in steps"),
];

/// A section that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownSection(pub String);

impl fmt::Display for UnknownSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        write!(
            f,
            "there is no section {:?}; there are {}",
            self.0,
            names.join(", ")
        )
    }
}

impl std::error::Error for UnknownSection {}

/// The name of a section, checked.
///
/// # Errors
///
/// [`UnknownSection`], with the names that exist.
pub(crate) fn named(name: &str) -> Result<String, UnknownSection> {
    let known = NAMES.iter().any(|(known, _)| *known == name);
    known
        .then(|| name.to_owned())
        .ok_or_else(|| UnknownSection(name.to_owned()))
}

/// Measures the section of this name into `bench.section`.
pub(super) async fn measure(bench: &mut Bench<'_>, name: &str) -> Result<(), MatrixError> {
    match name {
        "batching" => batching::modes(bench).await,
        "steps" => batching::steps(bench).await,
        "concurrency-8" => batching::eight(bench).await,
        "streaming" => streaming::on_and_off(bench).await,
        "first-token" => streaming::first_token(bench).await,
        "admission" => overload::admission(bench).await,
        "tiers" => overload::tiers(bench).await,
        "aging" => overload::aging(bench).await,
        "waves" => waves::waves(bench).await,
        "kv" => memory::kv(bench).await,
        "limits" => limits::limits(bench).await,
        "tenants" => tenants::tenants(bench).await,
        _ => ladder::ladder(bench).await,
    }
}
