//! Percentiles of times that were measured.

use std::time::Duration;

/// The nearest rank, in milliseconds; not a number without samples.
pub(crate) fn percentile_ms(samples: &[Duration], percent: u32) -> f64 {
    let samples = samples.iter().map(|sample| sample.as_secs_f64() * 1e3);
    serve_bench::analysis::quantile(samples, f64::from(percent) / 100.0).unwrap_or(f64::NAN)
}
