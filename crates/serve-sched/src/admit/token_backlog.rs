//! Only so many prompt tokens wait as can be run within a first-token target.
//!
//! Rule: refuse when `waiting prompt tokens + own prompt > target TTFT x measured prefill rate`.
//! Where prompts differ in length by orders of magnitude, a queue's depth says little about the wait
//! in it and its tokens say a lot. A request that finds nothing waiting is taken however long its
//! prompt is, as otherwise nobody would ever serve it; and everybody is taken before anything was
//! measured.
//!
//! The prefill rate is that of steps that run prompts, with the decodes beside them, so it is what
//! prompts really get. What running requests still have to run of theirs is not counted, nor is the
//! wait for a slot: combine it with a queue cap where slots are short.

use serve_core::{Limit, Refusal, Request, Span};

use super::{Admission, Admit, Load};
use crate::settings::Setting;

/// As its family lists it.
pub(super) const POLICY: Admission = Admission {
    name: "token-backlog",
    settings: &[&TOKEN_BACKLOG.row],
    build: |settings| match settings.get(&TOKEN_BACKLOG) {
        Span::ZERO => Vec::new(),
        target => vec![Box::new(TokenBacklog::new(target))],
    },
    by_default: || Box::new(TokenBacklog::default()),
};

const TOKEN_BACKLOG: Setting<Span> = Setting::seconds(
    "token_backlog",
    "Seconds within which every waiting prompt is to be run, by measurement; 0 is no such limit",
    Span::ZERO,
);

/// Only so many prompt tokens wait as can be run within a first-token target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBacklog {
    ttft_target: Span,
}

impl TokenBacklog {
    /// Prompts are to be run within `ttft_target`; zero turns the policy off.
    pub const fn new(ttft_target: Span) -> Self {
        Self { ttft_target }
    }
}

impl Default for TokenBacklog {
    /// Two seconds.
    fn default() -> Self {
        Self::new(Span::from_secs(2))
    }
}

impl Admit for TokenBacklog {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        let Some(rate) = load.pace.prefill_rate() else {
            return Ok(());
        };
        if self.ttft_target.is_zero() || load.waiting == 0 {
            return Ok(());
        }
        let max = (self.ttft_target.as_secs_f64() * rate) as u64;
        let waiting = load.waiting_prompt_tokens;
        let tokens = waiting.saturating_add(u64::from(request.prompt_tokens()));
        if tokens <= max {
            return Ok(());
        }
        let excess = (tokens - max).min(waiting);
        Err(Refusal::Later {
            limit: Limit::TokenBacklog { tokens, max },
            retry_after: Some(Span::from_secs_f64(excess as f64 / rate)),
        })
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{RequestId, Time, TokenId};

    use super::*;
    use crate::Pace;

    /// An engine that runs 1,000 prompt tokens in a second, and a target of 2 s.
    fn admit(waiting_tokens: u64, prompt: usize) -> Result<(), Refusal> {
        let mut pace = Pace::default();
        pace.stepped(100, 0, Span::from_millis(100));
        let load = Load {
            waiting: u32::from(waiting_tokens > 0),
            waiting_prompt_tokens: waiting_tokens,
            ..Load::idle(1, &pace)
        };
        let prompt = vec![TokenId::new(1); prompt];
        let request = Request::new(RequestId::new(1), Time::ZERO, prompt, 1).unwrap();
        TokenBacklog::new(Span::from_secs(2)).admit(&request, &load)
    }

    #[test]
    fn own_and_waiting_tokens_have_to_fit() {
        assert_eq!(admit(1_900, 100), Ok(()));
        let later = Refusal::Later {
            limit: Limit::TokenBacklog {
                tokens: 2_500,
                max: 2_000,
            },
            retry_after: Some(Span::from_millis(500)),
        };
        assert_eq!(admit(2_400, 100), Err(later));
    }

    #[test]
    fn a_long_prompt_waits_for_an_empty_queue_and_is_then_taken() {
        let refusal = admit(300, 50_000).unwrap_err();
        assert_eq!(refusal.retry_after(), Some(Span::from_millis(300)));
        assert_eq!(admit(0, 50_000), Ok(()));
    }
}
