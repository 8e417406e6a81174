//! What is measured of the requests of one class, once for each request or for each token, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use serve_core::Span;

use super::histogram::Histogram;

/// Why an answer was complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model said so.
    Stop,
    /// A stop string of the client's was in it.
    StopText,
    /// It had as many tokens as it could have.
    Length,
}

impl Finish {
    pub(super) const ALL: [Self; 3] = [Self::Stop, Self::StopText, Self::Length];

    /// The name in the metrics and in the access log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::StopText => "stop_text",
            Self::Length => "length",
        }
    }
}

/// The measurements of one class.
#[derive(Debug)]
pub(crate) struct ClassMetrics {
    pub(super) queue: Histogram,
    pub(super) first_token: Histogram,
    pub(super) between_tokens: Histogram,
    pub(super) per_token: Histogram,
    pub(super) prefill: Histogram,
    pub(super) decode: Histogram,
    pub(super) inference: Histogram,
    pub(super) whole: Histogram,
    pub(super) prompt_tokens: Histogram,
    pub(super) output_tokens: Histogram,
    pub(super) output_tokens_max: Histogram,
    finished: [AtomicU64; Finish::ALL.len()],
    deadlines_met: AtomicU64,
    deadlines_missed: AtomicU64,
    unused_tokens: AtomicU64,
    prompt_total: AtomicU64,
    cached: [AtomicU64; 2],
}

/// What the engine did for a request that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// `None` where the answer is not complete.
    pub(crate) finish: Option<Finish>,
    /// From the first segment to the first token, and from there to the end; of an answer with a token.
    pub(crate) prefill: Option<Span>,
    pub(crate) decode: Span,
    pub(crate) whole: Span,
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) output_tokens_max: u32,
    /// Positions of the prompt that were found in the prefix cache, where that is known.
    pub(crate) cached_tokens: Option<u32>,
    /// Whether a deadline that it had was kept.
    pub(crate) in_time: Option<bool>,
}

impl ClassMetrics {
    /// `exact` are bounds of all times.
    pub(super) fn new(exact: &[Span]) -> Self {
        let seconds = || Histogram::seconds(exact);
        Self {
            queue: seconds(),
            first_token: seconds().with_examples(),
            between_tokens: seconds(),
            per_token: seconds(),
            prefill: seconds(),
            decode: seconds(),
            inference: seconds(),
            whole: seconds().with_examples(),
            prompt_tokens: Histogram::counts(),
            output_tokens: Histogram::counts(),
            output_tokens_max: Histogram::counts(),
            finished: Default::default(),
            deadlines_met: AtomicU64::default(),
            deadlines_missed: AtomicU64::default(),
            unused_tokens: AtomicU64::default(),
            prompt_total: AtomicU64::default(),
            cached: Default::default(),
        }
    }

    /// A request has left the queue for the first time.
    pub(crate) fn queued(&self, wait: Span) {
        self.queue.observe(wait);
    }

    /// A request has its first token; its prompt has so many.
    pub(crate) fn first_token(&self, since_arrival: Span, prompt_tokens: u32) {
        self.prompt_total
            .fetch_add(prompt_tokens.into(), Ordering::Relaxed);
        self.first_token.observe(since_arrival);
    }

    /// A request has another token.
    pub(crate) fn another_token(&self, since_the_last: Span) {
        self.between_tokens.observe(since_the_last);
    }

    /// The engine has let go of the request `id`.
    pub(crate) fn ended(&self, id: &str, answered: &Answered) {
        let add = |counter: &AtomicU64, by: u32| counter.fetch_add(by.into(), Ordering::Relaxed);
        match answered.in_time {
            Some(true) => add(&self.deadlines_met, 1),
            Some(false) => add(&self.deadlines_missed, 1),
            None => 0,
        };
        let Some(finish) = answered.finish else {
            add(&self.unused_tokens, answered.output_tokens);
            return;
        };
        add(&self.finished[finish as usize], 1);
        self.whole.observe(answered.whole);
        // Only now: the name of a live request is for its client alone, who can cancel it by that.
        self.whole.exemplify(answered.whole, id);
        self.prompt_tokens
            .observe_count(answered.prompt_tokens.into());
        self.output_tokens
            .observe_count(answered.output_tokens.into());
        self.output_tokens_max
            .observe_count(answered.output_tokens_max.into());
        if let Some(cached) = answered.cached_tokens {
            add(&self.cached[0], answered.prompt_tokens);
            add(&self.cached[1], cached);
        }
        let Some(prefill) = answered.prefill else {
            return;
        };
        self.first_token
            .exemplify(answered.whole.saturating_sub(answered.decode), id);
        self.prefill.observe(prefill);
        self.decode.observe(answered.decode);
        self.inference.observe(prefill + answered.decode);
        if answered.output_tokens > 1 {
            let steps = u64::from(answered.output_tokens - 1);
            self.per_token.observe(answered.decode.mul_div(1, steps));
        }
    }

    pub(super) fn finished(&self, finish: Finish) -> u64 {
        self.finished[finish as usize].load(Ordering::Relaxed)
    }

    pub(super) fn deadlines(&self) -> [(&'static str, u64); 2] {
        [
            ("met", self.deadlines_met.load(Ordering::Relaxed)),
            ("missed", self.deadlines_missed.load(Ordering::Relaxed)),
        ]
    }

    pub(super) fn unused_tokens(&self) -> u64 {
        self.unused_tokens.load(Ordering::Relaxed)
    }

    /// Tokens of the prompts of all requests that have a first token.
    pub(super) fn prompt_total(&self) -> u64 {
        self.prompt_total.load(Ordering::Relaxed)
    }

    /// Prompt tokens of the complete answers, and how many of these were found in the prefix cache.
    pub(super) fn looked_up(&self) -> [u64; 2] {
        [0, 1].map(|index: usize| self.cached[index].load(Ordering::Relaxed))
    }
}
