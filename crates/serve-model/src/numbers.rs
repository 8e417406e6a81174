//! What numbers are rounded to before they are multiplied.

use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

use super::Quantization;

/// What a decoder computes in: on a GPU the type of weights, activations and cache, on the CPU what the
/// factors of matrix products are rounded to. Sums are in f32 in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    F32,
    /// bfloat16; on the CPU with weights that are not quantised.
    Bf16,
    /// On the CPU with quantised weights: those as they are, inputs as whole numbers of 8 bits with one
    /// scale for 32 of them.
    Int8,
}

impl Precision {
    /// All, the larger first.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// Those that go with such weights, the larger first.
    pub fn with(weights: Option<Quantization>) -> &'static [Self] {
        match weights {
            None => &[Self::F32, Self::Bf16],
            Some(_) => &[Self::F32, Self::Int8],
        }
    }

    /// What the CPU computes in unless it is told: with quantised weights, which are not exact either, in
    /// the fastest.
    pub fn of_cpu(weights: Option<Quantization>) -> Self {
        match weights {
            None => Self::F32,
            Some(_) => Self::Int8,
        }
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
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
#[error("there is no precision {name:?}; there are f32, bf16 and int8")]
pub struct UnknownPrecision {
    name: String,
}
