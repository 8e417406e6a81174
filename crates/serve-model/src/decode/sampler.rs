//! Chooses a token from logits.
//!
//! Penalties, if there are any; then temperature, then top-k, then top-p, then min-p, in the order of transformers: each filter sees
//! the distribution that the one before it left, renormalised. The draw inverts the cumulative
//! distribution in the order of token ids at one number that is a pure function of (seed, position),
//! so neither the batch nor an earlier draw can change it.

use serve_core::rng::{mix2, unit_f64};
use serve_core::{Logprobs, Sampling, TokenId};

use super::draws::Draws;
use super::logprobs::logprobs;
use super::penalties::{Seen, penalise};

/// Buffers of a sampler; nothing is remembered from one draw to the next.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    kept: Vec<Candidate>,
    /// A row of logits with penalties.
    penalised: Vec<f32>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    logit: f32,
    /// `exp((logit - largest logit) / temperature)`
    weight: f64,
}

impl Sampler {
    /// A sampler.
    pub fn new() -> Self {
        Self::default()
    }

    /// The token at `position`, after a request has `seen` what its penalties count. O(vocabulary),
    /// and O(n log n) in the tokens that top-p has to look at. A NaN among the logits counts as the
    /// least likely.
    pub fn sample(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        position: u32,
        seen: &[Seen],
    ) -> TokenId {
        if !sampling.penalises() {
            return self.choose(logits, sampling, position);
        }
        let mut row = std::mem::take(&mut self.penalised);
        row.clear();
        row.extend_from_slice(logits);
        penalise(&mut row, sampling, seen);
        let token = self.choose(&row, sampling, position);
        self.penalised = row;
        token
    }

    /// The token of each draw, from the row of logits at its place, and the log-probabilities that
    /// draws want.
    pub(crate) fn sample_all<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a [f32]>,
        draws: &Draws,
        tokens: &mut Vec<TokenId>,
        told: &mut Logprobs,
    ) {
        for (index, (row, draw)) in rows.zip(draws.iter()).enumerate() {
            let token = self.sample(row, &draw.sampling, draw.position, draws.seen(draw));
            tokens.push(token);
            if let Some(alternatives) = draw.logprobs {
                told.push(index, logprobs(row, token, alternatives));
            }
        }
    }

    fn choose(&mut self, logits: &[f32], sampling: &Sampling, position: u32) -> TokenId {
        let best = argmax(logits);
        if sampling.is_greedy() {
            return TokenId::new(best);
        }
        let largest = logits.get(best as usize).copied().unwrap_or(0.0);
        let temperature = f64::from(sampling.temperature());
        let candidate = |(token, &logit): (usize, &f32)| Candidate {
            token: token as u32,
            logit,
            weight: (f64::from(logit - largest) / temperature).exp(),
        };
        let possible = |candidate: &Candidate| candidate.weight > 0.0;
        self.kept.clear();
        let all = logits.iter().enumerate().map(candidate);
        self.kept.extend(all.filter(possible));
        if let Some(top_k) = sampling.top_k() {
            self.keep_largest(top_k.get() as usize);
        }
        if sampling.top_p() < 1.0 {
            self.keep_nucleus(f64::from(sampling.top_p()));
        }
        if sampling.min_p() > 0.0 {
            // The most likely token has weight 1 whatever was filtered.
            let least = f64::from(sampling.min_p());
            self.kept.retain(|candidate| candidate.weight >= least);
        }
        self.kept.sort_unstable_by_key(|candidate| candidate.token);
        let unit = Self::random(sampling, position);
        TokenId::new(self.draw(unit).unwrap_or(best))
    }

    /// The number in `[0, 1)` that decides about the token at `position`.
    pub(crate) fn random(sampling: &Sampling, position: u32) -> f64 {
        unit_f64(mix2(sampling.seed(), u64::from(position)))
    }

    fn draw(&self, unit: f64) -> Option<u32> {
        let total: f64 = self.kept.iter().map(|candidate| candidate.weight).sum();
        let target = unit * total;
        let mut sum = 0.0;
        for candidate in &self.kept {
            sum += candidate.weight;
            if sum > target {
                return Some(candidate.token);
            }
        }
        self.kept.last().map(|candidate| candidate.token)
    }

    /// Leaves the `count` most likely in front, unordered, and drops the rest.
    fn keep_largest(&mut self, count: usize) {
        if count < self.kept.len() {
            self.kept.select_nth_unstable_by(count, more_likely);
            self.kept.truncate(count);
        }
    }

    /// Keeps the smallest set of most likely tokens whose share reaches `top_p`. The head of a
    /// vocabulary usually holds it, so the head is sorted first and more only if need be.
    fn keep_nucleus(&mut self, top_p: f64) {
        let total: f64 = self.kept.iter().map(|candidate| candidate.weight).sum();
        let target = top_p * total;
        let mut sorted = 0;
        let mut sum = 0.0;
        let mut head = 64;
        while sorted < self.kept.len() {
            let rest = &mut self.kept[sorted..];
            let step = head.min(rest.len());
            if step < rest.len() {
                rest.select_nth_unstable_by(step, more_likely);
            }
            rest[..step].sort_unstable_by(more_likely);
            for index in sorted..sorted + step {
                sum += self.kept[index].weight;
                if sum >= target {
                    self.kept.truncate(index + 1);
                    return;
                }
            }
            sorted += step;
            head *= 8;
        }
    }
}

