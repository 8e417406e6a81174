//! The decoder as a [`Backend`]: keeps the tokens of every live request, runs plans, samples.

use std::collections::HashMap;
use std::time::Instant;

use serve_core::{
    Backend, BackendError, BlockId, Limits, RequestId, Sampled, Sampling, Segment, StepOutcome,
    StepPlan, TokenId,
};

use super::batch::{Batch, Logits};
use super::decoder::Decoder;
use super::device::DeviceError;
use super::draws::Draws;
use super::penalties::History;

/// A decoder with its cache, driven by plans.
///
/// A plan that breaks the contract (an unknown request, a block table that is too short, a position
/// whose token does not exist yet) fails with [`BackendError::Step`] before anything has run.
pub struct DecoderBackend {
    decoder: Decoder,
    limits: Limits,
    live: HashMap<RequestId, Live>,
    batch: Batch,
    draws: Draws,
    sampled: Vec<TokenId>,
}

/// What is kept of a request until it is released.
struct Live {
    /// The prompt, then each sampled token.
    tokens: Vec<u32>,
    /// The blocks of its KV, as the plans have said so far.
    table: Vec<BlockId>,
    prompt: usize,
    sampling: Sampling,
    logprobs: Option<u8>,
    /// Of all tokens, where there are penalties.
    history: Option<History>,
    /// Counts the plan that last named the request, to find a request named twice.
    seen: u64,
}

impl Live {
    /// Goes back to where only the first `known` tokens are known: another one is to be sampled
    /// after them.
    fn rewind(&mut self, known: usize) {
        if known == self.tokens.len() {
            return;
        }
        self.tokens.truncate(known);
        self.prompt = self.prompt.min(known);
        if let Some(history) = &mut self.history {
            let (prompt, outputs) = self.tokens.split_at(self.prompt);
            history.restart(prompt, outputs);
        }
    }

    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        if let Some(history) = &mut self.history {
            history.push(token);
        }
    }
}

impl std::fmt::Debug for DecoderBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecoderBackend")
            .field("config", self.decoder.config())
            .field("limits", &self.limits)
            .field("live", &self.live.len())
            .finish_non_exhaustive()
    }
}

