//! The types of numbers that a decoder on a GPU computes in.

use burn::tensor::DType;
use cubecl::bytes::Bytes;
use cubecl::ir::{ElemType, FloatKind};

use crate::numbers::{Elements, Precision};

/// The type of weights, activations and cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Float {
    /// 32 bits.
    F32,
    /// bfloat16.
    Bf16,
}

impl Float {
    /// What a precision is on a GPU, if it is anything there.
    pub(crate) fn of(precision: Precision) -> Option<Self> {
        match precision {
            Precision::F32 => Some(Self::F32),
            Precision::Bf16 => Some(Self::Bf16),
            Precision::Int8 => None,
        }
    }

    /// What it is called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of a number.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// What Burn calls it.
    pub(super) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }

    /// What CubeCL calls it.
    pub(super) fn element(self) -> ElemType {
        ElemType::Float(match self {
            Self::F32 => FloatKind::F32,
            Self::Bf16 => FloatKind::BF16,
        })
    }

    /// Appends numbers that are stored in this type.
    pub(super) fn decode(self, bytes: &[u8], out: &mut Vec<f32>) {
        match self {
            Self::F32 => {
                let words = bytes.as_chunks::<4>().0.iter();
                out.extend(words.map(|word| f32::from_le_bytes(*word)));
            }
            Self::Bf16 => {
                let words = bytes.as_chunks::<2>().0.iter();
                out.extend(words.map(|word| half::bf16::from_le_bytes(*word).to_f32()));
            }
        }
    }

    /// Numbers as this type stores them.
    pub(super) fn encode(self, elements: Elements) -> Bytes {
        match (self, elements) {
            (Self::Bf16, Elements::Bf16(bits)) => Bytes::from_elems(bits),
            (Self::F32, elements) => Bytes::from_elems(elements.into_f32()),
            (Self::Bf16, elements) => {
                let narrow = |number| half::bf16::from_f32(number).to_bits();
                let bits = elements.into_f32().into_iter().map(narrow);
                Bytes::from_elems(bits.collect::<Vec<u16>>())
            }
        }
    }
}
