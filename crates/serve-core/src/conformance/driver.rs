//! Drives a backend by hand: keeps tokens and block tables, checks the form of every outcome.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Failure;
use crate::rng::Rng;
use crate::{
    Backend, BlockId, Limits, Request, RequestId, Sampled, Span, StepId, StepOutcome, StepPlan,
    TokenId, TokenLogprob,
};

/// One segment to run: the next `tokens` positions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The request.
    pub request: RequestId,
    /// How many positions.
    pub tokens: u32,
}

/// A backend, and all that a scheduler would know of its requests. Blocks are handed out at
/// random, so that no table is a run of numbers.
#[derive(Debug)]
pub struct Driver<B> {
    backend: B,
    limits: Limits,
    plan: StepPlan,
    outcome: StepOutcome,
    step: u64,
    rng: Rng,
    free: Vec<BlockId>,
    users: BTreeMap<BlockId, u32>,
    live: BTreeMap<RequestId, Live>,
    starting: Vec<Arc<Request>>,
    releasing: Vec<RequestId>,
}

#[derive(Debug)]
struct Live {
    asked: Option<u8>,
    prompt: u32,
    tokens: Vec<TokenId>,
    table: Vec<BlockId>,
    /// Entries of the table that the backend has been given.
    given: usize,
    computed: u32,
}

impl<B: Backend> Driver<B> {
    /// Drives `backend`; `seed` fixes the order of blocks.
    ///
    /// # Errors
    ///
    /// [`Failure::Limits`] when the backend's limits allow nothing.
    pub fn new(backend: B, seed: u64) -> Result<Self, Failure> {
        let limits = backend.limits();
        limits.validate()?;
        Ok(Self {
            backend,
            limits,
            plan: StepPlan::new(),
            outcome: StepOutcome::new(),
            step: 0,
            rng: Rng::new(seed),
            free: (1..limits.blocks).map(BlockId::new).collect(),
            users: BTreeMap::new(),
            live: BTreeMap::new(),
            starting: Vec::new(),
            releasing: Vec::new(),
        })
    }

    /// The backend.
    pub fn backend(&mut self) -> &mut B {
        &mut self.backend
    }

    /// The backend's limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Announces a request in the next step.
    pub fn start(&mut self, request: Request) {
        let live = Live {
            asked: request.logprobs(),
            prompt: request.prompt_tokens(),
            tokens: request.prompt().to_vec(),
            table: Vec::new(),
            given: 0,
            computed: 0,
        };
        self.live.insert(request.id(), live);
        self.starting.push(Arc::new(request));
    }

    /// Lets `request`, which has not run yet, begin after the first whole blocks of `from` that
    /// hold `positions` positions.
    ///
    /// # Errors
    ///
    /// [`Failure::Misuse`] when `from` has not computed them or `request` has run.
    pub fn share(
        &mut self,
        from: RequestId,
        request: RequestId,
        positions: u32,
    ) -> Result<(), Failure> {
        let misuse = |request| Failure::Misuse {
            request,
            positions: 0..positions,
        };
        let blocks = (positions / self.limits.block_size) as usize;
        let donor = self.live.get(&from).ok_or(misuse(from))?;
        if donor.computed < positions || !positions.is_multiple_of(self.limits.block_size) {
            return Err(misuse(from));
        }
        let table = donor.table[..blocks].to_vec();
        let live = self.live.get_mut(&request).ok_or(misuse(request))?;
        if live.computed > 0 || live.tokens.len() <= positions as usize {
            return Err(misuse(request));
        }
        for block in &table {
            *self.users.entry(*block).or_default() += 1;
        }
        live.table = table;
        live.computed = positions;
        Ok(())
    }

    /// Takes all blocks from a request; its next segment starts at position 0 again.
    pub fn preempt(&mut self, request: RequestId) {
        if let Some(live) = self.live.get_mut(&request) {
            live.computed = 0;
            live.given = 0;
            let table = std::mem::take(&mut live.table);
            self.give_back(table);
        }
    }

    /// Ends a request; the next step releases it.
    pub fn release(&mut self, request: RequestId) {
        if let Some(live) = self.live.remove(&request) {
            self.give_back(live.table);
            self.releasing.push(request);
        }
    }

    /// Positions of a request whose tokens are known and not yet run.
    pub fn pending(&self, request: RequestId) -> u32 {
        self.live
            .get(&request)
            .map_or(0, |live| live.tokens.len() as u32 - live.computed)
    }

    /// Tokens of a live request that are known: its prompt and its outputs.
    pub fn known(&self, request: RequestId) -> u32 {
        self.live
            .get(&request)
            .map_or(0, |live| live.tokens.len() as u32)
    }

    /// The tokens sampled for a live request so far.
    pub fn outputs(&self, request: RequestId) -> &[TokenId] {
        self.live
            .get(&request)
            .map_or(&[], |live| &live.tokens[live.prompt as usize..])
    }

