//! How the next token is chosen from the logits. Parameters only; the arithmetic is the backend's.

use std::num::NonZeroU32;

use thiserror::Error;

/// Sampling parameters, valid by construction. The default is greedy.
///
/// The token at position `p` of a request is a pure function of its logits, these parameters,
/// `(seed, p)` and, where there are penalties, the request's tokens before `p`. What else is in the
/// batch cannot change it, and a recomputation after a preemption draws the same numbers again.
///
/// Penalties change the logits before the temperature does, also those of a greedy request, in the
/// order of vLLM: repetition, then frequency, then presence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    temperature: f32,
    top_k: Option<NonZeroU32>,
    top_p: f32,
    min_p: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    repetition_penalty: f32,
    seed: u64,
}

/// A sampling parameter out of range.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum InvalidSampling {
    /// Negative, infinite or NaN.
    #[error("temperature must be a number from 0 to 100, not {0}")]
    Temperature(f32),
    /// Outside `(0, 1]`.
    #[error("top_p must be more than 0 and at most 1, not {0}")]
    TopP(f32),
    /// Outside `[0, 1)`.
    #[error("min_p must be at least 0 and less than 1, not {0}")]
    MinP(f32),
    /// Outside `[-2, 2]`.
    #[error("presence_penalty must be from -2 to 2, not {0}")]
    PresencePenalty(f32),
    /// Outside `[-2, 2]`.
    #[error("frequency_penalty must be from -2 to 2, not {0}")]
    FrequencyPenalty(f32),
    /// Zero, negative, infinite or NaN.
    #[error("repetition_penalty must be a finite number above 0, not {0}")]
    RepetitionPenalty(f32),
}

