//! How weights are made smaller when they are loaded. What a block of them looks like is in `stored`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

use super::stored::{GROUP_ROWS, Q4x16, Q8x16, STEP};

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

    /// Bytes of a matrix.
    pub fn bytes(self, rows: usize, columns: usize) -> u64 {
        let group = match self {
            Self::Q8 => size_of::<Q8x16>(),
            Self::Q4 => size_of::<Q4x16>(),
        };
        (rows.div_ceil(GROUP_ROWS) * columns.div_ceil(STEP) * group) as u64
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
