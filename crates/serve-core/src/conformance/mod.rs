//! One suite that every [`Backend`] must pass: the mock, a decoder on a CPU, a decoder on a GPU.
//!
//! Each request first runs alone, in one segment for its prompt and one for each further token. Then
//! the same requests run in every other way that a scheduler may choose, and must give the same
//! tokens: together, in chunks, in ragged mixes, after preemption, over shared prefix blocks, after
//! others with the same id. A block table comes in pieces, as it grows, and starts over after a
//! preemption. Some of them are penalised, and some ask for log-probabilities. [`check`] runs all of it; [`Driver`] drives a backend by hand.

mod driver;
mod scenarios;

pub use driver::{Driver, Run};

use std::ops::Range;

use thiserror::Error;

use crate::{Backend, BackendError, InvalidLimits, RequestId, StepId, TokenId, TokenLogprob};

/// What the suite needs to know of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suite {
    /// Prompts are drawn from `0..vocabulary`; at least 1.
    pub vocabulary: u32,
    /// Fixes prompts, block tables and schedules.
    pub seed: u64,
}

/// How a backend broke the contract.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Failure {
    /// A scenario failed.
    #[error("{scenario}: {failure}")]
    In {
        /// Which way of running the requests.
        scenario: &'static str,
        /// What went wrong.
        failure: Box<Failure>,
    },
    /// Nothing can run under the limits that it states.
    #[error("the backend's limits allow nothing: {0}")]
    Limits(#[from] InvalidLimits),
    /// The limits are too small for the suite, which is no fault of the backend.
    #[error("the suite needs {what} of at least {needed} and the backend has {found}")]
    TooSmall {
        /// The limit.
        what: &'static str,
        /// The least that will do.
        needed: u32,
        /// What the backend states.
        found: u32,
    },
    /// The limits changed.
    #[error("the limits are not the same before and after step {}", .0.get())]
    LimitsChanged(StepId),
    /// A plan that keeps the contract failed.
    #[error("step {}: {error}", step.get())]
    Backend {
        /// The step.
        step: StepId,
        /// What the backend said.
        error: BackendError,
    },
    /// The outcome names another step.
    #[error("the outcome of step {} names step {}", asked.get(), answered.get())]
    Step {
        /// The step that ran.
        asked: StepId,
        /// The step that the outcome names.
        answered: StepId,
    },
    /// The outcome does not list exactly the requests that were to sample, in the plan's order.
    #[error("step {}: expected tokens of {expected:?}, got tokens of {found:?}", step.get())]
    Order {
        /// The step.
        step: StepId,
        /// The plan's requests with `sample` set.
        expected: Vec<RequestId>,
        /// The outcome's requests.
        found: Vec<RequestId>,
    },
    /// The outcome lacks the log-probabilities of a request that asks for them, has those of one that
    /// does not, or they are not what they are to be.
    #[error("{request} asks for {asked:?} alternatives, and its log-probabilities are {found:?}")]
    Logprobs {
        /// The request.
        request: RequestId,
        /// What it asks for.
        asked: Option<u8>,
        /// What the outcome has.
        found: Option<Vec<TokenLogprob>>,
    },
    /// A token depends on something else than its request.
    #[error("{request} at position {position}: {expected} when it runs alone, {found} here")]
    Token {
        /// The request.
        request: RequestId,
        /// The position of the token.
        position: u32,
        /// The token when the request runs alone.
        expected: TokenId,
        /// The token here.
        found: TokenId,
    },
    /// The driver was told to run something that is not there.
    #[error("{request} has no positions {positions:?} to run")]
    Misuse {
        /// The request.
        request: RequestId,
        /// The positions.
        positions: Range<u32>,
    },
}

/// Runs the whole suite; `make` builds a fresh backend each time.
///
/// # Errors
///
/// The first [`Failure`], with the scenario that it happened in.
pub fn check<B: Backend>(make: impl FnMut() -> B, suite: Suite) -> Result<(), Failure> {
    scenarios::run_all(make, suite)
}
