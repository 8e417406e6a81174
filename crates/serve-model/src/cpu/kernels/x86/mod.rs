//! [`Lanes`](super::lanes::Lanes) on x86-64 processors with AVX2 or AVX-512.
//!
//! A value of these types proves that the processor has the instructions: only `detect` makes one.

mod avx2;
mod avx512;
mod dots;

pub(crate) use avx2::Avx2;
pub(crate) use avx512::{Avx512, Bf16Dot, Plain};

/// The upper half of 32 bits.
const HIGH_HALF: i32 = -1 << 16;
