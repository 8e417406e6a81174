//! The whole contract between a scheduler and a device: what one step runs, and what came of it.
//!
//! A plan names positions, never token values. The backend keeps the tokens of every live request
//! (the prompt from [`StepPlan::starts`], then each token that it samples) and its block table until
//! the request is listed in [`StepPlan::releases`]. A plan carries only what is new of a table, so
//! that a step costs the same at any context.

use std::ops::Range;
use std::sync::Arc;

use crate::{BackendError, BlockId, Logprobs, Request, RequestId, Span, StepId, TokenId};

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
    /// Entries of the request's block table that stay as they are; those after them are
    /// [`StepPlan::fresh_blocks`].
    pub kept: u32,
    fresh: Range<u32>,
}

impl Segment {
    /// How many positions the segment runs.
    #[inline]
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

    /// Adds a segment. Entry `i` of a request's block table holds the KV of positions
    /// `i * block_size .. (i + 1) * block_size`. From this segment on the table is its first `kept`
    /// entries, as the request's last segment left them, and `fresh` after them; it reaches at least
    /// `positions.end`.
    ///
    /// A request's first segment keeps none, and blocks that it shares with others are fresh to it.
    /// A segment keeps none, either, when the request has lost its blocks since its last one, or that
    /// one was in a step that failed.
    #[inline]
    pub fn push_segment(
        &mut self,
        request: RequestId,
        positions: Range<u32>,
        sample: bool,
        kept: u32,
        fresh: &[BlockId],
    ) {
        debug_assert!(
            !positions.is_empty(),
            "a segment runs at least one position"
        );
        let start = self.blocks.len() as u32;
        self.blocks.extend_from_slice(fresh);
        self.segments.push(Segment {
            request,
            positions,
            sample,
            kept,
            fresh: start..self.blocks.len() as u32,
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

    /// The blocks of one of this plan's segments that its request's table goes on with after those
    /// that it keeps.
    ///
    /// # Panics
    ///
    /// When the segment is of another plan and its blocks lie outside this one.
    pub fn fresh_blocks(&self, segment: &Segment) -> &[BlockId] {
        &self.blocks[segment.fresh.start as usize..segment.fresh.end as usize]
    }

    /// Makes `table`, which a backend keeps for the request of one of this plan's segments, what it
    /// is from that segment on. It starts empty. To be done once for each segment, in the order of
    /// steps; doing it again changes nothing. O(blocks that are new).
    ///
    /// # Errors
    ///
    /// [`BackendError::Step`] when the segment keeps more than `table` has: an earlier step is missing.
    ///
    /// # Panics
    ///
    /// As [`fresh_blocks`](Self::fresh_blocks).
    pub fn update_table(
        &self,
        segment: &Segment,
        table: &mut Vec<BlockId>,
    ) -> Result<(), BackendError> {
        let Segment { request, kept, .. } = *segment;
        if table.len() < kept as usize {
            return Err(BackendError::Step {
                cause: format!(
                    "request {request} keeps {kept} blocks and its table has {}",
                    table.len()
                ),
            });
        }
        table.truncate(kept as usize);
        table.extend_from_slice(self.fresh_blocks(segment));
        Ok(())
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

/// What a step has to do, as far as its cost goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Sequences in the step.
    pub segments: u32,
    /// Positions beyond one for each segment: the prompt tokens of prefills.
    pub prefill_tokens: u64,
    /// KV positions that the segments attend to.
    pub context_tokens: u64,
}

impl StepLoad {
    /// The load of a plan. A segment of more than one position is a prefill of all its positions; a
    /// segment of one position is a decode.
    pub fn of(plan: &StepPlan) -> Self {
        let mut load = Self::default();
        for segment in plan.segments() {
            load.segments += 1;
            if segment.tokens() > 1 {
                load.prefill_tokens += u64::from(segment.tokens());
            }
            load.context_tokens += u64::from(segment.positions.end);
        }
        load
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(ids: &[u32]) -> Vec<BlockId> {
        ids.iter().copied().map(BlockId::new).collect()
    }

    /// A plan with one segment, which keeps `kept` blocks and has `fresh` after them.
    fn changing(kept: u32, fresh: &[u32]) -> StepPlan {
        let mut plan = StepPlan::new();
        plan.push_segment(RequestId::new(1), 0..1, false, kept, &blocks(fresh));
        plan
    }

    #[test]
    fn a_table_follows_its_segments() {
        let steps: [(u32, &[u32], &[u32]); 6] = [
            (0, &[3, 9], &[3, 9]),
            (2, &[], &[3, 9]),
            (2, &[4], &[3, 9, 4]),
            // Where a step is run again from an earlier position.
            (1, &[5], &[3, 5]),
            (0, &[8, 6, 7], &[8, 6, 7]),
            (3, &[], &[8, 6, 7]),
        ];
        let mut table = Vec::new();
        for (kept, fresh, expected) in steps {
            let plan = changing(kept, fresh);
            for _ in 0..2 {
                plan.update_table(&plan.segments()[0], &mut table).unwrap();
                assert_eq!(table, blocks(expected));
            }
        }
    }

    #[test]
    fn each_segment_changes_its_own_table() {
        let mut plan = StepPlan::new();
        let (mut first, mut second) = (blocks(&[3]), blocks(&[7]));
        plan.push_segment(RequestId::new(1), 0..20, false, 1, &blocks(&[9]));
        plan.push_segment(RequestId::new(2), 4..5, true, 0, &blocks(&[8]));
        plan.update_table(&plan.segments()[1], &mut second).unwrap();
        plan.update_table(&plan.segments()[0], &mut first).unwrap();
        assert_eq!((first, second), (blocks(&[3, 9]), blocks(&[8])));
        assert_eq!(plan.tokens(), 21);
    }

    #[test]
    fn a_table_with_a_gap_is_refused_and_left_alone() {
        let plan = changing(2, &[4]);
        let mut table = blocks(&[3]);
        let refused = plan.update_table(&plan.segments()[0], &mut table);
        let error = refused.unwrap_err().to_string();
        assert_eq!(
            error,
            "the step failed: request r1 keeps 2 blocks and its table has 1"
        );
        assert_eq!(table, blocks(&[3]));
    }

    #[test]
    fn a_reset_plan_is_an_empty_one() {
        let mut plan = StepPlan::new();
        plan.push_segment(RequestId::new(1), 0..1, true, 0, &[BlockId::new(1)]);
        plan.push_release(RequestId::new(1));
        plan.reset(StepId::new(4));
        assert!(plan.is_empty());
        assert_eq!(plan.step(), StepId::new(4));
    }
}
