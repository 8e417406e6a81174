//! Exact percentiles of values that belong to requests, also when requests are drawn again with
//! weights. It is not an estimate from buckets: nearest rank, on every value.

/// Values of one metric, sorted, each with the request that it came from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Value and position of its request.
    sorted: Vec<(f64, u32)>,
}

impl Sample {
    /// A sample of (position of the request, value) pairs in any order. A request may have no value, or
    /// many. Values that are no number are left out.
    pub(crate) fn new(values: impl IntoIterator<Item = (u32, f64)>) -> Self {
        let values = values.into_iter().filter(|(_, value)| !value.is_nan());
        let mut sorted = values
            .map(|(unit, value)| (value, unit))
            .collect::<Vec<_>>();
        sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        Self { sorted }
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The values, smallest first.
    pub(crate) fn values(&self) -> impl ExactSizeIterator<Item = f64> + '_ {
        self.sorted.iter().map(|(value, _)| *value)
    }

    /// The smallest value that at least the share `quantile` of all values does not exceed (nearest
    /// rank, definition 1 of Hyndman and Fan, *Sample Quantiles in Statistical Packages*, The American
    /// Statistician 50, 1996).
    pub(crate) fn quantile(&self, quantile: f64) -> Option<f64> {
        self.quantile_among(quantile, self.len())
    }

    /// The same among `all` requests, of which those without a value come last: absent when the rank
    /// falls on one of these. So a request that got no answer is slower than any that did.
    pub(crate) fn quantile_among(&self, quantile: f64, all: usize) -> Option<f64> {
        let rank = rank(quantile, all as u64)?;
        let (value, _) = self.sorted.get(usize::try_from(rank - 1).ok()?)?;
        Some(*value)
    }

    /// The quantiles of the values when the request at position `p` counts `weights[p]` times. One pass
    /// over the values; `quantiles` must ascend.
    pub(crate) fn weighted<const N: usize>(
        &self,
        weights: &[u32],
        quantiles: [f64; N],
    ) -> [Option<f64>; N] {
        let weight = |unit: u32| u64::from(weights.get(unit as usize).copied().unwrap_or(0));
        let total = self.sorted.iter().map(|(_, unit)| weight(*unit)).sum();
        let mut found = [None; N];
        let ranks = quantiles.map(|quantile| rank(quantile, total));
        let (mut next, mut seen) = (0, 0);
        for &(value, unit) in &self.sorted {
            seen += weight(unit);
            while let Some(Some(rank)) = ranks.get(next)
                && seen >= *rank
            {
                found[next] = Some(value);
                next += 1;
            }
        }
        found
    }
}

/// The smallest of plain values that at least the share `quantile` of them does not exceed; `None` without any.
pub fn quantile(values: impl IntoIterator<Item = f64>, quantile: f64) -> Option<f64> {
    Sample::new((0..).zip(values)).quantile(quantile)
}

/// The one in the middle; of two, the lower.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    quantile(values, 0.5)
}

/// The place of a quantile among `count` values, from 1.
fn rank(quantile: f64, count: u64) -> Option<u64> {
    // What a product of floats adds to a whole number must not lift it to the next.
    let rank = (quantile * count as f64 - 1e-9).ceil().max(1.0) as u64;
    (count > 0).then(|| rank.min(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::new(values.iter().enumerate().map(|(i, v)| (i as u32, *v)))
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let hundred = sample(&(1..=100).rev().map(f64::from).collect::<Vec<_>>());
        let shown = [0.0, 0.5, 0.9, 0.95, 0.99, 1.0].map(|q| hundred.quantile(q));
        assert_eq!(shown, [1.0, 50.0, 90.0, 95.0, 99.0, 100.0].map(Some));
        // The example of the nearest-rank definition: 5th, 30th, 40th, 50th and 100th of five values.
        let five = sample(&[15.0, 20.0, 35.0, 40.0, 50.0]);
        let shown = [0.05, 0.3, 0.4, 0.5, 1.0].map(|q| five.quantile(q));
        assert_eq!(shown, [15.0, 20.0, 20.0, 35.0, 50.0].map(Some));
        assert_eq!(sample(&[]).quantile(0.5), None);
        assert_eq!(median([3.0, 1.0, 2.0, 4.0]), Some(2.0));
        assert_eq!(median([]), None);
        assert_eq!(sample(&[f64::NAN]).len(), 0);
    }

    #[test]
    fn what_got_no_answer_is_slower_than_any_answer() {
        // 20 of 100 are fast, the others never end: the median of all is "never".
        let fast = sample(&[0.2; 20]);
        assert_eq!(fast.quantile(0.95), Some(0.2));
        assert_eq!(fast.quantile_among(0.2, 100), Some(0.2));
        assert_eq!(fast.quantile_among(0.21, 100), None);
        assert_eq!(fast.quantile_among(0.95, 100), None);
    }

    #[test]
    fn weights_are_repetitions() {
        let values = Sample::new([(0, 5.0), (1, 1.0), (1, 9.0), (2, 3.0)]);
        let weights = [2, 1, 3];
        let repeated = [5.0, 5.0, 1.0, 9.0, 3.0, 3.0, 3.0];
        let repeated = Sample::new(repeated.into_iter().map(|value| (0, value)));
        let quantiles = [0.1, 0.5, 0.7, 0.99];
        let expected = quantiles.map(|q| repeated.quantile(q));
        assert_eq!(values.weighted(&weights, quantiles), expected);
        assert_eq!(values.weighted(&[1, 1, 1], [0.5]), [values.quantile(0.5)]);
        assert_eq!(values.weighted(&[0, 0, 0], [0.5]), [None]);
    }
}
