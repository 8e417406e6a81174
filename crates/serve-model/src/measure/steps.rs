//! Steps of a decoder, timed one by one: for the commands that measure. What they mean, and how
//! many there should be, is theirs to say.

use serve_core::conformance::{Driver, Failure, Run};
use serve_core::rng::Rng;
use serve_core::{
    Backend, BackendError, InvalidRequest, Limits, Request, RequestId, Span, StepOutcome, StepPlan,
    Time, TokenId,
};

use crate::config::ModelConfig;
use crate::decode::DecoderBackend;
use crate::load::ModelInfo;

/// A backend that runs requests with random prompts, and says how long each step took.
#[derive(Debug)]
pub struct TimedSteps {
    driver: Driver<Timed>,
    vocabulary: u64,
    rng: Rng,
    next_id: u64,
}

impl TimedSteps {
    /// Steps of `backend`, which has no requests yet. Prompts are the same on every run.
    ///
    /// # Errors
    ///
    /// [`Failure`] when the backend's limits are not valid.
    pub fn new(backend: DecoderBackend) -> Result<Self, Failure> {
        let vocabulary = backend.decoder().config().vocab_size as u64;
        let timed = Timed {
            backend,
            elapsed: Span::ZERO,
        };
        Ok(Self {
            driver: Driver::new(timed, 1)?,
            vocabulary,
            rng: Rng::new(1),
            next_id: 0,
        })
    }

    /// Announces a request with a random prompt.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] when either number is 0.
    pub fn start(
        &mut self,
        prompt_tokens: u32,
        output_tokens_max: u32,
    ) -> Result<RequestId, InvalidRequest> {
        let id = RequestId::new(self.next_id);
        self.next_id += 1;
        let token = |_| TokenId::new(self.rng.below(self.vocabulary) as u32);
        let prompt: Vec<TokenId> = (0..prompt_tokens).map(token).collect();
        let request = Request::new(id, Time::ZERO, prompt, output_tokens_max)?;
        self.driver.start(request);
        Ok(id)
    }

    /// Runs everything that is pending of each request in one step. How long the backend took.
    ///
    /// # Errors
    ///
    /// [`Failure`] when the step fails.
    pub fn run(&mut self, ids: &[RequestId]) -> Result<Span, Failure> {
        let run = |&request: &RequestId| Run {
            request,
            tokens: self.driver.pending(request),
        };
        let runs: Vec<Run> = ids.iter().map(run).collect();
        let sampled = self.driver.step(&runs)?.len();
        debug_assert_eq!(sampled, ids.len());
        Ok(self.driver.backend().elapsed)
    }

    /// The memory's own speed, in bytes a second, where the device can tell.
    ///
    /// # Errors
    ///
    /// [`BackendError`] when the device fails.
    pub fn bandwidth(&mut self) -> Result<Option<f64>, BackendError> {
        self.driver.backend().backend.bandwidth()
    }

    /// Lets a request go.
    pub fn release(&mut self, id: RequestId) {
        self.driver.release(id);
    }
}

/// What a decode step reads at least: every weight, and the cache of its sequences, once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepBytes {
    /// Of the weights.
    pub weights: u64,
    /// Of keys and values, for each token of each context.
    pub kv_per_token: f64,
}

impl StepBytes {
    /// Of a model that was loaded with KV blocks of `block_size` positions.
    pub fn of(config: &ModelConfig, info: &ModelInfo, block_size: u32) -> Self {
        // Of an embedding table that is not the head as well, a step reads a row for each sequence.
        let looked_up = match config.tie_word_embeddings {
            true => 0,
            false => {
                let bytes = if info.stored_dtype == "f32" { 4 } else { 2 };
                config.vocab_size * config.hidden_size * bytes
            }
        };
        // The pool has one block more than it hands out.
        let pool_tokens = info.kv_tokens + u64::from(block_size);
        Self {
            weights: info.weights_bytes - looked_up as u64,
            kv_per_token: info.kv_bytes as f64 / pool_tokens as f64,
        }
    }

    /// The least time of a step of `batch` sequences that have `context` tokens each.
    pub fn floor(&self, batch: u32, context: u32, bytes_per_s: f64) -> Span {
        let kv = f64::from(batch) * f64::from(context) * self.kv_per_token;
        Span::from_secs_f64((self.weights as f64 + kv) / bytes_per_s)
    }
}

/// The one in the middle; of two, the longer.
///
/// # Panics
///
/// When there is none.
pub fn median<T: Ord + Copy>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Remembers how long the last step took.
#[derive(Debug)]
struct Timed {
    backend: DecoderBackend,
    elapsed: Span,
}

impl Backend for Timed {
    fn limits(&self) -> Limits {
        self.backend.limits()
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        let result = self.backend.execute(plan, outcome);
        self.elapsed = outcome.elapsed;
        result
    }
}
