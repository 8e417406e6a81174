//! The measurement itself: medians of repeated steps, timed by the backend.

use std::error::Error;

use serve_core::conformance::{Driver, Run};
use serve_core::rng::Rng;
use serve_core::{Backend, Request, RequestId, Sampled, Span, Time, TokenId};
use serve_core::{BackendError, Limits, StepOutcome, StepPlan};
use serve_model::DecoderBackend;

/// Steps are repeated until both are reached.
const SAMPLES_MIN: usize = 9;
const SAMPLED_MIN: Span = Span::from_millis(1_000);
/// No batch is measured at more than this many positions, so that sizes stay comparable.
pub(crate) const DECODE_STEPS_MAX: u32 = 64;

/// Remembers how long the last step took.
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

/// Runs prompts and decode steps through the contract between a scheduler and a device.
pub(crate) struct Bench {
    driver: Driver<Timed>,
    vocabulary: u64,
    rng: Rng,
    next_id: u64,
}

impl Bench {
    /// A bench of this model, with prompts that depend on nothing else.
    pub(crate) fn new(backend: DecoderBackend) -> Result<Self, Box<dyn Error>> {
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

    /// The memory's own speed, in bytes a second, where the device can tell.
    pub(crate) fn bandwidth(&mut self) -> Result<Option<f64>, Box<dyn Error>> {
        Ok(self.driver.backend().backend.bandwidth()?)
    }

    /// The median step that runs one whole prompt of `context` tokens.
    pub(crate) fn prefill(&mut self, context: u32) -> Result<Span, Box<dyn Error>> {
        let mut times = Vec::new();
        while !enough(&times) {
            let id = self.start(context)?;
            times.push(self.step(&[id])?);
            self.driver.release(id);
        }
        Ok(median(times))
    }

    /// The median step that runs one position of each of `batch` sequences, from `context` on.
    pub(crate) fn decode(&mut self, batch: u32, context: u32) -> Result<Span, Box<dyn Error>> {
        let mut times = Vec::new();
        while !enough(&times) {
            let mut ids = Vec::new();
            for _ in 0..batch {
                let id = self.start(context)?;
                self.step(&[id])?;
                ids.push(id);
            }
            // The first step of a batch meets cold buffers.
            self.step(&ids)?;
            for _ in 1..DECODE_STEPS_MAX {
                times.push(self.step(&ids)?);
                if enough(&times) {
                    break;
                }
            }
            ids.into_iter().for_each(|id| self.driver.release(id));
        }
        Ok(median(times))
    }

    fn start(&mut self, context: u32) -> Result<RequestId, Box<dyn Error>> {
        let id = RequestId::new(self.next_id);
        self.next_id += 1;
        let token = |_| TokenId::new(self.rng.below(self.vocabulary) as u32);
        let prompt: Vec<TokenId> = (0..context).map(token).collect();
        let request = Request::new(id, Time::ZERO, prompt, DECODE_STEPS_MAX + 1)?;
        self.driver.start(request);
        Ok(id)
    }

    /// Runs everything that is pending of each request, and tells how long it took.
    fn step(&mut self, ids: &[RequestId]) -> Result<Span, Box<dyn Error>> {
        let run = |&request: &RequestId| Run {
            request,
            tokens: self.driver.pending(request),
        };
        let runs: Vec<Run> = ids.iter().map(run).collect();
        let sampled: &[Sampled] = self.driver.step(&runs)?;
        debug_assert_eq!(sampled.len(), ids.len());
        Ok(self.driver.backend().elapsed)
    }
}

fn enough(times: &[Span]) -> bool {
    times.len() >= SAMPLES_MIN && times.iter().copied().sum::<Span>() >= SAMPLED_MIN
}

fn median(mut times: Vec<Span>) -> Span {
    times.sort_unstable();
    times[times.len() / 2]
}
