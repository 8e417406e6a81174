//! What numbers are rounded to before they are multiplied.

use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

/// What a decoder computes in: on a GPU the type of weights, activations and cache, on the CPU what the
/// factors of matrix products are rounded to. Sums are in f32 either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// bfloat16.
    Bf16,
}

impl Precision {
    /// All, the larger first.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(name: &str) -> Result<Self, UnknownPrecision> {
        let mut all = Self::ALL.into_iter();
        let precision = all.find(|precision| precision.name() == name);
        precision.ok_or_else(|| UnknownPrecision {
            name: name.to_owned(),
        })
    }
}

/// There is no such precision.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("there is no precision {name:?}; there are f32 and bf16")]
pub struct UnknownPrecision {
    name: String,
}
