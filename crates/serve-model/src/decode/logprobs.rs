//! The log-probabilities of a row of logits: of one token and of the most likely ones.

use serve_core::{ALTERNATIVES_MAX, TokenId, TokenLogprob};

/// The most likely tokens of a row.
#[derive(Clone, Copy, Debug)]
struct MostLikely {
    /// Descending; of equals, the lower id first.
    found: [(f32, u32); ALTERNATIVES_MAX as usize],
    count: usize,
}

/// The log-probability of `token`, then those of the `alternatives` most likely tokens, as
/// [`serve_core::Logprobs`] takes them. O(vocabulary), and the sum is in f64.
pub(crate) fn logprobs(
    logits: &[f32],
    token: TokenId,
    alternatives: u8,
) -> impl Iterator<Item = TokenLogprob> {
    // The first of them is needed in any case.
    let most_likely = MostLikely::of(logits, usize::from(alternatives).max(1));
    let largest = most_likely.found[0].0;
    let weight = |&logit: &f32| f64::from((logit - largest).exp());
    // A NaN has no weight.
    let weights = logits.iter().map(weight).filter(|weight| *weight > 0.0);
    let log_sum = weights.sum::<f64>().ln();
    let of = move |logit: f32, token: u32| {
        let logprob = (f64::from(logit - largest) - log_sum) as f32;
        TokenLogprob {
            token: TokenId::new(token),
            // Nothing but what is no number is not below itself.
            logprob: if logprob.is_nan() {
                f32::NEG_INFINITY
            } else {
                logprob.min(0.0)
            },
        }
    };
    let own = logits.get(token.get() as usize).copied();
    let own = of(own.unwrap_or(f32::NEG_INFINITY), token.get());
    let count = most_likely.count.min(usize::from(alternatives));
    let alternatives = most_likely.found.into_iter().take(count);
    std::iter::once(own).chain(alternatives.map(move |(logit, token)| of(logit, token)))
}

impl MostLikely {
    fn of(logits: &[f32], wanted: usize) -> Self {
        let mut all = Self {
            found: [(f32::NEG_INFINITY, 0); ALTERNATIVES_MAX as usize],
            count: 0,
        };
        let wanted = wanted.min(all.found.len());
        for (token, &logit) in logits.iter().enumerate() {
            let full = all.count == wanted;
            if logit.is_nan() || full && logit <= all.found[wanted - 1].0 {
                continue;
            }
            let place = all.found[..all.count].partition_point(|&(other, _)| other >= logit);
            all.count = (all.count + 1).min(wanted);
            all.found[place..all.count].rotate_right(1);
            all.found[place] = (logit, token as u32);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(logits: &[f32], token: u32, alternatives: u8) -> Vec<(u32, f32)> {
        let all = logprobs(logits, TokenId::new(token), alternatives);
        all.map(|entry| (entry.token.get(), entry.logprob))
            .collect()
    }

    #[test]
    fn the_token_comes_first_and_ties_go_to_the_lower_id() {
        let half = 0.5_f32.ln();
        let quarter = 0.25_f32.ln();
        let found = of(&[quarter, half, quarter], 2, 3);
        let ids: Vec<u32> = found.iter().map(|entry| entry.0).collect();
        assert_eq!(ids, [2, 1, 0, 2]);
        for ((_, found), expected) in found.iter().zip([quarter, half, quarter, quarter]) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
        assert_eq!(of(&[1.0], 0, 20), [(0, 0.0), (0, 0.0)]);
        assert_eq!(of(&[1.0, 2.0], 0, 0).len(), 1);
    }

    #[test]
    fn what_is_no_number_is_impossible() {
        let found = of(&[f32::NAN, 0.0, f32::NEG_INFINITY], 0, 5);
        assert_eq!(found[0], (0, f32::NEG_INFINITY));
        assert_eq!(found[1..], [(1, 0.0), (2, f32::NEG_INFINITY)]);
        assert_eq!(of(&[f32::NAN], 0, 2), [(0, f32::NEG_INFINITY)]);
    }

    proptest! {
        #[test]
        fn they_are_the_sorted_log_softmax(
            logits in prop::collection::vec(-9_i8..9, 1..300),
            token in 0_usize..300,
            alternatives in 0_u8..=20,
        ) {
            let logits: Vec<f32> = logits.into_iter().map(|x| f32::from(x) * 1.5).collect();
            let token = token % logits.len();
            let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            let expected = |id: usize| (f64::from(logits[id]) - sum.ln()) as f32;
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            order.truncate(usize::from(alternatives));
            order.insert(0, token);
            let found = of(&logits, token as u32, alternatives);
            prop_assert_eq!(found.len(), order.len());
            for (&(found, logprob), id) in found.iter().zip(order) {
                prop_assert_eq!(found as usize, id);
                prop_assert!((logprob - expected(id)).abs() < 1e-5);
            }
        }
    }
}
