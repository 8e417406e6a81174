//! A model that says what its corpus says: the byte that follows the longest suffix of the context
//! that occurs in the corpus, at its first occurrence.

use std::collections::BTreeMap;

use serve_core::{
    Backend, BackendError, BlockId, Limits, RequestId, Sampled, Span, StepOutcome, StepPlan,
    TokenId, TokenLogprob,
};

const BLOCK_SIZE: usize = 16;
const LIMITS: Limits = Limits {
    sequences_max: 8,
    step_tokens_max: 256,
    context_max: 512,
    block_size: BLOCK_SIZE as u32,
    blocks: 257,
};
/// Suffixes longer than this are not looked for.
const SUFFIX_MAX: usize = 24;
const STEP: Span = Span::from_millis(10);

/// The model, and what it keeps for the scheduler.
pub(crate) struct Parrot {
    corpus: &'static [u8],
    /// What has been run, block by block: this model's keys and values.
    kv: Vec<[u8; BLOCK_SIZE]>,
    live: BTreeMap<RequestId, Live>,
}

/// What is kept of a request until it is released.
struct Live {
    /// Its prompt and what was sampled.
    tokens: Vec<u8>,
    /// Which blocks hold what has been run of it.
    table: Vec<BlockId>,
    /// Whether it asks for log-probabilities, and of how many most likely tokens.
    logprobs: Option<u8>,
}

impl Parrot {
    pub(crate) fn new(corpus: &'static str) -> Self {
        Self {
            corpus: corpus.as_bytes(),
            kv: vec![[0; BLOCK_SIZE]; LIMITS.blocks as usize],
            live: BTreeMap::new(),
        }
    }

    /// The byte that follows `context`.
    fn next(&self, context: &[u8]) -> u8 {
        let longest = context.len().min(SUFFIX_MAX);
        let known = (1..=longest).rev().find_map(|length| {
            let suffix = &context[context.len() - length..];
            let places = self.corpus.windows(length + 1);
            places
                .filter(|place| place.starts_with(suffix))
                .map(|place| place[length])
                .next()
        });
        known.unwrap_or(b' ')
    }

    /// The bytes before position `end` that matter, from the blocks that hold them.
    fn read(&self, blocks: &[BlockId], end: usize) -> Vec<u8> {
        let positions = end.saturating_sub(SUFFIX_MAX)..end;
        positions
            .map(|position| self.kv[block_of(blocks, position)][position % BLOCK_SIZE])
            .collect()
    }
}

impl Backend for Parrot {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        outcome.reset(plan.step());
        if !plan.segments().is_empty() {
            outcome.elapsed = STEP;
        }
        for request in plan.starts() {
            let prompt = request.prompt().iter().map(|token| token.get() as u8);
            let live = Live {
                tokens: prompt.collect(),
                table: Vec::new(),
                logprobs: request.logprobs(),
            };
            self.live.insert(request.id(), live);
        }
        for segment in plan.segments() {
            let positions = segment.positions.clone();
            let Some(live) = self.live.get_mut(&segment.request) else {
                let cause = format!("{} was never announced", segment.request);
                return Err(BackendError::Step { cause });
            };
            plan.update_table(segment, &mut live.table)?;
            let read = live.tokens.iter().enumerate().take(positions.end as usize);
            for (position, &byte) in read.skip(positions.start as usize) {
                self.kv[block_of(&live.table, position)][position % BLOCK_SIZE] = byte;
            }
        }
        for segment in plan.segments().iter().filter(|segment| segment.sample) {
            let end = segment.positions.end as usize;
            let table = self.live.get(&segment.request).map(|live| &live.table);
            let byte = self.next(&self.read(table.map_or(&[], Vec::as_slice), end));
            let token = TokenId::new(byte.into());
            if let Some(live) = self.live.get_mut(&segment.request) {
                live.tokens.push(byte);
                if let Some(alternatives) = live.logprobs {
                    // A parrot is certain: the token itself, then the one alternative.
                    let certain = TokenLogprob {
                        token,
                        logprob: 0.0,
                    };
                    let entries = 1 + usize::from(alternatives > 0);
                    let entries = std::iter::repeat_n(certain, entries);
                    outcome.logprobs.push(outcome.sampled.len(), entries);
                }
            }
            outcome.sampled.push(Sampled {
                request: segment.request,
                token,
            });
        }
        for request in plan.releases() {
            self.live.remove(request);
        }
        Ok(())
    }
}

fn block_of(blocks: &[BlockId], position: usize) -> usize {
    blocks[position / BLOCK_SIZE].get() as usize
}
