//! A deterministic stand-in for a device: it *computes* how long a step takes and never waits.
//!
//! Its driver either advances virtual time by [`StepOutcome::elapsed`] or sleeps to an
//! absolute deadline. One step at a time by construction, like the device it stands for: a mock that
//! lets requests run side by side would make batching look useless.

mod cost;
mod faults;

pub use cost::{CostModel, InvalidCostModel};
pub use faults::{Fault, Faults};

use std::collections::BTreeMap;

use crate::rng::mix2;
use crate::{
    Backend, BackendError, Limits, RequestId, Sampled, Span, StepId, StepLoad, StepOutcome,
    StepPlan, TokenId, TokenLogprob,
};

/// Settings of a [`Mock`].
#[derive(Clone, Debug, PartialEq)]
pub struct MockConfig {
    /// What the device pretends to hold.
    pub limits: Limits,
    /// How long its steps take.
    pub cost: CostModel,
    /// Which steps go wrong.
    pub faults: Faults,
    /// Fixes tokens and faults.
    pub seed: u64,
    /// Tokens are drawn from `0..vocabulary`; at least 1.
    pub vocabulary: u32,
}

impl Default for MockConfig {
    /// A device with room for 16 sequences of 2,048 positions, with [`CostModel::default`].
    fn default() -> Self {
        Self {
            limits: Limits {
                sequences_max: 16,
                step_tokens_max: 2_048,
                context_max: 2_048,
                block_size: 16,
                blocks: 2_049,
            },
            cost: CostModel::default(),
            faults: Faults::NONE,
            seed: 0,
            vocabulary: 32_000,
        }
    }
}

impl MockConfig {
    /// A device with room for so many sequences and tokens in a step. Without a `context` of its own
    /// a request may have 2,048 positions; without a size of the KV cache a whole context fits for
    /// each sequence.
    #[must_use]
    pub fn with_room(
        self,
        sequences: u32,
        step_tokens: u32,
        context: Option<u32>,
        kv_tokens: Option<u32>,
    ) -> Self {
        let default = Self::default().limits;
        let (block_size, context_max) =
            (default.block_size, context.unwrap_or(default.context_max));
        let all = u64::from(context_max.next_multiple_of(block_size)) * u64::from(sequences);
        let kv_tokens = kv_tokens.map_or(all, u64::from);
        // One more: block 0 is never allocated.
        let blocks = u32::try_from(kv_tokens / u64::from(block_size) + 1).unwrap_or(u32::MAX);
        let limits = Limits {
            sequences_max: sequences,
            step_tokens_max: step_tokens,
            context_max,
            block_size,
            blocks,
        };
        Self { limits, ..self }
    }
}

/// The mock device. Tokens are a pure function of (seed, request, position), so batching, chunking
/// and preemption cannot change them; faults are a pure function of (seed, step).
///
/// There are no logits, so sampling parameters change nothing. Each token is certain: who asks for
/// log-probabilities is told 0 for it, and of alternatives the token itself.
#[derive(Clone, Debug)]
pub struct Mock {
    config: MockConfig,
    /// Live requests that ask for log-probabilities, and for how many alternatives.
    asking: BTreeMap<RequestId, u8>,
}

impl Mock {
    /// A device with the given settings.
    pub fn new(config: MockConfig) -> Self {
        Self {
            config,
            asking: BTreeMap::new(),
        }
    }

    /// The settings.
    pub fn config(&self) -> &MockConfig {
        &self.config
    }

    /// The token that this device samples for `request` at `position`.
    pub fn token(&self, request: RequestId, position: u32) -> TokenId {
        let bits = mix2(mix2(self.config.seed, request.get()), u64::from(position));
        let scaled = (u128::from(bits) * u128::from(self.config.vocabulary.max(1))) >> 64;
        TokenId::new(scaled as u32)
    }
}

impl Mock {
    fn tell_logprobs(&self, outcome: &mut StepOutcome) {
        for (index, sampled) in outcome.sampled.iter().enumerate() {
            if let Some(&alternatives) = self.asking.get(&sampled.request) {
                let certain = TokenLogprob {
                    token: sampled.token,
                    logprob: 0.0,
                };
                let entries = std::iter::repeat_n(certain, 1 + usize::from(alternatives > 0));
                outcome.logprobs.push(index, entries);
            }
        }
    }
}

