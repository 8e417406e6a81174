//! The types of numbers: what a decoder computes in, what weights are made when they are loaded, and
//! weights as they are read.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

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

/// How weights are made smaller when they are loaded: blocks of 32 neighbours in a row with one
/// half-precision scale, as GGML's Q8_0 and Q4_0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// 8 bits a weight, 8.5 with the scale.
    Q8,
    /// 4 bits a weight, 4.5 with the scale.
    Q4,
}

impl Quantization {
    /// All, the larger first.
    pub const ALL: [Self; 2] = [Self::Q8, Self::Q4];

    /// What it is asked for by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Quantization {
    type Err = UnknownQuantization;

    fn from_str(name: &str) -> Result<Self, UnknownQuantization> {
        let found = Self::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| UnknownQuantization {
            name: name.to_owned(),
        })
    }
}

/// There is no quantisation of this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no quantisation {name:?}; there are q8 and q4")]
pub struct UnknownQuantization {
    /// The name given.
    pub name: String,
}

/// Weights as a checkpoint stores them.
#[derive(Clone, Debug)]
pub enum Elements {
    /// 32 bits.
    F32(Vec<f32>),
    /// The bits of half-precision numbers.
    F16(Vec<u16>),
    /// The bits of bfloat16 numbers.
    Bf16(Vec<u16>),
}

impl Elements {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::F16(bits) | Self::Bf16(bits) => bits.len(),
        }
    }

    /// All of them, widened.
    pub(crate) fn into_f32(self) -> Vec<f32> {
        match self {
            Self::F32(numbers) => numbers,
            Self::F16(bits) => bits.into_iter().map(widen_f16).collect(),
            Self::Bf16(bits) => bits.into_iter().map(widen_bf16).collect(),
        }
    }
}

pub(crate) fn widen_f16(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

pub(crate) fn widen_bf16(bits: u16) -> f32 {
    half::bf16::from_bits(bits).to_f32()
}
