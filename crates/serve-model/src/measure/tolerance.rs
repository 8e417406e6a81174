//! How near logits come to a reference's, and how near they have to. For the command and the tests that
//! compare; which logits of which prompts are compared is theirs to say.

use thiserror::Error;

use crate::load::ModelInfo;
use crate::numbers::Quantization;

/// How far logits may be from a reference's, which computes in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Each by so much.
    Each(f32),
    /// All of a row together: the root of their mean squared error, as a share of how far the logits
    /// are spread around their mean (a row that says nothing, the same logit everywhere, is off by 1).
    Share(f64),
}

/// Logits that are too far from the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum Off {
    /// One of them.
    #[error("logit of #{token} is {found}, reference {expected}")]
    Logit {
        /// Its token.
        token: usize,
        /// What it is.
        found: f32,
        /// What it should be.
        expected: f32,
    },
    /// A row.
    #[error("logits are off by {share:.3} of their spread, and {max} is accepted")]
    Share {
        /// How far.
        share: f64,
        /// How far they may be.
        max: f64,
    },
}

impl Tolerance {
    /// Where matrix products in f32 round their factors to TF32, ten bits: on a GPU's tensor cores.
    pub const TF32: Self = Self::Share(0.03);
    /// Where they round them to bf16, seven bits, and a GPU its weights, activations and cache as well.
    pub const BF16: Self = Self::Share(0.1);

    /// Of a model as it has been loaded.
    pub fn of(info: &ModelInfo) -> Self {
        match (info.quantization, info.stored_dtype) {
            (Some(quantization), _) => Self::quantized(quantization, info.dtype == "int8"),
            (None, _) if info.dtype == "bf16" => Self::BF16,
            (None, _) if info.device.starts_with("cuda") => Self::TF32,
            (None, "f32") => Self::Each(1e-3),
            (None, _) => Self::Each(2e-2),
        }
    }

    /// Of trained weights that have been made smaller, and of inputs of 8 bits if `inputs_too`. Four bits
    /// less are sixteen times the error of a weight; of random weights, whose errors nothing evens out,
    /// q4 leaves little.
    fn quantized(quantization: Quantization, inputs_too: bool) -> Self {
        /// What 8 bits may do to logits, in weights and in inputs alike.
        const EIGHT: f64 = 0.12;
        let weights = match quantization {
            Quantization::Q8 => EIGHT,
            Quantization::Q4 => 0.25,
        };
        let inputs = if inputs_too { EIGHT } else { 0.0 };
        // Errors that know nothing of each other add up as their squares.
        Self::Share(f64::hypot(weights, inputs))
    }

    /// Compares some logits of a row, token by token. How far they are off, in the tolerance's own
    /// measure: the largest difference, or the share.
    ///
    /// # Errors
    ///
    /// [`Off`] when that is too far; a logit that is missing or no number always is.
    pub fn check(
        self,
        row: &[f32],
        reference: impl Iterator<Item = (usize, f32)>,
    ) -> Result<f64, Off> {
        let pairs = reference.map(|(token, expected)| {
            let found = row.get(token).copied().unwrap_or(f32::NAN);
            (token, found, expected)
        });
        match self {
            Self::Each(max) => {
                let mut worst = 0.0_f32;
                for (token, found, expected) in pairs {
                    let difference = (found - expected).abs();
                    if difference.is_nan() || difference > max {
                        return Err(Off::Logit {
                            token,
                            found,
                            expected,
                        });
                    }
                    worst = worst.max(difference);
                }
                Ok(f64::from(worst))
            }
            Self::Share(max) => {
                let (mut count, mut squares) = (0_u32, 0.0);
                for (_, found, expected) in pairs {
                    count += 1;
                    squares += (f64::from(found) - f64::from(expected)).powi(2);
                }
                let error = (squares / f64::from(count.max(1))).sqrt();
                let share = error / spread(row);
                // A row without a spread, or with what is no number, has no share.
                match share <= max {
                    true => Ok(share),
                    false => Err(Off::Share { share, max }),
                }
            }
        }
    }
}

/// How far the logits of a row are from their mean: the root of the mean square.
pub fn spread(row: &[f32]) -> f64 {
    let count = row.len().max(1) as f64;
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2));
    (squares.sum::<f64>() / count).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: [f32; 4] = [-3.0, -1.0, 1.0, 3.0];

    fn check(tolerance: Tolerance, row: &[f32]) -> Result<f64, Off> {
        tolerance.check(row, REFERENCE.into_iter().enumerate())
    }

    #[test]
    fn the_worst_logit_decides() {
        let row = [-3.0, -1.0, 1.25, 3.0];
        assert_eq!(check(Tolerance::Each(0.25), &row), Ok(0.25));
        let off = Off::Logit {
            token: 2,
            found: 1.25,
            expected: 1.0,
        };
        assert_eq!(check(Tolerance::Each(0.2), &row), Err(off));
    }

    #[test]
    fn a_row_together_is_held_against_its_spread() {
        // Errors of 1 beside a spread of sqrt(5).
        let row = [-2.0, 0.0, 2.0, 4.0];
        let share = check(Tolerance::Share(0.5), &row).unwrap();
        assert!((share - 0.2_f64.sqrt()).abs() < 1e-9, "{share}");
        let off = check(Tolerance::Share(0.4), &row);
        assert!(matches!(off, Err(Off::Share { max: 0.4, .. })), "{off:?}");
    }

    #[test]
    fn what_is_missing_no_number_or_the_same_everywhere_is_off() {
        for tolerance in [Tolerance::Each(1e9), Tolerance::Share(1e9)] {
            for row in [&[-3.0, -1.0, 1.0][..], &[-3.0, f32::NAN, 1.0, 3.0]] {
                assert!(check(tolerance, row).is_err(), "{tolerance:?}, {row:?}");
            }
        }
        assert!(check(Tolerance::Share(1e9), &[0.5; 4]).is_err());
    }
}
