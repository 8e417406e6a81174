//! What is counted of an engine behind the gate. What such an engine does not tell, as its steps and its KV cache,
//! is absent rather than zero.

use std::sync::atomic::{AtomicU64, Ordering};

use serve_core::Usage;
use serve_sched::DispatcherStats;

use super::text::{Kind, Text};

/// What came of a request that was sent to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It was answered to the end.
    Answered,
    /// The engine refused it for a reason that is the request's own.
    Refused,
    /// The engine has too much to do.
    Overloaded,
    /// The engine failed, or its connection broke.
    Broken,
    /// The engine could not be reached.
    Unreachable,
    /// Nobody waited any more: the client, a deadline, a drain.
    Cancelled,
}

/// Counts of one engine behind the gate.
#[derive(Debug, Default)]
pub(crate) struct UpstreamCounts {
    sent: [AtomicU64; Sent::ALL.len()],
    retries: AtomicU64,
    restarts: AtomicU64,
    prompt_tokens: AtomicU64,
    output_tokens: AtomicU64,
    cached_tokens: AtomicU64,
}

/// An engine behind the gate at one moment.
pub(crate) struct UpstreamFigures<'a> {
    pub(crate) stats: DispatcherStats,
    pub(crate) counts: &'a UpstreamCounts,
    /// Whether the engine is started here, so that it can be started anew.
    pub(crate) is_supervised: bool,
}

impl Sent {
    const ALL: [Self; 6] = [
        Self::Answered,
        Self::Refused,
        Self::Overloaded,
        Self::Broken,
        Self::Unreachable,
        Self::Cancelled,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Overloaded => "overloaded",
            Self::Broken => "broken",
            Self::Unreachable => "unreachable",
            Self::Cancelled => "cancelled",
        }
    }
}

impl UpstreamCounts {
    pub(crate) fn ended(&self, sent: Sent) {
        self.sent[sent as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.sent[Sent::Answered as usize].load(Ordering::Relaxed)
    }

    /// A request is sent once more.
    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// The engine is started once more.
    pub(crate) fn restarted(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// What an answer has used.
    pub(crate) fn used(&self, usage: &Usage) {
        let run = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        let add =
            |count: &AtomicU64, tokens: u32| count.fetch_add(tokens.into(), Ordering::Relaxed);
        add(&self.prompt_tokens, run);
        add(&self.output_tokens, usage.output_tokens);
        add(&self.cached_tokens, usage.cached_tokens);
    }
}

pub(super) fn write(text: &mut Text, figures: &UpstreamFigures<'_>) {
    let (stats, counts) = (&figures.stats, figures.counts);
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    text.gauge(
        "serve_requests_waiting",
        "Requests in the queue",
        stats.waiting,
    );
    text.gauge(
        "serve_requests_running",
        "Requests with the engine",
        stats.running,
    );
    text.gauge(
        "serve_upstream_limit",
        "Requests that may be with the engine at once",
        stats.limit,
    );
    let help = "Requests that were sent to the engine and have ended, by what came of them";
    let mut family = text.family(Kind::Counter, "serve_upstream_requests_total", help);
    for sent in Sent::ALL {
        family.sample(
            &[("outcome", sent.name())],
            read(&counts.sent[sent as usize]),
        );
    }
    text.counter(
        "serve_upstream_retries_total",
        "Times that a request that had not reached the engine was sent once more",
        read(&counts.retries),
    );
    if figures.is_supervised {
        text.counter(
            "serve_upstream_restarts_total",
            "Times that the engine was started once more",
            read(&counts.restarts),
        );
    }
    let help =
        "Tokens as the engine counts them: of prompts, of answers, of prompts found in its cache";
    let mut family = text.family(Kind::Counter, "serve_tokens_total", help);
    for (kind, count) in [
        ("prompt", &counts.prompt_tokens),
        ("output", &counts.output_tokens),
        ("cached", &counts.cached_tokens),
    ] {
        family.sample(&[("kind", kind)], read(count));
    }
}
