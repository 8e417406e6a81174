//! The prompts of the batch: how many tokens of the step each of them gets, and whether the head of
//! the queue would get any. The budget policy says who goes first and how much is one prompt's part;
//! here it is added up.

use serve_core::Time;

use super::Scheduler;
use super::live::Stage;
use crate::budget::{Part, Prompt, StepView};

/// The running requests that have more than one position to run, in the order of joining. Requests
/// that decode are not in it and cost nothing here.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    list: Vec<Share>,
    /// Tokens that the policy gives to all of them together in this step.
    tokens_max: u32,
    /// Places in the list by rank: a buffer.
    by_rank: Vec<u32>,
}

/// A prompt and what it gets.
#[derive(Clone, Copy, Debug)]
struct Share {
    slot: usize,
    part: Part,
    pending: u32,
    tokens: u32,
}

impl Share {
    /// What it takes while others want some.
    fn taken(&self) -> u64 {
        u64::from(self.pending.min(self.part.tokens_max.max(1)))
    }
}

impl Prompts {
    /// A request no longer runs.
    pub(super) fn remove(&mut self, slot: usize) {
        self.list.retain(|share| share.slot != slot);
    }

    /// Tokens that they have left beyond the step that was planned last. O(prompts).
    pub(super) fn tokens_behind(&self) -> u64 {
        let behind = self.list.iter();
        let behind = behind.map(|share| u64::from(share.pending - share.tokens));
        behind.sum()
    }

    /// How many prompts there are.
    fn len(&self) -> u32 {
        self.list.len() as u32
    }

    /// Tokens that go before a prompt of this rank that joined last. Those who `leave` take none.
    fn tokens_before(&self, rank: [u64; 2], leave: &[usize]) -> u64 {
        let before = self.list.iter().filter(|share| share.part.rank <= rank);
        let stay = before.filter(|share| !leave.contains(&share.slot));
        stay.map(Share::taken).sum()
    }

    /// Shares `tokens` out: first to each its part, in the order of the ranks, then the rest in the
    /// same order to those that want more. O(n log n) in the prompts, O(n) where they joined in order.
    fn share_out(&mut self, mut tokens: u32) {
        let list = &mut self.list;
        self.by_rank.clear();
        self.by_rank.extend(0..list.len() as u32);
        self.by_rank
            .sort_unstable_by_key(|&at| (list[at as usize].part.rank, at));
        for &at in &self.by_rank {
            let share = &mut list[at as usize];
            share.tokens = (share.taken() as u32).min(tokens);
            tokens -= share.tokens;
        }
        for &at in &self.by_rank {
            if tokens == 0 {
                break;
            }
            let share = &mut list[at as usize];
            let more = (share.pending - share.tokens).min(tokens);
            share.tokens += more;
            tokens -= more;
        }
    }
}

impl Scheduler {
    /// Looks at the prompts for the step that is being planned: those that have been run are prompts
    /// no longer.
    pub(super) fn refresh_prompts(&mut self, now: Time) {
        let mut prompts = std::mem::take(&mut self.prompts);
        prompts.list.retain(|share| {
            let live = self.live.get(share.slot);
            live.is_some_and(|live| live.stage == Stage::Running && live.pending() > 1)
        });
        for share in &mut prompts.list {
            *share = self.share_of(now, share.slot);
        }
        self.prompts = prompts;
        let decodes = self.decodes();
        let tokens_left = self.step_tokens_max - decodes;
        self.prompts.tokens_max = self.budget.prompt_tokens(&StepView {
            now,
            decodes,
            tokens_left,
            cost: self.step_cost,
        });
    }

    /// Adds a request that has just joined, if it is a prompt.
    pub(super) fn add_prompt(&mut self, now: Time, slot: usize) {
        if self.live[slot].pending() > 1 {
            let share = self.share_of(now, slot);
            self.prompts.list.push(share);
        }
    }

    /// Tokens of the step that the head of the queue would get if it joined and the `leaving` did
    /// not run any more. Only whether it is none matters: how much of the prompt is cached is not
    /// known yet.
    pub(super) fn tokens_for_head(&mut self, now: Time, leaving: &[usize]) -> u32 {
        let Some((head, ages_at)) = self.gate.head_and_age(now) else {
            return 0;
        };
        let started = self.ids.get(head.request.id());
        let known = started.map(|slot| self.live[slot].known);
        let part = self.budget.part(&Prompt {
            request: head.request,
            sequence: head.sequence,
            pending: known.unwrap_or(head.request.prompt_tokens()),
            preemptions: head.preemptions,
            aged: ages_at <= now,
        });
        let prompts = |slot: &&usize| self.live[**slot].pending() > 1;
        let leaving_prompts = leaving.iter().filter(prompts).count() as u32;
        let decodes = self.decodes() - (leaving.len() as u32 - leaving_prompts);
        let left = u64::from(self.prompt_tokens(decodes));
        let before = self.prompts.tokens_before(part.rank, leaving);
        left.saturating_sub(before) as u32 // at most the step's
    }

    /// Gives each prompt its tokens.
    pub(super) fn share_prompt_tokens(&mut self) {
        let tokens = self.prompt_tokens(self.decodes());
        self.prompts.share_out(tokens);
    }

    /// What the `index`-th prompt in the order of joining was given.
    pub(super) fn prompt_share(&self, index: usize) -> u32 {
        self.prompts.list.get(index).map_or(0, |share| share.tokens)
    }

    /// Tokens for all prompts together beside so many decodes. At least one, if the step has any.
    fn prompt_tokens(&self, decodes: u32) -> u32 {
        let left = self.step_tokens_max.saturating_sub(decodes);
        left.min(self.prompts.tokens_max.max(1))
    }

    /// Running requests that take one token of the step.
    fn decodes(&self) -> u32 {
        self.running.len() as u32 - self.prompts.len()
    }

    fn share_of(&self, now: Time, slot: usize) -> Share {
        let live = &self.live[slot];
        let part = self.budget.part(&Prompt {
            request: &live.request,
            sequence: live.sequence,
            pending: live.pending(),
            preemptions: live.preemptions,
            aged: live.ages_at <= now,
        });
        Share {
            slot,
            part,
            pending: live.pending(),
            tokens: 0,
        }
    }
}
