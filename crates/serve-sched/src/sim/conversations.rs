//! A load of conversations: each begins with one of a few system prompts, and each of its prompts with all that was said before.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use serve_core::rng::{Rng, mix2};
use serve_core::{Request, RequestId, Span, Time, TokenId};

use super::fleet::Routed;
use super::workload::Poisson;
use crate::route::chain;

/// Conversations that begin at random; an open loop: a turn comes when its time has come, whatever became of the one before.
///
/// A prompt of turn `n` is the system prompt, and what was said in the turns before, and what is said in this one. Two prompts
/// with the same start have the same tokens there. The same seed makes the same requests.
#[derive(Clone, Debug)]
pub struct Conversations {
    settings: ConversationSettings,
    starts: Poisson,
    next_start: Time,
    rng: Rng,
    due: BinaryHeap<Reverse<(Time, u64, u32)>>,
    conversations: u64,
    requests: u64,
}

/// What [`Conversations`] are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConversationSettings {
    /// Fixes everything.
    pub seed: u64,
    /// Conversations that begin in a second.
    pub starts_per_s: f64,
    /// For how long conversations begin.
    pub lasts: Span,
    /// Different system prompts.
    pub systems: u64,
    /// Tokens of a system prompt.
    pub system_tokens: u32,
    /// Turns of a conversation; the mean is half of it and one half.
    pub turns_max: u32,
    /// Tokens that a turn adds to the prompt; some add ten times as many.
    pub turn_tokens: u32,
    /// Of a hundred conversations, so many say ten times as much.
    pub long_percent: u64,
    /// Tokens of an answer in the mean.
    pub output_tokens: u32,
    /// Time between two turns in the mean.
    pub think: Span,
}

impl Default for ConversationSettings {
    /// Two conversations a second for 100 s, of one to nine turns; every tenth says ten times as much.
    fn default() -> Self {
        Self {
            seed: 1,
            starts_per_s: 2.0,
            lasts: Span::from_secs(100),
            systems: 4,
            system_tokens: 512,
            turns_max: 9,
            turn_tokens: 160,
            long_percent: 10,
            output_tokens: 60,
            think: Span::from_secs(6),
        }
    }
}

/// Tokens in a block of the chains.
const BLOCK_TOKENS: u32 = 16;

impl Conversations {
    /// The conversations that the settings describe.
    pub fn new(settings: ConversationSettings) -> Self {
        let mut starts = Poisson::new(settings.seed, settings.starts_per_s);
        let next_start = starts.next().unwrap_or(Time::MAX);
        Self {
            settings,
            starts,
            next_start,
            rng: Rng::new(settings.seed ^ 0xC0),
            due: BinaryHeap::new(),
            conversations: 0,
            requests: 0,
        }
    }

    /// The turns of a conversation that begins now.
    fn begin(&mut self) {
        let (mut at, conversation) = (self.next_start, self.conversations);
        self.conversations += 1;
        self.next_start = self.starts.next().unwrap_or(Time::MAX);
        let turns = 1 + self.rng.below(u64::from(self.settings.turns_max.max(1))) as u32;
        for turn in 0..turns {
            self.due.push(Reverse((at, conversation, turn)));
            let think = self.rng.exponential(self.settings.think.as_secs_f64());
            at += Span::from_secs_f64(think);
        }
    }

    fn prompt(&self, conversation: u64, turn: u32) -> Vec<TokenId> {
        let settings = &self.settings;
        let draw = |what: u64| mix2(settings.seed ^ what, conversation);
        let system = draw(1) % settings.systems.max(1);
        let is_long = draw(2) % 100 < settings.long_percent;
        let each = settings.turn_tokens * if is_long { 10 } else { 1 };
        let said = each * (turn + 1);
        let token = |of: u64, position: u32| TokenId::new(mix2(of, u64::from(position)) as u32);
        let start = (0..settings.system_tokens).map(|position| token(system, position));
        let rest = (0..said).map(|position| token(conversation + (1 << 32), position));
        start.chain(rest).collect()
    }
}

impl Iterator for Conversations {
    type Item = Routed;

    fn next(&mut self) -> Option<Routed> {
        let ends = Time::ZERO + self.settings.lasts;
        let first = |due: &BinaryHeap<Reverse<(Time, u64, u32)>>| {
            due.peek().map_or(Time::MAX, |Reverse((at, ..))| *at)
        };
        while self.next_start < ends && self.next_start <= first(&self.due) {
            self.begin();
        }
        let Reverse((at, conversation, turn)) = self.due.pop()?;
        let prompt = self.prompt(conversation, turn);
        let output = 1 + self.rng.below(2 * u64::from(self.settings.output_tokens)) as u32;
        let id = RequestId::new(self.requests);
        self.requests += 1;
        let chain = chain(0, &prompt, BLOCK_TOKENS);
        let request = Request::new(id, at, prompt, output).ok()?;
        Some(Routed {
            request: Arc::new(request),
            chain,
            block_tokens: BLOCK_TOKENS,
            session: Some(conversation),
        })
    }
}
