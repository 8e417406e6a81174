//! [`Quads`] with AVX2 and AVX-512.
#![expect(
    unsafe_code,
    reason = "vector instructions may only run where the processor has them, which a value proves"
)]

use std::arch::x86_64::*;

use super::super::quads::{QUADS_BYTES, Quads};
use super::Avx2;
use super::avx512::{Avx512, Bf16Dot, Extension, Plain};

impl Quads for Avx2 {
    const QUADS_INPUTS: usize = 2;
    const EXCESS: [i32; 2] = [0; 2];

    type Ints = (__m256i, __m256i);
    type Weights = (__m256i, __m256i);

    #[inline(always)]
    fn splat_int(self, number: i32) -> Self::Ints {
        // SAFETY: `self` proves AVX.
        let half = unsafe { _mm256_set1_epi32(number) };
        (half, half)
    }

    #[inline(always)]
    fn load_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Weights {
        let (first, second) = self.load_bytes(bytes);
        // SAFETY: `self` proves AVX2.
        unsafe {
            let half = _mm256_set1_epi8(i8::MIN);
            (
                _mm256_xor_si256(first, half),
                _mm256_xor_si256(second, half),
            )
        }
    }

    #[inline(always)]
    fn load_low_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Weights {
        let (first, second) = self.load_bytes(bytes);
        (self.low_halves(first), self.low_halves(second))
    }

    #[inline(always)]
    fn load_high_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Weights {
        let (first, second) = self.load_bytes(bytes);
        // SAFETY: `self` proves AVX2.
        let (first, second) = unsafe {
            (
                _mm256_srli_epi16::<4>(first),
                _mm256_srli_epi16::<4>(second),
            )
        };
        (self.low_halves(first), self.low_halves(second))
    }

    #[inline(always)]
    fn dot_quads(self, weights: Self::Weights, x: i32, sums: Self::Ints) -> Self::Ints {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let x = _mm256_set1_epi32(x);
            let dot = |weights, sums| {
                // One factor must be without a sign. Pairs of products stay below 2 * 127 * 127, which
                // 16 bits hold.
                let (weights, x) = (_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
                let pairs = _mm256_maddubs_epi16(weights, x);
                let products = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                _mm256_add_epi32(sums, products)
            };
            (dot(weights.0, sums.0), dot(weights.1, sums.1))
        }
    }

    #[inline(always)]
    fn to_floats(self, ints: Self::Ints) -> Self::Vector {
        // SAFETY: `self` proves AVX.
        unsafe { (_mm256_cvtepi32_ps(ints.0), _mm256_cvtepi32_ps(ints.1)) }
    }
}

impl Avx2 {
    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; QUADS_BYTES]) -> (__m256i, __m256i) {
        // SAFETY: `self` proves AVX, and the array is 64 readable bytes; no alignment needed.
        unsafe {
            let start: *const __m256i = bytes.as_ptr().cast();
            (_mm256_loadu_si256(start), _mm256_loadu_si256(start.add(1)))
        }
    }

    /// The low halves of all bytes, less 8.
    #[inline(always)]
    fn low_halves(self, bytes: __m256i) -> __m256i {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let halves = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
            _mm256_sub_epi8(halves, _mm256_set1_epi8(8))
        }
    }
}

impl<E: Whole> Quads for Avx512<E> {
    const QUADS_INPUTS: usize = 8;
    const EXCESS: [i32; 2] = E::EXCESS;

    type Ints = __m512i;
    type Weights = __m512i;

    #[inline(always)]
    fn splat_int(self, number: i32) -> __m512i {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_set1_epi32(number) }
    }

    #[inline(always)]
    fn load_quads(self, bytes: &[u8; QUADS_BYTES]) -> __m512i {
        // SAFETY: `self` proves what `E` needs.
        unsafe { E::weights(self.load_bytes(bytes), i8::MIN) }
    }

    #[inline(always)]
    fn load_low_quads(self, bytes: &[u8; QUADS_BYTES]) -> __m512i {
        // SAFETY: `self` proves AVX-512F and what `E` needs.
        unsafe {
            let halves = _mm512_and_si512(self.load_bytes(bytes), _mm512_set1_epi8(15));
            E::weights(halves, 8)
        }
    }

    #[inline(always)]
    fn load_high_quads(self, bytes: &[u8; QUADS_BYTES]) -> __m512i {
        // SAFETY: `self` proves AVX-512F and BW and what `E` needs.
        unsafe {
            let halves = _mm512_srli_epi16::<4>(self.load_bytes(bytes));
            E::weights(_mm512_and_si512(halves, _mm512_set1_epi8(15)), 8)
        }
    }

    #[inline(always)]
    fn dot_quads(self, weights: __m512i, x: i32, sums: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512F and what `E` needs.
        unsafe { E::dot(weights, _mm512_set1_epi32(x), sums) }
    }

    #[inline(always)]
    fn to_floats(self, ints: __m512i) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_cvtepi32_ps(ints) }
    }
}

impl<E: Extension> Avx512<E> {
    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; QUADS_BYTES]) -> __m512i {
        // SAFETY: `self` proves AVX-512F, and the array is 64 readable bytes; no alignment needed.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }
}

/// An extension of AVX-512, as far as whole numbers go.
pub(crate) trait Whole: Extension {
    /// As [`Quads::EXCESS`].
    const EXCESS: [i32; 2];

    /// What products take, of weights that are stored plus `more`.
    ///
    /// # Safety
    ///
    /// The processor has it.
    unsafe fn weights(bytes: __m512i, more: i8) -> __m512i;

    /// As [`Quads::dot_quads`].
    ///
    /// # Safety
    ///
    /// The processor has it.
    unsafe fn dot(weights: __m512i, x: __m512i, sums: __m512i) -> __m512i;
}

impl Whole for Plain {
    const EXCESS: [i32; 2] = [0; 2];

    #[inline(always)]
    unsafe fn weights(bytes: __m512i, more: i8) -> __m512i {
        // SAFETY: the caller's: AVX-512F and BW.
        unsafe { _mm512_sub_epi8(bytes, _mm512_set1_epi8(more)) }
    }

    #[inline(always)]
    unsafe fn dot(weights: __m512i, x: __m512i, sums: __m512i) -> __m512i {
        // SAFETY: the caller's: AVX-512F and BW.
        unsafe {
            // As with AVX2.
            let below_zero = _mm512_movepi8_mask(weights);
            let x = _mm512_mask_sub_epi8(x, below_zero, _mm512_setzero_si512(), x);
            let pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(weights), x);
            let products = _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
            _mm512_add_epi32(sums, products)
        }
    }
}

impl Whole for Bf16Dot {
    const EXCESS: [i32; 2] = [128, 8];

    #[inline(always)]
    unsafe fn weights(bytes: __m512i, _: i8) -> __m512i {
        bytes
    }

    #[inline(always)]
    unsafe fn dot(weights: __m512i, x: __m512i, sums: __m512i) -> __m512i {
        // SAFETY: the caller's: AVX-512 VNNI, which takes its first factor without a sign.
        unsafe { _mm512_dpbusd_epi32(sums, weights, x) }
    }
}
