//! What tensors are read from.

use std::fmt;

use super::error::WeightsError;

/// Where a decoder's tensors come from: a checkpoint, or anything else that can fill a buffer.
pub trait TensorSource: fmt::Debug + Sync {
    /// Writes elements of the named tensor, row by row, from number `first` on, over `out`.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] when the tensor is not there, has no such elements, or cannot be read.
    fn fill(&self, tensor: &str, first: usize, out: &mut [f32]) -> Result<(), WeightsError>;

    /// Writes the bits of elements of the named tensor, which is stored in 16 bits, from number `first`
    /// on, over `out`.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] as for [`TensorSource::fill`], and when the tensor is stored otherwise.
    fn fill_bits(&self, tensor: &str, first: usize, out: &mut [u16]) -> Result<(), WeightsError>;

    /// How the elements of one tensor are stored, of which there are at least so many.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] when the tensor is not there, has fewer elements or a type that cannot be read.
    fn stored(&self, tensor: &str, elements: usize) -> Result<StoredType, WeightsError>;

    /// How the elements of all tensors are stored: `bf16`, `f16`, `f32`, or `mixed`.
    fn stored_dtype(&self) -> &'static str;
}

/// A type in which a tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredType {
    /// 32 bits.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl StoredType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::F16 | Self::Bf16 => size_of::<u16>(),
        }
    }
}
