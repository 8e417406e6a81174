//! Follows a request through the engine: where its time went, for its client, its metrics and its log line.

use std::sync::Arc;

use serve_core::{CancelReason, Event, EventKind, Span, Time, Usage};

use crate::access::{Access, Generated};
use crate::api::Timings;
use crate::metrics::{Answered, ClassMetrics, Finish};

/// Follows one request, and tells its line in the access log what it has seen when it is dropped, however the
/// request ended.
#[derive(Debug)]
pub(crate) struct RequestLog {
    /// The answer's id, as the client sees it.
    pub(crate) id: String,
    /// How it ended; `cancelled` until something else is known, because a client that goes away
    /// says nothing.
    pub(crate) outcome: &'static str,
    finish: Option<Finish>,
    /// Known once somebody has counted.
    prompt_tokens: Option<u32>,
    /// Hashes of the prompt's blocks, where the log tells them.
    pub(crate) blocks: Option<String>,
    output_tokens: u32,
    pub(crate) output_tokens_max: u32,
    arrival: Time,
    pub(crate) deadline: Option<Time>,
    started: Option<Time>,
    first_token: Option<Time>,
    last: Time,
    /// What the engine has told at the end.
    pub(crate) used: Option<Usage>,
    /// Where an engine of another kind has told it.
    cached_tokens: Option<u32>,
    /// The line of the HTTP request that this belongs to; a warm-up has none.
    pub(crate) access: Option<Access>,
    /// Where it is measured; a warm-up is not.
    pub(crate) metrics: Option<Arc<ClassMetrics>>,
}

impl RequestLog {
    pub(crate) fn new(id: String, arrival: Time, prompt_tokens: Option<u32>) -> Self {
        Self {
            id,
            outcome: "cancelled",
            finish: None,
            prompt_tokens,
            blocks: None,
            output_tokens: 0,
            output_tokens_max: 0,
            arrival,
            deadline: None,
            started: None,
            first_token: None,
            last: arrival,
            used: None,
            cached_tokens: None,
            access: None,
            metrics: None,
        }
    }

    /// The answer is complete.
    pub(crate) fn finished(&mut self, finish: Finish) {
        self.outcome = finish.name();
        self.finish = Some(finish);
    }

    pub(crate) fn saw(&mut self, event: &Event) {
        match event.kind {
            EventKind::Started => self.started(event.at),
            EventKind::Token { .. } => self.tokens(event.at, 1),
            _ => self.last = event.at,
        }
    }

    /// It has left the queue.
    pub(crate) fn started(&mut self, at: Time) {
        self.last = at;
        self.started = Some(at);
        if let Some(metrics) = &self.metrics {
            metrics.queued(at.since(self.arrival));
        }
    }

    /// Tokens of its answer have come.
    pub(crate) fn tokens(&mut self, at: Time, tokens: u32) {
        let before = std::mem::replace(&mut self.last, at);
        let first = self.first_token.is_none();
        self.first_token.get_or_insert(at);
        if let Some(metrics) = &self.metrics {
            match first {
                true => {
                    let since = at.since(self.arrival);
                    metrics.first_token(since, self.prompt_tokens.unwrap_or(0));
                }
                // Those that came together are one event: each has its part of the time.
                false => {
                    let gap = at.since(before).mul_div(1, tokens.max(1).into());
                    (0..tokens).for_each(|_| metrics.another_token(gap));
                }
            }
        }
        self.output_tokens += tokens;
    }

    /// It has ended, and an engine of another kind has told what it used; without that, what was seen holds.
    pub(crate) fn ended(&mut self, at: Time, usage: Option<Usage>) {
        self.last = at;
        if let Some(usage) = usage {
            self.prompt_tokens = Some(usage.prompt_tokens);
            self.output_tokens = usage.output_tokens;
            self.cached_tokens = Some(usage.cached_tokens);
        }
    }

    /// What the client is told of it.
    pub(crate) fn timings(&self, usage: Option<Usage>) -> Timings {
        let [queue_ms, prefill_ms, decode_ms] = self.parts().map(Span::as_millis_f64);
        Timings {
            queue_ms,
            prefill_ms,
            decode_ms,
            preemptions: usage.map(|usage| usage.preemptions),
            cached_tokens: usage.map(|usage| usage.cached_tokens),
        }
    }

    /// Tokens that this request's task has seen.
    pub(crate) fn output_tokens(&self) -> u32 {
        self.output_tokens
    }

    /// Waiting, from the first segment to the first token, and from there to the end; a part that
    /// was not reached is zero.
    fn parts(&self) -> [Span; 3] {
        let started = self.started.unwrap_or(self.last);
        let first_token = self.first_token.unwrap_or(self.last).max(started);
        [
            started.since(self.arrival),
            first_token.since(started),
            self.last.since(first_token),
        ]
    }
}

impl RequestLog {
    fn cached_tokens(&self) -> Option<u32> {
        self.used
            .map_or(self.cached_tokens, |usage| Some(usage.cached_tokens))
    }

    fn answered(&self) -> Answered {
        let [_, prefill, decode] = self.parts();
        let late = match self.finish {
            Some(_) => self.deadline.map(|deadline| self.last > deadline),
            None => (self.outcome == CancelReason::Deadline.code().name).then_some(true),
        };
        Answered {
            finish: self.finish,
            prefill: self.first_token.map(|_| prefill),
            decode,
            whole: self.last.since(self.arrival),
            prompt_tokens: self.prompt_tokens.unwrap_or(0),
            output_tokens: self.output_tokens,
            output_tokens_max: self.output_tokens_max,
            cached_tokens: self.cached_tokens(),
            in_time: late.map(|late| !late),
        }
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        if let Some(metrics) = &self.metrics {
            metrics.ended(&self.id, &self.answered());
        }
        if let Some(access) = &self.access {
            access.generated(Generated {
                id: std::mem::take(&mut self.id),
                outcome: self.outcome,
                prompt_tokens: self.prompt_tokens,
                blocks: self.blocks.take(),
                output_tokens: self.output_tokens,
                cached_tokens: self.cached_tokens(),
                preemptions: self.used.map(|usage| usage.preemptions),
                parts: self.parts(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{RequestId, TokenId};

    use super::*;

    #[test]
    fn the_three_parts_add_up_to_the_whole() {
        let mut log = RequestLog::new("a".to_owned(), Time::from_millis(10), Some(3));
        let event = |millis, kind| Event {
            request: RequestId::new(1),
            at: Time::from_millis(millis),
            kind,
        };
        let token = |index| EventKind::Token {
            token: TokenId::new(0),
            index,
            logprobs: None,
        };
        log.saw(&event(14, EventKind::Started));
        log.saw(&event(20, token(0)));
        log.saw(&event(50, token(1)));
        assert_eq!(log.parts().map(Span::as_millis), [4, 6, 30]);
        assert_eq!(log.output_tokens(), 2);
    }

    #[test]
    fn a_request_that_never_started_only_waited() {
        let mut log = RequestLog::new("a".to_owned(), Time::from_millis(10), Some(3));
        log.last = Time::from_millis(15);
        assert_eq!(log.parts().map(Span::as_millis), [5, 0, 0]);
    }
}
