//! Seeded draws: a stream for each purpose, and the distributions that are drawn from it.

use std::f64::consts::TAU;

use serve_core::rng::{Rng, mix2};

use crate::workload::spec::Lengths;

/// What a stream is for. The numbers are part of what a seed means; they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Gaps = 1,
    PromptSet = 2,
    InputLength = 3,
    OutputLength = 4,
    Tenant = 5,
    Class = 6,
    Cancel = 7,
    Think = 8,
    Sampling = 9,
    Words = 10,
    Turns = 11,
    Jitter = 12,
    PrefixVariant = 13,
    PrefixWords = 14,
    BlockWords = 15,
    Line = 16,
    AnswerWords = 17,
    WarmUp = 18,
}

/// The stream of a purpose, for one of many things.
pub(super) fn stream(seed: u64, purpose: Purpose, number: u64) -> Rng {
    Rng::new(mix2(mix2(seed, purpose as u64), number))
}

/// A number of a distribution. A column of a file has been replaced by its values.
pub(super) fn draw_length(lengths: &Lengths, rng: &mut Rng) -> u32 {
    match lengths {
        Lengths::Fixed(n) => *n,
        Lengths::Uniform { min, max } => {
            let width = u64::from(max - min) + 1;
            min + rng.below(width) as u32
        }
        Lengths::Lognormal { median, p99, max } => {
            // The 99th percentile of the standard normal.
            let sigma = (p99.get() / median.get()).ln() / 2.326_347_874_040_841;
            let drawn = median.get() * (sigma * normal(rng)).exp();
            (drawn.round().max(1.0) as u32).min(*max)
        }
        Lengths::Empirical(values) => values[rng.below(values.len() as u64) as usize],
        Lengths::EmpiricalCsv { .. } => 0,
    }
}

/// A standard normal number (Box and Muller, *A Note on the Generation of Random Normal Deviates*,
/// 1958; the second of the pair is not used).
pub(super) fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.next_f64()).ln()).sqrt();
    radius * (TAU * rng.next_f64()).cos()
}

/// A gamma number with the given shape and scale 1 (Marsaglia and Tsang, *A Simple Method for
/// Generating Gamma Variables*, 2000).
pub(super) fn gamma(shape: f64, rng: &mut Rng) -> f64 {
    if shape < 1.0 {
        // Their note for small shapes: gamma(a) = gamma(a + 1) u^(1/a).
        return gamma(shape + 1.0, rng) * (1.0 - rng.next_f64()).powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        let u = 1.0 - rng.next_f64();
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::spec::Positive;

    fn moments(draws: &[f64]) -> (f64, f64) {
        let n = draws.len() as f64;
        let mean = draws.iter().sum::<f64>() / n;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        (mean, variance)
    }

    #[test]
    fn normal_and_gamma_have_their_moments() {
        let mut rng = Rng::new(3);
        let draws = (0..200_000).map(|_| normal(&mut rng)).collect::<Vec<_>>();
        let (mean, variance) = moments(&draws);
        assert!(
            mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02,
            "{mean} {variance}"
        );
        for shape in [0.1, 0.5, 1.0, 4.0] {
            let draws = (0..200_000)
                .map(|_| gamma(shape, &mut rng))
                .collect::<Vec<_>>();
            let (mean, variance) = moments(&draws);
            assert!((mean / shape - 1.0).abs() < 0.03, "{shape}: {mean}");
            assert!((variance / shape - 1.0).abs() < 0.06, "{shape}: {variance}");
        }
    }

    #[test]
    fn lengths_have_their_range_and_quantiles() {
        let mut rng = Rng::new(5);
        let mut draw = |lengths: &Lengths| {
            let mut drawn = (0..100_000)
                .map(|_| draw_length(lengths, &mut rng))
                .collect::<Vec<_>>();
            drawn.sort_unstable();
            drawn
        };
        let uniform = draw(&Lengths::Uniform { min: 3, max: 5 });
        assert_eq!((uniform[0], uniform[99_999]), (3, 5));
        let of_three = uniform.iter().filter(|n| **n == 3).count();
        assert!((32_000..35_000).contains(&of_three), "{of_three}");
        let positive = |number| Positive::try_from(number).unwrap();
        let lognormal = draw(&Lengths::Lognormal {
            median: positive(100.0),
            p99: positive(1_000.0),
            max: 1_500,
        });
        assert!(
            (98..=102).contains(&lognormal[50_000]),
            "{}",
            lognormal[50_000]
        );
        assert!(
            (950..=1_050).contains(&lognormal[99_000]),
            "{}",
            lognormal[99_000]
        );
        assert_eq!(lognormal[99_999], 1_500);
        let empirical = draw(&Lengths::Empirical(vec![7, 7, 7, 9]));
        let of_nine = empirical.iter().filter(|n| **n == 9).count();
        assert!((24_000..26_000).contains(&of_nine), "{of_nine}");
    }
}
