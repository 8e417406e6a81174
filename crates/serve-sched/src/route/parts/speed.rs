//! How fast an upstream has been, learned from when first tokens and ends come.
//!
//! ```text
//! time from its turn to its first token = request + prompt token x tokens to run
//! time between tokens                   = step + running token x tokens in the KV cache
//! ```
//!
//! Two straight lines by least squares, forgetting. The turn of a request comes when the one before it has its first token, so
//! the first line holds for an engine that runs prompts one after the other, and for one whose slots are all taken: there a
//! slot that ends is what a turn takes. Plain arithmetic only: the same samples give the same bits anywhere.

use crate::pace::Line;

/// How fast an upstream has been.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Seconds that a request takes until its first token, whatever its prompt.
    pub request_secs: f64,
    /// Seconds for each token of its prompt that is not cached.
    pub prompt_token_secs: f64,
    /// Seconds between two tokens of an answer.
    pub step_secs: f64,
    /// Seconds more for each token in the KV cache.
    pub running_token_secs: f64,
}

impl Speed {
    /// What is taken for the speed of upstreams of which nothing has been heard yet.
    pub const UNKNOWN: Self = Self {
        request_secs: 0.01,
        prompt_token_secs: 1e-4,
        step_secs: 0.02,
        running_token_secs: 0.0,
    };

    /// Seconds until the last of some requests has its first token, with so many tokens to run in all.
    pub fn prefill_secs(&self, requests: u32, tokens: u64) -> f64 {
        f64::from(requests) * self.request_secs + tokens as f64 * self.prompt_token_secs
    }

    /// Seconds from a request's turn to its last token, beside `running_tokens` in the KV cache.
    pub fn service_secs(&self, prompt_tokens: u32, output_tokens: u32, running_tokens: u64) -> f64 {
        let first_token = self.prefill_secs(1, u64::from(prompt_tokens));
        first_token + self.decode_secs(output_tokens, running_tokens)
    }

    /// Seconds from the first of some tokens to the last, beside `running_tokens` in the KV cache.
    pub fn decode_secs(&self, output_tokens: u32, running_tokens: u64) -> f64 {
        let step = self.step_secs + running_tokens as f64 * self.running_token_secs;
        f64::from(output_tokens.saturating_sub(1)) * step
    }
}

/// What has been learned of the speed of an upstream, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::route) struct Learned {
    prefill: Line,
    decode: Line,
}

/// A hundred samples count.
const FORGET: f64 = 1.0 / 64.0;

/// So many samples say something.
const ENOUGH: f64 = 8.0;

impl Learned {
    /// Requests that got their first tokens together took so long from their turn, with so many tokens to run in all.
    pub(in crate::route) fn prefilled(&mut self, requests: u32, tokens: u64, secs: f64) {
        let each = 1.0 / f64::from(requests.max(1));
        self.prefill.add(tokens as f64 * each, secs * each, FORGET);
    }

    /// Tokens came `secs` apart beside `running_tokens` in the KV cache.
    pub(in crate::route) fn decoded(&mut self, running_tokens: u64, secs: f64) {
        self.decode.add(running_tokens as f64, secs, FORGET);
    }

    /// What two together have learned.
    pub(in crate::route) fn plus(&self, other: &Self) -> Self {
        Self {
            prefill: self.prefill.plus(&other.prefill),
            decode: self.decode.plus(&other.decode),
        }
    }

    /// Whether there is enough to tell it from others.
    pub(in crate::route) fn is_enough(&self) -> bool {
        self.prefill.weight() >= ENOUGH
    }

    pub(in crate::route) fn read(&self) -> Speed {
        let unknown = Speed::UNKNOWN;
        let (request_secs, prompt_token_secs) = self
            .prefill
            .read()
            .unwrap_or((unknown.request_secs, unknown.prompt_token_secs));
        let (step_secs, running_token_secs) = self
            .decode
            .read()
            .unwrap_or((unknown.step_secs, unknown.running_token_secs));
        Speed {
            request_secs,
            prompt_token_secs,
            step_secs,
            running_token_secs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_learned_and_a_step_of_several_requests_counts_as_each_of_them() {
        let mut learned = Learned::default();
        assert_eq!(learned.read(), Speed::UNKNOWN);
        for n in 0..200_u64 {
            let tokens = 100 + 37 * (n % 11);
            // 20 ms for each request and 1 ms for each token, four together now and then.
            let together = if n % 5 == 0 { 4 } else { 1 };
            let all = tokens * u64::from(together);
            let secs = 0.02 * f64::from(together) + 0.001 * all as f64;
            learned.prefilled(together, all, secs);
            let running = 1_000 * (n % 7);
            learned.decoded(running, 0.01 + 1e-6 * running as f64);
        }
        assert!(learned.is_enough());
        let speed = learned.read();
        let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 1e-6;
        assert!(near(speed.request_secs, 0.02) && near(speed.prompt_token_secs, 0.001));
        assert!(near(speed.step_secs, 0.01) && near(speed.running_token_secs, 1e-6));
        let secs = speed.service_secs(1_000, 11, 5_000);
        assert!(near(secs, 0.02 + 1.0 + 10.0 * 0.015), "{secs}");
    }

    #[test]
    fn what_two_have_learned_is_what_one_would_have() {
        let (mut one, mut other) = (Learned::default(), Learned::default());
        (1..50).for_each(|n| one.prefilled(1, n * 10, 0.001 * n as f64));
        (1..50).for_each(|n| other.prefilled(1, n * 10, 0.003 * n as f64));
        let both = one.plus(&other).read().prompt_token_secs;
        assert!((both - 0.000_2).abs() < 1e-9, "{both}");
    }
}