impl Sampling {
    /// Always the most likely token; of equals, the one with the lowest id.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: None,
        top_p: 1.0,
        min_p: 0.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: 1.0,
        seed: 0,
    };

    /// Samples from `softmax(logits / temperature)`; a temperature of 0 is greedy.
    ///
    /// # Errors
    ///
    /// [`InvalidSampling::Temperature`] outside `[0, 100]`.
    pub fn with_temperature(mut self, temperature: f32) -> Result<Self, InvalidSampling> {
        if !(0.0..=100.0).contains(&temperature) {
            return Err(InvalidSampling::Temperature(temperature));
        }
        self.temperature = temperature;
        Ok(self)
    }

    /// Keeps only the `top_k` most likely tokens; `None` keeps all.
    #[must_use]
    pub fn with_top_k(mut self, top_k: Option<NonZeroU32>) -> Self {
        self.top_k = top_k;
        self
    }

    /// Keeps the smallest set of most likely tokens whose probability reaches `top_p` (nucleus
    /// sampling, Holtzman et al., ICLR 2020). 1 keeps all.
    ///
    /// # Errors
    ///
    /// [`InvalidSampling::TopP`] outside `(0, 1]`.
    pub fn with_top_p(mut self, top_p: f32) -> Result<Self, InvalidSampling> {
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(InvalidSampling::TopP(top_p));
        }
        self.top_p = top_p;
        Ok(self)
    }

    /// Keeps tokens at least `min_p` times as likely as the most likely one. 0 keeps all.
    ///
    /// # Errors
    ///
    /// [`InvalidSampling::MinP`] outside `[0, 1)`.
    pub fn with_min_p(mut self, min_p: f32) -> Result<Self, InvalidSampling> {
        if !(0.0..1.0).contains(&min_p) {
            return Err(InvalidSampling::MinP(min_p));
        }
        self.min_p = min_p;
        Ok(self)
    }

    /// Subtracts `penalty` from the logits of tokens that the output has (OpenAI's
    /// `presence_penalty`). 0 changes nothing; below 0 makes them more likely.
    ///
    /// # Errors
    ///
    /// [`InvalidSampling::PresencePenalty`] outside `[-2, 2]`.
    pub fn with_presence_penalty(mut self, penalty: f32) -> Result<Self, InvalidSampling> {
        if !(-2.0..=2.0).contains(&penalty) {
            return Err(InvalidSampling::PresencePenalty(penalty));
        }
        self.presence_penalty = penalty;
        Ok(self)
    }

    /// Subtracts `penalty` from the logit of a token once for each time that the output has it
    /// (OpenAI's `frequency_penalty`). 0 changes nothing; below 0 makes it more likely.
    ///
    /// # Errors
    ///
    /// [`InvalidSampling::FrequencyPenalty`] outside `[-2, 2]`.
    pub fn with_frequency_penalty(mut self, penalty: f32) -> Result<Self, InvalidSampling> {
        if !(-2.0..=2.0).contains(&penalty) {
            return Err(InvalidSampling::FrequencyPenalty(penalty));
        }
        self.frequency_penalty = penalty;
        Ok(self)
    }

    /// Divides the logits of tokens that the prompt or the output has by `penalty` where they are
    /// positive, and multiplies them by it where they are not (Keskar et al., *CTRL*, 2019, as
    /// transformers and vLLM do it). 1 changes nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidSampling::RepetitionPenalty`] unless it is a finite number above 0.
    pub fn with_repetition_penalty(mut self, penalty: f32) -> Result<Self, InvalidSampling> {
        if !(penalty > 0.0 && penalty.is_finite()) {
            return Err(InvalidSampling::RepetitionPenalty(penalty));
        }
        self.repetition_penalty = penalty;
        Ok(self)
    }

    /// Fixes the random numbers of this request.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Divides the logits before the softmax; 0 means greedy.
    pub fn temperature(&self) -> f32 {
        self.temperature
    }

    /// How many of the most likely tokens to keep; `None` keeps all.
    pub fn top_k(&self) -> Option<NonZeroU32> {
        self.top_k
    }

    /// The nucleus' probability; 1 keeps all.
    pub fn top_p(&self) -> f32 {
        self.top_p
    }

    /// The least probability to keep, relative to the most likely token; 0 keeps all.
    pub fn min_p(&self) -> f32 {
        self.min_p
    }

    /// What is subtracted from the logits of tokens that the output has; 0 changes nothing.
    pub fn presence_penalty(&self) -> f32 {
        self.presence_penalty
    }

    /// What is subtracted for each time that the output has a token; 0 changes nothing.
    pub fn frequency_penalty(&self) -> f32 {
        self.frequency_penalty
    }

    /// What divides positive logits of tokens that prompt or output has, and multiplies the others;
    /// 1 changes nothing.
    pub fn repetition_penalty(&self) -> f32 {
        self.repetition_penalty
    }

    /// Whether any penalty changes anything, so that the tokens before a position count.
    pub fn penalises(&self) -> bool {
        self.penalises_prompt() || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether tokens of the prompt are penalised as well.
    pub fn penalises_prompt(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// The seed of this request's random numbers.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether the most likely token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::GREEDY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_is_refused_and_named() {
        let greedy = Sampling::GREEDY;
        for bad in [-0.1, 100.5, f32::NAN, f32::INFINITY] {
            assert!(greedy.with_temperature(bad).is_err(), "{bad}");
        }
        for bad in [0.0, 1.1, f32::NAN] {
            assert!(greedy.with_top_p(bad).is_err(), "{bad}");
        }
        for bad in [-0.1, 1.0, f32::NAN] {
            assert!(greedy.with_min_p(bad).is_err(), "{bad}");
        }
        for bad in [-2.1, 2.1, f32::NAN] {
            assert!(greedy.with_presence_penalty(bad).is_err(), "{bad}");
            assert!(greedy.with_frequency_penalty(bad).is_err(), "{bad}");
        }
        for bad in [0.0, -1.0, f32::INFINITY, f32::NAN] {
            assert!(greedy.with_repetition_penalty(bad).is_err(), "{bad}");
        }
        let message = greedy.with_top_p(1.5).unwrap_err().to_string();
        assert_eq!(message, "top_p must be more than 0 and at most 1, not 1.5");
    }
    #[test]
    fn a_penalty_that_changes_nothing_is_none() {
        let with = |presence, frequency, repetition| {
            let sampling = Sampling::GREEDY.with_presence_penalty(presence).unwrap();
            let sampling = sampling.with_frequency_penalty(frequency).unwrap();
            sampling.with_repetition_penalty(repetition).unwrap()
        };
        assert!(!with(0.0, -0.0, 1.0).penalises());
        assert!(with(-0.1, 0.0, 1.0).penalises());
        assert!(with(0.0, 0.1, 1.0).penalises() && !with(0.0, 0.1, 1.0).penalises_prompt());
        assert!(with(0.0, 0.0, 0.9).penalises() && with(0.0, 0.0, 0.9).penalises_prompt());
    }
}