impl DecoderBackend {
    /// A backend of `decoder`, whose device holds a cache of `limits.blocks` blocks.
    pub fn new(decoder: Decoder, limits: Limits) -> Self {
        Self {
            decoder,
            limits,
            live: HashMap::new(),
            batch: Batch::within(&limits),
            draws: Draws::new(),
            sampled: Vec::new(),
        }
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Bytes a second that the device reads from its memory at best, where it can tell: what no
    /// decode step can beat.
    ///
    /// # Errors
    ///
    /// [`BackendError::Lost`] when the device fails.
    pub fn bandwidth(&mut self) -> Result<Option<f64>, BackendError> {
        self.decoder.bandwidth().map_err(lost)
    }

    /// Requests whose tokens are kept.
    pub fn live_requests(&self) -> usize {
        self.live.len()
    }

    /// Logits after every position of a prompt that is run alone: one `vocab_size` row each. For
    /// comparing with another implementation; it overwrites the cache.
    ///
    /// # Errors
    ///
    /// [`BackendError::Step`] when requests are live, or the prompt exceeds the limits or the
    /// vocabulary.
    pub fn prompt_logits(&mut self, prompt: &[TokenId]) -> Result<Vec<Vec<f32>>, BackendError> {
        let limits = self.limits;
        let blocks = limits.blocks_for(prompt.len() as u32);
        if !self.live.is_empty() {
            return Err(step_error(format!("{} requests are live", self.live.len())));
        }
        if prompt.len() > limits.context_max as usize || blocks > limits.usable_blocks() {
            return Err(step_error(format!(
                "a prompt of {} tokens exceeds the limits",
                prompt.len()
            )));
        }
        let tokens: Vec<u32> = prompt.iter().map(|token| token.get()).collect();
        self.check_vocabulary(&tokens)?;
        self.batch.clear();
        self.batch.push(&tokens, 0, 1..=blocks, Logits::All);
        self.decoder.forward(&self.batch).map_err(lost)?;
        self.decoder.logits().map_err(lost)
    }

    /// The logits that the last step has sampled from: one `vocab_size` row for each of its samples, in their order,
    /// before any penalty. For comparing what a device draws with what a [`Sampler`](super::Sampler) does.
    ///
    /// # Errors
    ///
    /// [`BackendError::Lost`] when the device fails.
    pub fn sampled_logits(&mut self) -> Result<Vec<Vec<f32>>, BackendError> {
        self.decoder.logits().map_err(lost)
    }

    /// Meets new requests. One that is announced again before it has run is the same request of a
    /// plan that failed.
    fn start(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        for request in plan.starts() {
            let mut tokens: Vec<u32> = request.prompt().iter().map(|token| token.get()).collect();
            self.check_vocabulary(&tokens)?;
            // So that no step has to.
            let context = self.limits.context_max as usize;
            let outputs = request.output_tokens_max() as usize;
            let outputs = outputs.min(context.saturating_sub(tokens.len()) + 1);
            tokens.reserve_exact(outputs);
            match self.live.get(&request.id()) {
                Some(live) if live.tokens != tokens => {
                    return Err(step_error(format!(
                        "request {} is announced and still live with other tokens",
                        request.id()
                    )));
                }
                Some(_) => {}
                None => {
                    let sampling = *request.sampling();
                    let positions = request.positions_max().min(self.limits.context_max);
                    let blocks = self.limits.blocks_for(positions) as usize;
                    let live = Live {
                        prompt: tokens.len(),
                        table: Vec::with_capacity(blocks),
                        history: History::of(&sampling, &tokens, outputs),
                        tokens,
                        sampling,
                        logprobs: request.logprobs(),
                        seen: u64::MAX,
                    };
                    let penalised = live.history.is_some();
                    self.live.insert(request.id(), live);
                    if penalised {
                        let histories = self.live.values().filter_map(|l| l.history.as_ref());
                        self.draws.reserve(histories.map(History::capacity).sum());
                    }
                }
            }
        }
        Ok(())
    }

    fn check_vocabulary(&self, tokens: &[u32]) -> Result<(), BackendError> {
        let vocab_size = self.decoder.config().vocab_size;
        match tokens.iter().find(|&&token| token as usize >= vocab_size) {
            Some(token) => Err(step_error(format!(
                "token {token} lies outside the vocabulary of {vocab_size}"
            ))),
            None => Ok(()),
        }
    }

    /// Checks a plan against the contract and lays out its batch.
    fn prepare(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        let limits = self.limits;
        let segments = plan.segments();
        if segments.len() > limits.sequences_max as usize || plan.tokens() > limits.step_tokens_max
        {
            return Err(step_error(format!(
                "{} segments with {} positions exceed {} segments or {} positions",
                segments.len(),
                plan.tokens(),
                limits.sequences_max,
                limits.step_tokens_max
            )));
        }
        self.batch.clear();
        for (index, segment) in segments.iter().enumerate() {
            let live = self
                .live
                .get_mut(&segment.request)
                .ok_or_else(|| step_error(format!("request {} is unknown", segment.request)))?;
            let twice = (plan.step().get() == live.seen)
                && segments[..index]
                    .iter()
                    .any(|s| s.request == segment.request);
            if twice {
                return Err(step_error(format!(
                    "request {} has two segments",
                    segment.request
                )));
            }
            live.seen = plan.step().get();
            plan.update_table(segment, &mut live.table)?;
            let blocks = &live.table;
            check_segment(segment, blocks, live.tokens.len(), &limits)?;
            let positions = segment.positions.start as usize..segment.positions.end as usize;
            let needed = limits.blocks_for(segment.positions.end) as usize;
            let logits = match segment.sample {
                true => Logits::Last,
                false => Logits::None,
            };
            self.batch.push(
                &live.tokens[positions],
                segment.positions.start,
                blocks[..needed].iter().map(|block| block.get()),
                logits,
            );
        }
        Ok(())
    }

    fn run(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        self.decoder.forward(&self.batch).map_err(lost)?;
        self.draws.clear();
        let sampling = || plan.segments().iter().filter(|segment| segment.sample);
        for segment in sampling() {
            // `prepare` has found it.
            if let Some(live) = self.live.get_mut(&segment.request) {
                let known = segment.positions.end;
                live.rewind(known as usize);
                self.draws
                    .push(live.sampling, known, live.history.as_ref(), live.logprobs);
            }
        }
        self.sampled.clear();
        if !self.draws.is_empty() {
            let sampled = &mut self.sampled;
            let sampled = self
                .decoder
                .sample(&self.draws, sampled, &mut outcome.logprobs);
            sampled.map_err(lost)?;
        }
        for (segment, &token) in sampling().zip(&self.sampled) {
            let Some(live) = self.live.get_mut(&segment.request) else {
                continue;
            };
            live.push(token.get());
            outcome.sampled.push(Sampled {
                request: segment.request,
                token,
            });
        }
        Ok(())
    }
}

impl Backend for DecoderBackend {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        let begin = Instant::now();
        outcome.reset(plan.step());
        let result = self
            .start(plan)
            .and_then(|()| self.prepare(plan))
            .and_then(|()| self.run(plan, outcome));
        // Also after an error: what a failed plan releases has ended all the same.
        for request in plan.releases() {
            self.live.remove(request);
        }
        outcome.elapsed = begin.elapsed().into();
        result
    }
}

fn check_segment(
    segment: &Segment,
    blocks: &[BlockId],
    tokens: usize,
    limits: &Limits,
) -> Result<(), BackendError> {
    let (request, positions) = (segment.request, &segment.positions);
    if positions.is_empty() {
        return Err(step_error(format!(
            "request {request} has an empty segment"
        )));
    }
    if positions.end as usize > tokens {
        return Err(step_error(format!(
            "request {request} has {tokens} tokens and positions {}..{} are planned",
            positions.start, positions.end
        )));
    }
    if positions.end > limits.context_max {
        return Err(step_error(format!(
            "request {request} reaches position {} of a context of {}",
            positions.end, limits.context_max
        )));
    }
    let needed = limits.blocks_for(positions.end) as usize;
    if blocks.len() < needed {
        return Err(step_error(format!(
            "request {request} needs {needed} blocks and its table has {}",
            blocks.len()
        )));
    }
    let usable = |block: &BlockId| *block != BlockId::NULL && block.get() < limits.blocks;
    match blocks[..needed].iter().find(|block| !usable(block)) {
        Some(block) => Err(step_error(format!(
            "request {request} names block {block}; blocks are b1 to b{}",
            limits.blocks - 1
        ))),
        None => Ok(()),
    }
}

fn step_error(cause: String) -> BackendError {
    BackendError::Step { cause }
}

fn lost(error: DeviceError) -> BackendError {
    BackendError::Lost { cause: error.cause }
}
