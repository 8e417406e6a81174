//! Intervals of a mean difference by Student's t (*The Probable Error of a Mean*, Biometrika 6, 1908),
//! and by Welch's where the two sides are not paired (*The Generalization of `Student's' Problem*,
//! Biometrika 34, 1947).
//!
//! The few numbers that go in are statistics of whole runs, or of long sections of one: close to
//! normal and to independent, which single latencies are not.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// A mean difference and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Difference {
    /// The mean of the differences, or the difference of the means.
    pub mean: f64,
    /// From and to.
    pub interval: [f64; 2],
}

/// Of pairs, one difference each. Absent for fewer than two.
pub(crate) fn paired(differences: &[f64], confidence: f64) -> Option<Difference> {
    let moments = Moments::of(differences)?;
    let freedom = moments.count - 1.0;
    let error = (moments.variance / moments.count).sqrt();
    around(moments.mean, error, freedom, confidence)
}

/// Of two sides that share nothing: `b - a`. Absent when either has fewer than two.
pub(crate) fn unpaired(a: &[f64], b: &[f64], confidence: f64) -> Option<Difference> {
    let (a, b) = (Moments::of(a)?, Moments::of(b)?);
    let (of_a, of_b) = (a.variance / a.count, b.variance / b.count);
    let error = (of_a + of_b).sqrt();
    let parts = of_a.powi(2) / (a.count - 1.0) + of_b.powi(2) / (b.count - 1.0);
    // Without any spread the degrees of freedom do not matter.
    let freedom = match parts > 0.0 {
        true => (of_a + of_b).powi(2) / parts,
        false => 1.0,
    };
    around(b.mean - a.mean, error, freedom, confidence)
}

fn around(mean: f64, error: f64, freedom: f64, confidence: f64) -> Option<Difference> {
    let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
    let reach = student.inverse_cdf(0.5 + confidence / 2.0) * error;
    let interval = [mean - reach, mean + reach];
    interval[0]
        .is_finite()
        .then_some(Difference { mean, interval })
}

struct Moments {
    count: f64,
    mean: f64,
    variance: f64,
}

impl Moments {
    fn of(values: &[f64]) -> Option<Self> {
        if values.len() < 2 {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares = values.iter().map(|value| (value - mean).powi(2));
        let variance = squares.sum::<f64>() / (count - 1.0);
        Some(Self {
            count,
            mean,
            variance,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 5e-3, "{found}, not {expected}");
    }

    #[test]
    fn students_own_example_gives_his_t() {
        // Additional hours of sleep by two drugs, ten patients: t = 4.06 with 9 degrees of freedom.
        let first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
        let second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
        let differences = first
            .iter()
            .zip(second)
            .map(|(a, b)| b - a)
            .collect::<Vec<_>>();
        let found = paired(&differences, 0.95).unwrap();
        close(found.mean, 1.58);
        // 1.58 -+ 2.262 * 1.58 / 4.0621
        close(found.interval[0], 0.700);
        close(found.interval[1], 2.460);
        // The same data taken as two groups, as in R's `t.test(extra ~ group)`: 17.776 degrees.
        let welch = unpaired(&first, &second, 0.95).unwrap();
        close(welch.mean, 1.58);
        close(welch.interval[0], -0.205);
        close(welch.interval[1], 3.365);
    }

    #[test]
    fn one_number_has_no_interval_and_equal_ones_a_point() {
        assert_eq!(paired(&[1.0], 0.95), None);
        assert_eq!(unpaired(&[1.0, 2.0], &[1.0], 0.95), None);
        assert_eq!(paired(&[0.5, 0.5], 0.95).unwrap().interval, [0.5, 0.5]);
        assert_eq!(
            unpaired(&[1.0, 1.0], &[3.0, 3.0], 0.95).unwrap().interval,
            [2.0, 2.0]
        );
    }
}
