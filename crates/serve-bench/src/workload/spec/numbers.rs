//! Numbers that are right by construction. Their errors say what is accepted.

use serde::{Deserialize, Serialize};
use serve_core::Span;

/// A positive, finite number.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Positive(f64);

impl Positive {
    pub(super) const ONE: Self = Self(1.0);
    pub(super) const TEN_MINUTES: Self = Self(600.0);

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// The number as seconds.
    pub fn secs(self) -> Span {
        Span::from_secs_f64(self.0)
    }

    /// The number as milliseconds.
    pub fn millis(self) -> Span {
        Span::from_secs_f64(self.0 / 1e3)
    }

    /// Whether it is 1, a share's default.
    pub(super) fn is_one(&self) -> bool {
        *self == Self::ONE
    }

    pub(super) fn one() -> Self {
        Self::ONE
    }
}

impl TryFrom<f64> for Positive {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        match number > 0.0 && number.is_finite() {
            true => Ok(Self(number)),
            false => Err(format!("{number} is not accepted; give a positive number")),
        }
    }
}

impl From<Positive> for f64 {
    fn from(number: Positive) -> Self {
        number.0
    }
}

/// A number from 0 to 1.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Probability(f64);

impl Probability {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Probability {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        match (0.0..=1.0).contains(&number) {
            true => Ok(Self(number)),
            false => Err(format!(
                "{number} is not accepted; give a number from 0 to 1"
            )),
        }
    }
}

impl From<Probability> for f64 {
    fn from(number: Probability) -> Self {
        number.0
    }
}