/// By logit, the larger first; of equals, the lower id.
fn more_likely(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The index of the largest; of equals, the lowest.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (index as u32, logit);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::History;
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    fn sampling(temperature: f32) -> Sampling {
        Sampling::GREEDY.with_temperature(temperature).unwrap()
    }

    /// How often each token comes up over many positions.
    fn counts(logits: &[f32], sampling: &Sampling, draws: u32) -> Vec<u32> {
        let mut sampler = Sampler::new();
        let mut counts = vec![0; logits.len()];
        for position in 0..draws {
            let token = sampler.sample(logits, sampling, position, &[]);
            counts[token.get() as usize] += 1;
        }
        counts
    }

    /// Pearson's statistic against expected probabilities; tokens of probability 0 must not occur.
    fn chi_square(counts: &[u32], expected: &[f64]) -> f64 {
        let draws: u32 = counts.iter().sum();
        let mut sum = 0.0;
        for (&count, &share) in counts.iter().zip(expected) {
            let expected = share * f64::from(draws);
            if expected == 0.0 {
                assert_eq!(count, 0, "a filtered token was drawn");
            } else {
                sum += (f64::from(count) - expected).powi(2) / expected;
            }
        }
        sum
    }

    fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
        let weights = logits.iter().map(|&x| (f64::from(x) / temperature).exp());
        let weights: Vec<f64> = weights.collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|x| x / sum).collect()
    }

    const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 1.5, 0.0, 2.0];

    #[test]
    fn greedy_takes_the_lowest_id_of_equals() {
        let token = Sampler::new().sample(&LOGITS, &Sampling::GREEDY, 3, &[]);
        assert_eq!(token.get(), 1);
        let token = Sampler::new().sample(&[f32::NAN, 1.0], &Sampling::GREEDY, 3, &[]);
        assert_eq!(token.get(), 1);
    }

    #[test]
    fn frequencies_follow_the_softmax_at_each_temperature() {
        for (temperature, seed) in [(0.5, 1), (1.0, 2), (3.0, 3)] {
            let sampling = sampling(temperature).with_seed(seed);
            let counts = counts(&LOGITS, &sampling, 20_000);
            let statistic = chi_square(&counts, &softmax(&LOGITS, f64::from(temperature)));
            // 99.9% quantile of chi-square with 5 degrees of freedom.
            assert!(statistic < 20.5, "{temperature}: {statistic}, {counts:?}");
        }
    }

    #[test]
    fn top_k_breaks_ties_by_id() {
        let one = sampling(1.0).with_top_k(NonZeroU32::new(1));
        assert_eq!(counts(&LOGITS, &one, 100), [0, 100, 0, 0, 0, 0]);
        let three = sampling(1.0).with_top_k(NonZeroU32::new(3));
        let counts = counts(&LOGITS, &three, 20_000);
        let left = softmax(&[2.0, 1.5, 2.0], 1.0);
        let expected = [0.0, left[0], 0.0, left[1], 0.0, left[2]];
        assert!(chi_square(&counts, &expected) < 13.8);
    }

    #[test]
    fn each_filter_sees_what_the_one_before_it_left() {
        // Probabilities 0.4, 0.3, 0.2, 0.1. After top-k 2 they are 4/7 and 3/7, so top-p 0.55 keeps
        // one token; over all four it would have kept two.
        let logits = [0.4_f32, 0.3, 0.2, 0.1].map(f32::ln);
        let nucleus = sampling(1.0).with_top_p(0.55).unwrap();
        assert_eq!(counts(&logits, &nucleus, 500)[2..], [0, 0]);
        assert!(counts(&logits, &nucleus, 500)[1] > 100);
        let both = nucleus.with_top_k(NonZeroU32::new(2));
        assert_eq!(counts(&logits, &both, 500), [500, 0, 0, 0]);
        // A temperature of 2 makes them 0.325, 0.282, 0.230, 0.163 before top-p looks at them.
        let warm = sampling(2.0).with_top_p(0.7).unwrap();
        let warm = counts(&logits, &warm, 20_000);
        let left = [0.4_f64, 0.3, 0.2].map(f64::sqrt);
        let sum: f64 = left.iter().sum();
        let expected = [left[0] / sum, left[1] / sum, left[2] / sum, 0.0];
        assert!(chi_square(&warm, &expected) < 13.8, "{warm:?}");
        // min-p is relative to the most likely: 0.6 keeps 0.4 and 0.3.
        let relative = sampling(1.0).with_min_p(0.6).unwrap();
        assert_eq!(counts(&logits, &relative, 500)[2..], [0, 0]);
    }

    #[test]
    fn a_wide_nucleus_is_found_beyond_the_head() {
        let logits = vec![0.0_f32; 5_000];
        let nucleus = sampling(1.0).with_top_p(0.5).unwrap();
        let counts = counts(&logits, &nucleus, 30_000);
        assert!(counts[2_500..].iter().all(|&n| n == 0));
        assert!(counts[2_400..2_500].iter().any(|&n| n > 0));
    }

    /// Repetition, presence and frequency, often none.
    fn penalties() -> impl Strategy<Value = (f32, f32, f32)> {
        let repetition = prop_oneof![Just(1.0_f32), 0.5_f32..2.0];
        let other = || prop_oneof![Just(0.0_f32), -2.0_f32..=2.0];
        (repetition, other(), other())
    }

    #[test]
    fn a_penalty_of_a_greedy_request_counts_as_well() {
        let sampling = Sampling::GREEDY.with_presence_penalty(0.6).unwrap();
        let mut history = History::of(&sampling, &[5], 2).unwrap();
        let mut sampler = Sampler::new();
        let mut next = |history: &mut History| {
            let token = sampler.sample(&LOGITS, &sampling, 0, history.seen());
            history.push(token.get());
            token.get()
        };
        // The prompt's token is not penalised; that of the output is, once.
        assert_eq!([(); 4].map(|()| next(&mut history)), [1, 5, 3, 1]);
    }

    proptest! {
        #[test]
        fn the_choice_is_a_pure_function_and_never_leaves_the_filters(
            logits in prop::collection::vec(-8.0_f32..8.0, 1..200),
            temperature in 0.05_f32..3.0,
            top_k in 0_u32..12,
            top_p in 0.05_f32..=1.0,
            min_p in 0.0_f32..0.9,
            outputs in prop::collection::vec(0_u32..200, 0..9),
            (repetition, presence, frequency) in penalties(),
            seed: u64,
            position: u32,
        ) {
            let sampling = sampling(temperature)
                .with_top_k(NonZeroU32::new(top_k))
                .with_top_p(top_p).unwrap()
                .with_min_p(min_p).unwrap()
                .with_seed(seed);
            let penalised = sampling
                .with_repetition_penalty(repetition).unwrap()
                .with_presence_penalty(presence).unwrap()
                .with_frequency_penalty(frequency).unwrap();
            let history = History::of(&penalised, &[1], outputs.len());
            let mut history = history.into_iter().collect::<Vec<_>>();
            history.iter_mut().for_each(|h| outputs.iter().for_each(|&token| h.push(token)));
            let seen = history.first().map_or(&[][..], History::seen);
            let token = Sampler::new().sample(&logits, &penalised, position, seen);
            let mut used = Sampler::new();
            used.sample(&[1.0, 2.0, 3.0], &penalised, position ^ 1, seen);
            prop_assert_eq!(token, used.sample(&logits, &penalised, position, seen));
            // A penalty is a change of the logits and nothing else; one that changes nothing is none.
            let mut logits = logits;
            penalise(&mut logits, &penalised, seen);
            prop_assert_eq!(token, Sampler::new().sample(&logits, &sampling, position, &[]));
            let chosen = logits[token.get() as usize];
            let better = logits.iter().filter(|&&x| x > chosen).count();
            prop_assert!(top_k == 0 || better < top_k as usize);
            let largest = logits.iter().copied().fold(f32::MIN, f32::max);
            let ratio = (f64::from(chosen - largest) / f64::from(temperature)).exp();
            prop_assert!(ratio >= f64::from(min_p));
        }
    }
}