impl Default for Mock {
    fn default() -> Self {
        Self::new(MockConfig::default())
    }
}

impl Backend for Mock {
    fn limits(&self) -> Limits {
        self.config.limits
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        outcome.reset(plan.step());
        outcome.elapsed = self.config.cost.step(&StepLoad::of(plan));
        let asking = plan.starts().iter().filter_map(|request| {
            let alternatives = request.logprobs()?;
            Some((request.id(), alternatives))
        });
        self.asking.extend(asking);
        match self.config.faults.at(self.config.seed, plan.step()) {
            Some(Fault::Stall(extra)) => outcome.elapsed += extra,
            Some(Fault::Error) => {
                return Err(BackendError::Step {
                    cause: format!("injected fault in step {}", plan.step().get()),
                });
            }
            None => {}
        }
        outcome.sampled.reserve(plan.segments().len());
        for segment in plan.segments().iter().filter(|segment| segment.sample) {
            outcome.sampled.push(Sampled {
                request: segment.request,
                token: self.token(segment.request, segment.positions.end),
            });
        }
        if !self.asking.is_empty() {
            self.tell_logprobs(outcome);
            for request in plan.releases() {
                self.asking.remove(request);
            }
        }
        Ok(())
    }

    fn price(&self, step: StepId, load: &StepLoad) -> Option<Span> {
        let cost = self.config.cost.step(load);
        match self.config.faults.at(self.config.seed, step) {
            Some(Fault::Error) => None,
            Some(Fault::Stall(extra)) => Some(cost + extra),
            None => Some(cost),
        }
    }

    fn foresee(&self, request: RequestId, position: u32) -> Option<TokenId> {
        Some(self.token(request, position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockId, StepId};

    fn run(mock: &mut Mock, step: u64, segments: &[(u64, std::ops::Range<u32>)]) -> StepOutcome {
        let mut plan = StepPlan::new();
        plan.reset(StepId::new(step));
        for (request, positions) in segments {
            let blocks = [BlockId::new(1)];
            plan.push_segment(
                RequestId::new(*request),
                positions.clone(),
                true,
                0,
                &blocks,
            );
        }
        let mut outcome = StepOutcome::new();
        mock.execute(&plan, &mut outcome).unwrap();
        outcome
    }

    #[test]
    fn room_is_a_whole_context_for_each_sequence_unless_it_is_said() {
        let with = |context, kv| {
            MockConfig::default()
                .with_room(16, 2_048, context, kv)
                .limits
        };
        assert_eq!(with(None, None), MockConfig::default().limits);
        assert_eq!(with(Some(100), None).usable_blocks(), 16 * 7);
        assert_eq!(with(Some(100), Some(1_600)).usable_blocks(), 100);
    }

    #[test]
    fn a_token_depends_on_its_request_and_position_alone() {
        let mut mock = Mock::default();
        let alone = run(&mut mock, 0, &[(5, 0..10)]).sampled[0];
        let together = run(&mut mock, 9, &[(1, 3..4), (5, 9..10), (2, 0..7)]).sampled[1];
        assert_eq!(alone, together);
        assert_ne!(alone, run(&mut mock, 1, &[(5, 10..11)]).sampled[0]);
    }

    #[test]
    fn tokens_stay_inside_the_vocabulary() {
        let mock = Mock::new(MockConfig {
            vocabulary: 3,
            ..MockConfig::default()
        });
        let mut seen = [0_u32; 3];
        for position in 0..300 {
            seen[mock.token(RequestId::new(1), position).get() as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 50), "{seen:?}");
    }

    #[test]
    fn faults_come_at_their_rate_and_at_the_same_steps_again() {
        let config = MockConfig {
            faults: Faults {
                errors_per_million: 100_000,
                ..Faults::NONE
            },
            ..MockConfig::default()
        };
        let failed = |mut mock: Mock| {
            let failing = |step: &u64| {
                let mut plan = StepPlan::new();
                plan.reset(StepId::new(*step));
                mock.execute(&plan, &mut StepOutcome::new()).is_err()
            };
            (0..10_000).filter(failing).collect::<Vec<_>>()
        };
        let first = failed(Mock::new(config.clone()));
        assert!((900..1_100).contains(&first.len()), "{}", first.len());
        assert_eq!(first, failed(Mock::new(config)));
    }
}
