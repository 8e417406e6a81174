//! What a calibration measures: answers at each batch size for the decode table, the same with longer
//! prompts for the context term, and single prompts of several lengths for the prefill term. Prompts are
//! random token ids, so that lengths are exact and no prefix is ever found in a cache.

use std::num::{NonZeroU32, NonZeroU64};

use crate::workload::spec::{
    Arrivals, Endpoint, Lengths, PromptSet, RequestShape, Spec, Vocabulary,
};

/// What a calibration may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Batch sizes to measure, increasing.
    pub batches: Vec<u32>,
    /// Tokens of the longest prompt and its answer together.
    pub context_max: u32,
    /// Prompt tokens that the server runs in one step.
    pub step_tokens: u32,
    /// Token ids that may be sent.
    pub vocabulary: Vocabulary,
    /// Answers for each client and batch size.
    pub rounds: u32,
    /// Fixes the prompts.
    pub seed: u64,
}

/// One load of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Probe {
    /// Its folder.
    pub id: String,
    /// Requests under way at once.
    pub batch: u32,
    /// Tokens of each prompt.
    pub prompt_tokens: u32,
    /// What is sent.
    pub spec: Spec,
}

/// Tokens of an answer whose steps are timed.
const ANSWER: u32 = 48;
/// Tokens of a short prompt.
const SHORT: u32 = 16;
const UNSEEN_PROMPT_MIN: u32 = 4;
const UNSEEN_ANSWER_MIN: u32 = 8;

impl Range {
    /// The loads, the quick ones first.
    pub(crate) fn loads(&self) -> Vec<Probe> {
        let longest = self.context_max.saturating_sub(ANSWER).max(SHORT);
        // Long enough to show a context term, short enough for a few of them at once.
        let long = longest.min(16 * SHORT.max(self.step_tokens / 16));
        let answers = |batch: u32, tokens: u32| {
            self.load("decode", batch, tokens, ANSWER, self.rounds * batch)
        };
        let prompts = [1, 2, 4, 8, 12, 16].map(|part| (self.step_tokens * part / 16).min(longest));
        let mut prompts = prompts
            .into_iter()
            .filter(|&tokens| tokens > 1)
            .collect::<Vec<_>>();
        prompts.dedup();
        let single = |tokens: u32| self.load("prefill", 1, tokens, 2, 2 + 2 * self.rounds);
        let with_long = self.batches.iter().filter(|_| long > 2 * SHORT);
        let mut loads = prompts
            .into_iter()
            .map(single)
            .chain(self.batches.iter().map(|&batch| answers(batch, SHORT)))
            .chain(with_long.map(|&batch| answers(batch, long)))
            .collect::<Vec<_>>();
        for (load, number) in loads.iter_mut().zip(2..) {
            // Prompts of one seed begin alike, and would be found in the prefix cache.
            load.spec.seed = self.seed + number;
        }
        loads
    }

    /// A load that is not among them, to predict: requests that come when they like, with lengths of
    /// any size.
    ///
    /// # Errors
    ///
    /// When the rate is none.
    pub(crate) fn unseen(&self, rate_per_s: f64, requests: u64) -> Result<Spec, String> {
        let arrivals = Arrivals::Poisson {
            rate_per_s: rate_per_s.try_into()?,
        };
        let prompts = Lengths::Uniform {
            min: UNSEEN_PROMPT_MIN,
            max: self.unseen_prompt_max(),
        };
        let answers = Lengths::Uniform {
            min: UNSEEN_ANSWER_MIN,
            max: ANSWER,
        };
        let mut spec = self.spec("unseen", arrivals, prompts, answers, requests);
        spec.seed = self.seed + 1;
        spec.measure.warmup_requests = 1;
        Ok(spec)
    }

    /// Mean tokens of a prompt and of an answer of that load.
    pub(crate) fn unseen_means(&self) -> (f64, f64) {
        let mean = |min: u32, max: u32| f64::from(min + max) / 2.0;
        let prompt = mean(UNSEEN_PROMPT_MIN, self.unseen_prompt_max());
        (prompt, mean(UNSEEN_ANSWER_MIN, ANSWER))
    }

    fn unseen_prompt_max(&self) -> u32 {
        let longest = self.context_max.saturating_sub(ANSWER).max(SHORT);
        longest.min(self.step_tokens).min(160)
    }

    fn load(&self, name: &str, batch: u32, prompt: u32, answer: u32, requests: u32) -> Probe {
        let id = format!("{name}-{batch}x{prompt}");
        let clients = NonZeroU32::new(batch).unwrap_or(NonZeroU32::MIN);
        let arrivals = Arrivals::Closed {
            clients,
            think_ms: None,
        };
        let (prompts, answers) = (Lengths::Fixed(prompt), Lengths::Fixed(answer));
        let mut spec = self.spec(&id, arrivals, prompts, answers, u64::from(requests));
        spec.measure.warmup_requests = 1;
        Probe {
            id,
            batch,
            prompt_tokens: prompt,
            spec,
        }
    }

    fn spec(
        &self,
        name: &str,
        arrivals: Arrivals,
        prompts: Lengths,
        answers: Lengths,
        requests: u64,
    ) -> Spec {
        Spec {
            name: name.to_owned(),
            seed: self.seed,
            requests: NonZeroU64::new(requests),
            request: RequestShape {
                endpoint: Endpoint::TokenIds,
                vocabulary: Some(self.vocabulary),
                ignore_eos: true,
                ..RequestShape::default()
            },
            prompts: vec![PromptSet {
                name: "ids".to_owned(),
                tokens: Some(prompts),
                output_tokens: answers,
                ..PromptSet::builtin().swap_remove(0)
            }],
            ..Spec::new(arrivals)
        }
    }
}
