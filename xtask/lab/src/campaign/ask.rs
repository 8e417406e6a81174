//! What one client of the campaign asks for and how it behaves, as a pure function of a seed.

use std::time::Duration;

use serde_json::{Value, json};
use serve_core::rng::{Rng, mix2};

use crate::client::post;

/// Output tokens of one answer at most; all lengths up to it are as likely.
pub(super) const OUTPUT_TOKENS_MAX: u64 = 40;
/// Words in one prompt at most; all lengths up to it are as likely.
const PROMPT_WORDS_MAX: u64 = 100;
/// By how many words a prompt of megabytes is longer, for each of its words.
const MEGABYTES: usize = 4_000;

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Conduct {
    /// Reads its answer to the end.
    Reads,
    /// Reads it bit by bit, with pauses.
    ReadsSlowly,
    /// Goes away in the middle of its answer, if it is a stream.
    LeavesEarly,
    /// Goes away at some time, wherever its request is.
    Leaves,
    /// Goes away before its request is whole.
    LeavesUnsaid,
    /// Goes away when it has sent up to two megabytes, which are a request or most of one.
    LeavesMegabytes,
    /// Sends a byte too many, which hides from the server's system that it goes away.
    SaysTooMuch,
    /// Never reads, and goes away at last.
    Stuck,
    /// Wants its answer soon.
    Hurries,
    /// Cancels its request by name.
    Aborts,
    /// Asks for what is none.
    Errs,
}

impl Conduct {
    /// Whether it goes away by itself, so that only the server knows how its request ended.
    fn leaves(self) -> bool {
        matches!(
            self,
            Self::LeavesEarly
                | Self::Leaves
                | Self::LeavesUnsaid
                | Self::LeavesMegabytes
                | Self::SaysTooMuch
                | Self::Stuck
        )
    }
}

/// One client.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) conduct: Conduct,
    pub(super) stream: bool,
    chat: bool,
    prompt_words: u64,
    /// Tokens of a whole answer.
    pub(super) output_tokens: u64,
    /// Whether a stop string may end it before.
    pub(super) stop: bool,
    paid: bool,
    /// When it leaves, gives up or hurries.
    pub(super) delay: Duration,
    /// The name of its request.
    pub(super) name: String,
}

impl Ask {
    /// Client `index` of the campaign of `seed`. A patient one never goes away.
    pub(super) fn drawn(seed: u64, index: u64, patient: bool) -> Self {
        let mut rng = Rng::new(mix2(seed, index));
        let drawn = match rng.below(100) {
            0..40 => Conduct::Reads,
            40..46 => Conduct::ReadsSlowly,
            46..58 => Conduct::LeavesEarly,
            58..68 => Conduct::Leaves,
            68..71 => Conduct::LeavesUnsaid,
            71 => Conduct::LeavesMegabytes,
            72 => Conduct::SaysTooMuch,
            73..75 => Conduct::Stuck,
            75..86 => Conduct::Hurries,
            86..95 => Conduct::Aborts,
            _ => Conduct::Errs,
        };
        let conduct = match patient && drawn.leaves() {
            true => Conduct::Reads,
            false => drawn,
        };
        Self {
            conduct,
            stream: conduct == Conduct::LeavesEarly || rng.below(3) > 0,
            chat: rng.below(2) == 0,
            prompt_words: 1 + rng.below(PROMPT_WORDS_MAX),
            output_tokens: 1 + rng.below(OUTPUT_TOKENS_MAX),
            stop: rng.below(20) == 0,
            paid: rng.below(2) == 0,
            delay: Duration::from_millis(1 + rng.below(150)),
            name: format!("campaign-{seed}-{index}"),
        }
    }

    /// The bytes of its request.
    pub(super) fn request(&self) -> Vec<u8> {
        let times = match self.conduct {
            Conduct::LeavesMegabytes => MEGABYTES,
            _ => 1,
        };
        let prompt = " bade".repeat(self.prompt_words as usize * times);
        let mut body = match self.chat {
            true => json!({"messages": [{"role": "user", "content": prompt}]}),
            false => json!({"prompt": prompt}),
        };
        body["max_tokens"] = json!(self.output_tokens);
        body["stream"] = json!(self.stream);
        if self.stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        if self.stop {
            // About one word in sixteen holds one of them.
            body["stop"] = json!(["za", "bo"]);
        }
        if self.conduct == Conduct::Errs {
            let wrong = [
                ("max_tokens", json!(-1)),
                ("max_tokens", json!(100_000)),
                ("n", json!(7)),
                ("timeout_ms", json!("soon")),
                ("request_class", json!("royal")),
            ];
            let (name, value) = &wrong[self.prompt_words as usize % wrong.len()];
            body[*name] = value.clone();
        }
        let class = if self.paid { "paid" } else { "free" };
        let mut headers = format!("x-request-id: {}\r\n", self.name);
        if self.conduct != Conduct::Errs {
            headers += &format!("x-request-class: {class}\r\n");
        }
        if self.conduct == Conduct::Hurries {
            headers += &format!("x-request-timeout-ms: {}\r\n", self.delay.as_millis());
        }
        post(self.path(), &headers, &body)
    }

    /// The bytes that cancel it.
    pub(super) fn cancellation(&self) -> Vec<u8> {
        let path = format!("/v1/requests/{}/cancel", self.name);
        post(&path, "", &Value::Null)
    }

    fn path(&self) -> &'static str {
        match self.chat {
            true => "/v1/chat/completions",
            false => "/v1/completions",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_same_seed_is_the_same_campaign() {
        let requests = |seed| {
            (0..50)
                .map(|index| Ask::drawn(seed, index, false).request())
                .collect::<Vec<_>>()
        };
        assert_eq!(requests(1), requests(1));
        assert_ne!(requests(1), requests(2));
    }

    #[test]
    fn every_conduct_occurs() {
        let conducts = |patient| {
            let drawn = (0..2_000).map(|index| Ask::drawn(5, index, patient).conduct);
            drawn.collect::<BTreeSet<_>>()
        };
        assert_eq!(conducts(false).len(), 11);
        assert!(conducts(true).into_iter().all(|conduct| !conduct.leaves()));
    }
}
