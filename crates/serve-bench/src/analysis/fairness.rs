//! Who got how much, and who got nothing for long.

use serde::Serialize;

use super::tokens::Tokens;

/// Jain's index of how evenly `shares` are spread: (sum x)^2 / (n sum x^2), from 1/n (one has all) to 1
/// (all have the same). Absent for none, or when nobody has anything.
///
/// Jain, Chiu and Hawe, *A Quantitative Measure of Fairness and Discrimination for Resource Allocation
/// in Shared Computer Systems*, DEC-TR-301, 1984.
pub(crate) fn jain(shares: &[f64]) -> Option<f64> {
    let sum = shares.iter().sum::<f64>();
    let squares = shares.iter().map(|share| share * share).sum::<f64>();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// What one tenant or class asked for and got.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Share {
    /// The tenant or class.
    pub name: String,
    /// Requests it sent.
    pub requests: u64,
    /// Whole answers that it got.
    pub answered: u64,
    /// Output tokens in these.
    pub output_tokens: Tokens,
    /// Requests that waited longer for their first token than a run calls starvation, or in vain.
    pub starved: u64,
}

/// How evenly a run served its tenants (or classes), and whom it starved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fairness {
    /// What is compared: `tenant` or `class`.
    pub by: &'static str,
    /// Each one's part, by name.
    pub shares: Vec<Share>,
    /// Jain's index of answered requests over sent requests, each one's own share.
    pub jain_answered: Option<f64>,
    /// Jain's index of output tokens. Says something only where all ask for as much; absent where any answer
    /// has no count.
    pub jain_output_tokens: Option<f64>,
    /// After how long without a first token a request counts as starved, in milliseconds.
    pub starved_after_ms: f64,
}

impl Fairness {
    /// Computes the indices.
    pub fn new(by: &'static str, shares: Vec<Share>, starved_after_ms: f64) -> Self {
        let answered = |share: &Share| share.answered as f64 / share.requests.max(1) as f64;
        let answered = shares.iter().map(answered).collect::<Vec<_>>();
        let tokens = shares
            .iter()
            .map(|share| Some(share.output_tokens.known()? as f64));
        let tokens = tokens.collect::<Option<Vec<_>>>();
        Self {
            by,
            jain_answered: jain(&answered),
            jain_output_tokens: tokens.and_then(|tokens| jain(&tokens)),
            shares,
            starved_after_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_the_published_one() {
        let close = |shares: &[f64], expected: f64| {
            let found = jain(shares).unwrap();
            assert!((found - expected).abs() < 1e-12, "{shares:?}: {found}");
        };
        // The report's own property: k of n served equally gives k/n.
        close(&[1.0, 1.0, 1.0, 0.0], 0.75);
        close(&[7.0; 5], 1.0);
        close(&[3.0, 0.0, 0.0], 1.0 / 3.0);
        // By hand: (1 + 2 + 3)^2 / (3 * 14).
        close(&[1.0, 2.0, 3.0], 36.0 / 42.0);
        assert_eq!(jain(&[]), None);
        assert_eq!(jain(&[0.0, 0.0]), None);
    }

    #[test]
    fn shares_of_what_each_asked_for_are_compared() {
        let share = |name: &str, requests, answered, output_tokens| Share {
            name: name.to_owned(),
            requests,
            answered,
            output_tokens: Tokens {
                counted: output_tokens,
                answers: answered,
                uncounted: 0,
            },
            starved: 0,
        };
        let shares = vec![share("a", 100, 50, 900), share("b", 10, 5, 100)];
        let fairness = Fairness::new("tenant", shares, 1_000.0);
        assert_eq!(fairness.jain_answered, Some(1.0));
        // By hand: 1000^2 / (2 * (900^2 + 100^2)).
        let tokens = fairness.jain_output_tokens.unwrap();
        assert!((tokens - 1e6 / 1.64e6).abs() < 1e-12);
        let mut shares = fairness.shares;
        shares[1].output_tokens.uncounted = 1;
        assert_eq!(
            Fairness::new("tenant", shares, 1_000.0).jain_output_tokens,
            None
        );
    }
}
