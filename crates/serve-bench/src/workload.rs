//! What is sent and when: a pure function of its settings and a seed.
//!
//! Arrivals and prompts are drawn from streams of their own, so that the same seed sends the same
//! prompts at any rate.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serve_core::Span;
use serve_core::rng::{Rng, mix2};
use thiserror::Error;

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Open loop, evenly spaced: request `i` at `i / rate_per_s`.
    Constant {
        /// Requests a second.
        rate_per_s: f64,
    },
    /// Open loop with independent, exponentially distributed gaps of mean `1 / rate_per_s`.
    Poisson {
        /// Requests a second, on average.
        rate_per_s: f64,
    },
    /// Closed loop: each client sends its next request when its last one has ended.
    Closed {
        /// How many clients there are.
        clients: u32,
    },
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Constant { rate_per_s } => write!(f, "open loop, {rate_per_s}/s evenly spaced"),
            Self::Poisson { rate_per_s } => write!(f, "open loop, {rate_per_s}/s Poisson"),
            Self::Closed { clients: 1 } => f.write_str("closed loop, 1 client"),
            Self::Closed { clients } => write!(f, "closed loop, {clients} clients"),
        }
    }
}

/// A workload that cannot be sent.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum WorkloadError {
    /// Zero, negative, infinite or NaN.
    #[error("the rate must be a positive number of requests a second, not {0}")]
    Rate(f64),
    /// Nobody to send.
    #[error("the closed loop needs at least 1 client")]
    Clients,
    /// Nothing to send.
    #[error("at least 1 request must be sent")]
    Requests,
    /// Nothing may be answered.
    #[error("at least 1 output token must be allowed")]
    OutputTokens,
    /// No prompt to choose from.
    #[error("the prompt list is empty; give one JSON object {{\"prompt\": ..}} a line")]
    NoPrompts,
    /// A line of a prompt file is not what it should be.
    #[error("prompt file, line {line}: {cause}; accepted is a JSON object with a string `prompt`")]
    PromptLine {
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        cause: String,
    },
}

/// A list of prompts to draw from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompts(Vec<Arc<str>>);

impl Prompts {
    /// A small mix of chat-sized prompts: questions of a line, tasks of a sentence or two, and passages
    /// of a paragraph or more. All fit in a context of 512 tokens, with room for an answer.
    pub fn builtin() -> Self {
        let passage = "It is a truth universally acknowledged, that a single man in possession of a \
            good fortune, must be in want of a wife. However little known the feelings or views of \
            such a man may be on his first entering a neighbourhood, this truth is so well fixed in \
            the minds of the surrounding families, that he is considered as the rightful property \
            of some one or other of their daughters. ";
        let short = [
            "What is the capital of Portugal?",
            "Name three rivers in South America.",
            "Why is the sky blue?",
            "Write a haiku about the sea.",
            "How do I boil an egg?",
            "Translate 'good morning' into French, German and Italian.",
        ];
        let medium = [
            "Explain to a ten-year-old how a bicycle stays upright, in at most five sentences.",
            "I have flour, eggs, milk and two apples. What can I bake, and in which order do I mix?",
            "Write a polite letter to a neighbour whose dog barks every night, and suggest a remedy.",
            "Compare a linked list with an array: what is fast, what is slow, and when does it matter?",
        ];
        let long = [
            format!(
                "Summarise this passage in one sentence.\n\n{}",
                passage.repeat(2)
            ),
            format!("Who speaks, and of whom?\n\n{}", passage.repeat(3)),
        ];
        let all = short.into_iter().chain(medium).map(Arc::from);
        Self(all.chain(long.into_iter().map(Arc::from)).collect())
    }

    /// Prompts from the text of a JSONL file: one object with a string `prompt` a line; other keys are
    /// left alone, blank lines are skipped.
    ///
    /// # Errors
    ///
    /// [`WorkloadError::PromptLine`] for the first line that is none, [`WorkloadError::NoPrompts`]
    /// when there is no line.
    pub fn parse(text: &str) -> Result<Self, WorkloadError> {
        #[derive(Deserialize)]
        struct Line {
            prompt: String,
        }
        let lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty());
        let prompts = lines.map(|(index, line)| {
            let line: Line =
                serde_json::from_str(line).map_err(|error| WorkloadError::PromptLine {
                    line: index + 1,
                    cause: error.to_string(),
                })?;
            Ok(line.prompt.into())
        });
        let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
        match prompts.is_empty() {
            true => Err(WorkloadError::NoPrompts),
            false => Ok(Self(prompts)),
        }
    }
}

/// One request of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its place in the workload, from 0.
    pub index: u64,
    /// When it is due, counted from the start of the run; absent in a closed loop, where it is due
    /// when its client is free.
    pub due: Option<Span>,
    /// The user's message.
    pub prompt: Arc<str>,
    /// Tokens that the answer may have.
    pub output_tokens_max: u32,
    /// The seed of the server's sampling.
    pub seed: u64,
}

/// What is sent and when, valid by construction.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    arrivals: Arrivals,
    prompts: Prompts,
    requests: u64,
    output_tokens_max: u32,
    seed: u64,
}

impl Workload {
    /// `requests` requests with prompts drawn from `prompts`.
    ///
    /// # Errors
    ///
    /// [`WorkloadError`] when a number is zero or the rate is no positive number.
    pub fn new(
        arrivals: Arrivals,
        prompts: Prompts,
        requests: u64,
        output_tokens_max: u32,
        seed: u64,
    ) -> Result<Self, WorkloadError> {
        match arrivals {
            Arrivals::Constant { rate_per_s } | Arrivals::Poisson { rate_per_s }
                if !(rate_per_s > 0.0 && rate_per_s.is_finite()) =>
            {
                return Err(WorkloadError::Rate(rate_per_s));
            }
            Arrivals::Closed { clients: 0 } => return Err(WorkloadError::Clients),
            _ => {}
        }
        if requests == 0 {
            return Err(WorkloadError::Requests);
        }
        if output_tokens_max == 0 {
            return Err(WorkloadError::OutputTokens);
        }
        if prompts.0.is_empty() {
            return Err(WorkloadError::NoPrompts);
        }
        Ok(Self {
            arrivals,
            prompts,
            requests,
            output_tokens_max,
            seed,
        })
    }

