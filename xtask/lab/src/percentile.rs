//! Percentiles of times that were measured.

use std::time::Duration;

/// The smallest sample that is not below `percent` of all, in milliseconds; not a number without
/// samples.
pub(crate) fn percentile_ms(samples: &[Duration], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    let sample = sorted.get(rank - 1);
    sample.map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_samples() {
        let samples: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        assert!((percentile_ms(&samples, 50) - 100.0).abs() < 1e-9);
        assert!((percentile_ms(&samples, 99) - 198.0).abs() < 1e-9);
        assert!((percentile_ms(&samples[..1], 99) - 200.0).abs() < 1e-9);
        assert!(percentile_ms(&[], 99).is_nan());
    }
}
