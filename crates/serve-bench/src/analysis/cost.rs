//! What a million output tokens cost on hardware that is paid by the hour, busy or not.

use serde::Serialize;

/// A price and what it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Dollars an hour.
    pub per_hour: f64,
    /// Dollars for a million output tokens of whole answers; absent when there was none, or not all are
    /// counted.
    pub per_million_output_tokens: Option<f64>,
    /// Dollars for a million output tokens of answers that kept the SLO; absent when there was none.
    pub per_million_good_tokens: Option<f64>,
}

impl Cost {
    /// `per_hour / (tokens a second * 3600) * 1e6`, for both rates.
    pub fn new(
        per_hour: f64,
        output_tokens_per_s: Option<f64>,
        good_tokens_per_s: Option<f64>,
    ) -> Self {
        let per_million = |rate: Option<f64>| {
            let rate = rate.filter(|rate| *rate > 0.0)?;
            Some(per_hour / (rate * 3_600.0) * 1e6)
        };
        Self {
            per_hour,
            per_million_output_tokens: per_million(output_tokens_per_s),
            per_million_good_tokens: per_million(good_tokens_per_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_tokens_cost_the_time_that_they_take() {
        // A published table: one GPU at 0.40 dollars an hour.
        for (rate, cents) in [(169.9, 65.0), (326.0, 34.0), (603.8, 18.0), (1_050.5, 11.0)] {
            let cost = Cost::new(0.4, Some(rate), Some(0.0));
            let found = cost.per_million_output_tokens.unwrap() * 100.0;
            assert!((found - cents).abs() < 0.5, "{rate}: {found}");
            assert_eq!(cost.per_million_good_tokens, None);
            assert_eq!(
                Cost::new(0.4, None, Some(rate)).per_million_output_tokens,
                None
            );
        }
    }
}
