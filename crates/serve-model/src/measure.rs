//! Steps of a decoder, timed one by one: for the commands that measure. What they mean, and how
//! many there should be, is theirs to say.

use serve_core::conformance::{Driver, Failure, Run};
use serve_core::rng::Rng;
use serve_core::{
    Backend, BackendError, InvalidRequest, Limits, Request, RequestId, Span, StepOutcome, StepPlan,
    Time, TokenId,
};

use crate::backend::DecoderBackend;

pub use crate::kernels::ReadSpeed;

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
        self.driver.step(&runs)?;
        Ok(self.driver.backend().elapsed)
    }

    /// Lets a request go.
    pub fn release(&mut self, id: RequestId) {
        self.driver.release(id);
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
