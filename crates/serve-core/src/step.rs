//! The whole contract between a scheduler and a device: what one step runs, and what came of it.
//!
//! A plan names positions, never token values. The backend keeps the tokens of every live request
//! (the prompt from [`StepPlan::starts`], then each token that it samples) until the request is
//! listed in [`StepPlan::releases`].

use std::ops::Range;
use std::sync::Arc;

use crate::{BlockId, Logprobs, Request, RequestId, Span, StepId, TokenId};

/// One step: segments that the device runs together.
///
/// A plan is a reusable buffer. [`StepPlan::reset`] empties it and keeps its memory, so a steady
/// decode loop allocates nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    step: StepId,
    starts: Vec<Arc<Request>>,
    segments: Vec<Segment>,
    blocks: Vec<BlockId>,
    releases: Vec<RequestId>,
}

/// Run positions `positions` of `request`, and if `sample` is set, choose the token at position
/// `positions.end` from the logits of the last one.
///
/// The KV of all positions before `positions.start` is already in the request's blocks, written by
/// earlier segments or shared from a prefix with the same tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whose positions these are. At most one segment of a request is in a plan.
    pub request: RequestId,
    /// The positions to run; never empty. Position `p` attends to positions `0..=p`.
    pub positions: Range<u32>,
    /// Whether to choose a token after the last position.
    pub sample: bool,
    /// Where the request's block table lies in the plan; read it through [`StepPlan::blocks`].
    table: Range<u32>,
}

impl Segment {
    /// How many positions the segment runs.
    pub fn tokens(&self) -> u32 {
        self.positions.end - self.positions.start
    }
}

impl StepPlan {
    /// An empty plan for step 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties the plan for step `step` and keeps its memory.
    pub fn reset(&mut self, step: StepId) {
        self.step = step;
        self.starts.clear();
        self.segments.clear();
        self.blocks.clear();
        self.releases.clear();
    }

    /// Announces a request whose first segment may be in this plan or a later one. A request is
    /// announced once, not again after a preemption.
    pub fn push_start(&mut self, request: Arc<Request>) {
        self.starts.push(request);
    }

    /// Adds a segment. `blocks` is the request's block table: entry `i` holds the KV of positions
    /// `i * block_size .. (i + 1) * block_size`, and the table reaches at least `positions.end`.
    pub fn push_segment(
        &mut self,
        request: RequestId,
        positions: Range<u32>,
        sample: bool,
        blocks: &[BlockId],
    ) {
        debug_assert!(
            !positions.is_empty(),
            "a segment runs at least one position"
        );
        let start = self.blocks.len() as u32;
        self.blocks.extend_from_slice(blocks);
        self.segments.push(Segment {
            request,
            positions,
            sample,
            table: start..self.blocks.len() as u32,
        });
    }

    /// Lets the backend forget a request: it has ended and no later plan will name it.
    pub fn push_release(&mut self, request: RequestId) {
        self.releases.push(request);
    }

    /// Which step this is.
    pub fn step(&self) -> StepId {
        self.step
    }

    /// Requests that the backend meets for the first time.
    pub fn starts(&self) -> &[Arc<Request>] {
        &self.starts
    }

    /// What to run, in an order that the backend may ignore.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The block table of one of this plan's segments.
    ///
    /// # Panics
    ///
    /// When the segment is of another plan and its table lies outside this one.
    pub fn blocks(&self, segment: &Segment) -> &[BlockId] {
        &self.blocks[segment.table.start as usize..segment.table.end as usize]
    }

    /// Requests to forget, after the segments have run.
    pub fn releases(&self) -> &[RequestId] {
        &self.releases
    }

    /// Positions run by all segments together.
    pub fn tokens(&self) -> u32 {
        self.segments.iter().map(Segment::tokens).sum()
    }

    /// Whether there is nothing to run and nothing to forget.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.starts.is_empty() && self.releases.is_empty()
    }
}

/// What came of a step: a reusable buffer, like [`StepPlan`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// The step that ran.
    pub step: StepId,
    /// One entry for each segment with `sample` set, in the plan's order.
    pub sampled: Vec<Sampled>,
    /// The log-probabilities of those whose requests ask for them, by their place in `sampled`.
    pub logprobs: Logprobs,
    /// How long the device took. A mock computes it; a device measures it.
    pub elapsed: Span,
}

impl StepOutcome {
    /// An empty outcome.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties the outcome for step `step` and keeps its memory.
    pub fn reset(&mut self, step: StepId) {
        self.step = step;
        self.sampled.clear();
        self.logprobs.clear();
        self.elapsed = Span::ZERO;
    }
}

/// A token chosen for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Whose token this is.
    pub request: RequestId,
    /// The token.
    pub token: TokenId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_segment_finds_its_own_table() {
        let table = |ids: &[u32]| ids.iter().copied().map(BlockId::new).collect::<Vec<_>>();
        let mut plan = StepPlan::new();
        plan.push_segment(RequestId::new(1), 0..20, false, &table(&[3, 9]));
        plan.push_segment(RequestId::new(2), 4..5, true, &table(&[7]));
        assert_eq!(plan.blocks(&plan.segments()[0]), table(&[3, 9]));
        assert_eq!(plan.blocks(&plan.segments()[1]), table(&[7]));
        assert_eq!(plan.tokens(), 21);
    }

    #[test]
    fn a_reset_plan_is_an_empty_one() {
        let mut plan = StepPlan::new();
        plan.push_segment(RequestId::new(1), 0..1, true, &[BlockId::new(1)]);
        plan.push_release(RequestId::new(1));
        plan.reset(StepId::new(4));
        assert!(plan.is_empty());
        assert_eq!(plan.step(), StepId::new(4));
    }
}