    /// When requests are sent.
    pub fn arrivals(&self) -> Arrivals {
        self.arrivals
    }

    /// How many requests there are.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The requests in the order of their schedule. Lazy: a long workload takes no memory.
    pub fn plan(&self) -> impl Iterator<Item = Planned> + Send + use<> {
        let workload = self.clone();
        let mut gaps = Rng::new(mix2(workload.seed, 1));
        let mut clock_s = 0.0;
        (0..self.requests).map(move |index| {
            let due = match workload.arrivals {
                // A product, not a sum of gaps: the last request is as exact as the first.
                Arrivals::Constant { rate_per_s } => Some(index as f64 / rate_per_s),
                Arrivals::Poisson { rate_per_s } => {
                    clock_s += gaps.exponential(1.0 / rate_per_s);
                    Some(clock_s)
                }
                Arrivals::Closed { .. } => None,
            };
            workload.request(index, due.map(Span::from_secs_f64))
        })
    }

    fn request(&self, index: u64, due: Option<Span>) -> Planned {
        let mut draws = Rng::new(mix2(mix2(self.seed, 2), index));
        let choice = draws.below(self.prompts.0.len() as u64) as usize;
        Planned {
            index,
            due,
            prompt: Arc::clone(&self.prompts.0[choice]),
            output_tokens_max: self.output_tokens_max,
            // 31 bits: some servers read the seed as a signed 32-bit number.
            seed: draws.next_u64() >> 33,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(arrivals: Arrivals, requests: u64, seed: u64) -> Workload {
        Workload::new(arrivals, Prompts::builtin(), requests, 16, seed).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_requests_and_another_seed_others() {
        let poisson = Arrivals::Poisson { rate_per_s: 10.0 };
        let plan = |seed| workload(poisson, 200, seed).plan().collect::<Vec<_>>();
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }

    #[test]
    fn the_arrivals_do_not_change_what_is_sent() {
        let prompts = |arrivals| {
            let plan = workload(arrivals, 50, 3).plan();
            plan.map(|planned| (planned.prompt, planned.seed))
                .collect::<Vec<_>>()
        };
        let closed = prompts(Arrivals::Closed { clients: 4 });
        assert_eq!(closed, prompts(Arrivals::Poisson { rate_per_s: 2.0 }));
        assert_eq!(closed, prompts(Arrivals::Constant { rate_per_s: 9.0 }));
    }

    #[test]
    fn a_constant_rate_does_not_drift() {
        let last = workload(Arrivals::Constant { rate_per_s: 3.0 }, 3_000_001, 0)
            .plan()
            .last();
        assert_eq!(last.unwrap().due, Some(Span::from_secs(1_000_000)));
    }

    #[test]
    fn poisson_arrivals_have_their_rate_and_the_variance_of_their_gaps() {
        let plan = workload(Arrivals::Poisson { rate_per_s: 50.0 }, 100_000, 11).plan();
        let times = plan
            .filter_map(|planned| planned.due)
            .map(|due| due.as_secs_f64());
        let times = times.collect::<Vec<_>>();
        let gaps = times
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .collect::<Vec<_>>();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 50.0 - 1.0).abs() < 0.02, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn every_builtin_prompt_is_drawn() {
        let plan = workload(Arrivals::Closed { clients: 1 }, 500, 1).plan();
        let drawn = plan
            .map(|planned| planned.prompt)
            .collect::<std::collections::BTreeSet<_>>();
        assert_eq!(drawn.len(), Prompts::builtin().0.len());
    }

    #[test]
    fn the_builtin_prompts_are_short_enough_for_a_small_model() {
        // A vocabulary of a few thousand entries needs a token for about four bytes of English.
        let longest = Prompts::builtin().0.iter().map(|prompt| prompt.len()).max();
        assert!(longest.unwrap() / 4 < 400, "{longest:?}");
    }

    #[test]
    fn a_prompt_file_is_read_and_its_first_bad_line_is_named() {
        let good = "{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\", \"id\": 3}\n";
        assert_eq!(
            Prompts::parse(good).unwrap().0,
            [Arc::from("a"), Arc::from("b")]
        );
        let bad = Prompts::parse("{\"prompt\": \"a\"}\nhello\n")
            .unwrap_err()
            .to_string();
        assert!(bad.starts_with("prompt file, line 2:"), "{bad}");
        assert_eq!(Prompts::parse("\n"), Err(WorkloadError::NoPrompts));
    }

    #[test]
    fn a_workload_that_sends_nothing_cannot_be_built() {
        let build = |arrivals, requests, tokens| {
            Workload::new(arrivals, Prompts::builtin(), requests, tokens, 0).unwrap_err()
        };
        let closed = Arrivals::Closed { clients: 1 };
        assert_eq!(
            build(Arrivals::Closed { clients: 0 }, 1, 1),
            WorkloadError::Clients
        );
        assert_eq!(build(closed, 0, 1), WorkloadError::Requests);
        assert_eq!(build(closed, 1, 0), WorkloadError::OutputTokens);
        for rate_per_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = build(Arrivals::Constant { rate_per_s }, 1, 1);
            assert!(matches!(error, WorkloadError::Rate(_)), "{rate_per_s}");
        }
    }
}