    /// Runs one step. A segment that reaches the last known token samples the next one; a shorter
    /// one does not.
    ///
    /// # Errors
    ///
    /// What the backend did wrong; [`Failure::TooSmall`] when there is no free block; or
    /// [`Failure::Misuse`].
    pub fn step(&mut self, runs: &[Run]) -> Result<&[Sampled], Failure> {
        let step = StepId::new(self.step);
        self.step += 1;
        self.plan.reset(step);
        for request in self.starting.drain(..) {
            self.plan.push_start(request);
        }
        for run in runs {
            self.push(*run)?;
        }
        for request in self.releasing.drain(..) {
            self.plan.push_release(request);
        }
        // What an earlier step left behind must not show.
        self.outcome.step = StepId::new(u64::MAX);
        self.outcome.elapsed = Span::MAX;
        self.backend
            .execute(&self.plan, &mut self.outcome)
            .map_err(|error| Failure::Backend { step, error })?;
        self.check_outcome(step)?;
        for sampled in &self.outcome.sampled {
            if let Some(live) = self.live.get_mut(&sampled.request) {
                live.tokens.push(sampled.token);
            }
        }
        Ok(&self.outcome.sampled)
    }

    fn push(&mut self, run: Run) -> Result<(), Failure> {
        let misuse = |positions| Failure::Misuse {
            request: run.request,
            positions,
        };
        let live = self.live.get_mut(&run.request).ok_or(misuse(0..0))?;
        let positions = live.computed..live.computed + run.tokens;
        if positions.is_empty() || positions.end as usize > live.tokens.len() {
            return Err(misuse(positions));
        }
        // Sometimes more than the segment needs, as for a prompt that has its blocks when it joins.
        let ahead = positions.end + self.rng.below(3) as u32 * self.limits.block_size;
        let reach = ahead.min(live.tokens.len() as u32);
        while live.table.len() < self.limits.blocks_for(reach) as usize {
            if self.free.is_empty() {
                return Err(Failure::TooSmall {
                    what: "blocks",
                    needed: self.limits.blocks + 1,
                    found: self.limits.blocks,
                });
            }
            // Half of them were given back last: a backend that still reads them finds another's KV.
            let index = match self.rng.below(2) {
                0 => self.free.len() - 1,
                _ => self.rng.below(self.free.len() as u64) as usize,
            };
            let block = self.free.swap_remove(index);
            self.users.insert(block, 1);
            live.table.push(block);
        }
        let sample = positions.end as usize == live.tokens.len();
        live.computed = positions.end;
        let kept = live.given as u32;
        let fresh = &live.table[live.given..];
        self.plan
            .push_segment(run.request, positions, sample, kept, fresh);
        live.given = live.table.len();
        Ok(())
    }

    fn check_outcome(&self, step: StepId) -> Result<(), Failure> {
        if self.outcome.step != step {
            return Err(Failure::Step {
                asked: step,
                answered: self.outcome.step,
            });
        }
        let sampling = self.plan.segments().iter().filter(|s| s.sample);
        let expected: Vec<RequestId> = sampling.map(|s| s.request).collect();
        let found: Vec<RequestId> = self.outcome.sampled.iter().map(|s| s.request).collect();
        if expected != found {
            return Err(Failure::Order {
                step,
                expected,
                found,
            });
        }
        for (index, sampled) in self.outcome.sampled.iter().enumerate() {
            let live = self.live.get(&sampled.request);
            let asked = live.and_then(|live| live.asked);
            let found = self.outcome.logprobs.of(index);
            if !is_told(sampled.token, asked, found) {
                return Err(Failure::Logprobs {
                    request: sampled.request,
                    asked,
                    found: found.map(<[_]>::to_vec),
                });
            }
        }
        if self.backend.limits() != self.limits {
            return Err(Failure::LimitsChanged(step));
        }
        Ok(())
    }

    fn give_back(&mut self, table: Vec<BlockId>) {
        for block in table {
            let users = self.users.entry(block).or_default();
            *users = users.saturating_sub(1);
            if *users == 0 {
                self.users.remove(&block);
                self.free.push(block);
            }
        }
    }
}

/// Whether these are the log-probabilities of a token: its own first, then as many as were asked for
/// or as there are, the most likely first, and no other token more likely than the first of them.
fn is_told(token: TokenId, asked: Option<u8>, found: Option<&[TokenLogprob]>) -> bool {
    let (asked, found) = match (asked, found) {
        (None, found) => return found.is_none(),
        (Some(asked), found) => (usize::from(asked), found.unwrap_or_default()),
    };
    let Some((own, most_likely)) = found.split_first() else {
        return false;
    };
    let in_order = |pair: &[TokenLogprob]| pair[0].logprob >= pair[1].logprob;
    let among = most_likely.iter().find(|entry| entry.token == token);
    let best = most_likely.first();
    own.token == token
        && found.iter().all(|entry| entry.logprob <= 0.0)
        && most_likely.len() <= asked
        && (asked == 0 || !most_likely.is_empty())
        && most_likely.windows(2).all(in_order)
        && best.is_none_or(|best| best.logprob >= own.logprob)
        && among.is_none_or(|entry| entry == own)
}
