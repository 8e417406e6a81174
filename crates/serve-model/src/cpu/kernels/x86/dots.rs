//! [`Dots`] with AVX2 and AVX-512.
#![expect(
    unsafe_code,
    reason = "vector instructions may only run where the processor has them, which a value proves"
)]

use std::arch::x86_64::*;
use std::mem::transmute;

use super::super::dots::{Dots, QUADS_BYTES, dot_halves};
use super::super::lanes::{LANES, Lanes};
use super::Avx2;
use super::avx512::{Avx512, Bf16Dot, Extension, Plain};

impl Dots for Avx2 {
    const EXCESS: [i32; 2] = [0; 2];

    type Pairs = [Self::Vector; 2];
    type Quads = (__m256i, __m256i);
    type Ints = (__m256i, __m256i);

    #[inline(always)]
    fn load_pairs(self, bits: &[u16; 2 * LANES]) -> Self::Pairs {
        [self.load_low_bf16(bits), self.load_high_bf16(bits)]
    }

    #[inline(always)]
    fn dot_pairs(self, weights: Self::Pairs, x: u32, sums: Self::Vector) -> Self::Vector {
        dot_halves(self, weights, x, sums)
    }

    #[inline(always)]
    fn splat_int(self, number: i32) -> Self::Ints {
        // SAFETY: `self` proves AVX.
        let half = unsafe { _mm256_set1_epi32(number) };
        (half, half)
    }

    #[inline(always)]
    fn load_bits(self, bytes: &[u8; QUADS_BYTES], first: u32, count: u32) -> Self::Vector {
        let (low, high) = self.load_bytes(bytes);
        // SAFETY: `self` proves AVX2.
        unsafe {
            let up = _mm_cvtsi32_si128((32 - first - count).cast_signed());
            let down = _mm_cvtsi32_si128((32 - count).cast_signed());
            let number = |bytes| _mm256_srl_epi32(_mm256_sll_epi32(bytes, up), down);
            self.to_floats((number(low), number(high)))
        }
    }

    #[inline(always)]
    fn load_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Quads {
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
    fn load_low_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Quads {
        let (first, second) = self.load_bytes(bytes);
        (self.low_halves(first), self.low_halves(second))
    }

    #[inline(always)]
    fn load_high_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Quads {
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
    fn dot_quads(self, weights: Self::Quads, x: i32, sums: Self::Ints) -> Self::Ints {
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

impl<E: Dot> Dots for Avx512<E> {
    const EXCESS: [i32; 2] = E::EXCESS;

    type Pairs = E::Pairs;
    type Quads = __m512i;
    type Ints = __m512i;

    #[inline(always)]
    fn load_pairs(self, bits: &[u16; 2 * LANES]) -> E::Pairs {
        E::load_pairs(self, bits)
    }

    #[inline(always)]
    fn dot_pairs(self, weights: E::Pairs, x: u32, sums: __m512) -> __m512 {
        E::dot_pairs(self, weights, x, sums)
    }

    #[inline(always)]
    fn splat_int(self, number: i32) -> __m512i {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_set1_epi32(number) }
    }

    #[inline(always)]
    fn load_bits(self, bytes: &[u8; QUADS_BYTES], first: u32, count: u32) -> __m512 {
        let bytes = self.load_bytes(bytes);
        // SAFETY: `self` proves AVX-512F.
        unsafe {
            let up = _mm_cvtsi32_si128((32 - first - count).cast_signed());
            let down = _mm_cvtsi32_si128((32 - count).cast_signed());
            self.to_floats(_mm512_srl_epi32(_mm512_sll_epi32(bytes, up), down))
        }
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
        unsafe { E::dot_quads(weights, _mm512_set1_epi32(x), sums) }
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

/// How an extension of AVX-512 multiplies.
pub(crate) trait Dot: Extension {
    /// As [`Dots::EXCESS`].
    const EXCESS: [i32; 2];

    /// As [`Dots::Pairs`].
    type Pairs: Copy;

    /// As [`Dots::load_pairs`].
    fn load_pairs(lanes: Avx512<Self>, bits: &[u16; 2 * LANES]) -> Self::Pairs;

    /// As [`Dots::dot_pairs`].
    fn dot_pairs(lanes: Avx512<Self>, weights: Self::Pairs, x: u32, sums: __m512) -> __m512;

    /// What products take, of weights that are stored plus `more`.
    ///
    /// # Safety
    ///
    /// The processor has it.
    unsafe fn weights(bytes: __m512i, more: i8) -> __m512i;

    /// As [`Dots::dot_quads`].
    ///
    /// # Safety
    ///
    /// The processor has it.
    unsafe fn dot_quads(weights: __m512i, x: __m512i, sums: __m512i) -> __m512i;
}

impl Dot for Plain {
    const EXCESS: [i32; 2] = [0; 2];

    type Pairs = [__m512; 2];

    #[inline(always)]
    fn load_pairs(lanes: Avx512<Self>, bits: &[u16; 2 * LANES]) -> Self::Pairs {
        [lanes.load_low_bf16(bits), lanes.load_high_bf16(bits)]
    }

    #[inline(always)]
    fn dot_pairs(lanes: Avx512<Self>, weights: Self::Pairs, x: u32, sums: __m512) -> __m512 {
        dot_halves(lanes, weights, x, sums)
    }

    #[inline(always)]
    unsafe fn weights(bytes: __m512i, more: i8) -> __m512i {
        // SAFETY: the caller's: AVX-512F and BW.
        unsafe { _mm512_sub_epi8(bytes, _mm512_set1_epi8(more)) }
    }

    #[inline(always)]
    unsafe fn dot_quads(weights: __m512i, x: __m512i, sums: __m512i) -> __m512i {
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

impl Dot for Bf16Dot {
    const EXCESS: [i32; 2] = [128, 8];

    type Pairs = __m512bh;

    #[inline(always)]
    fn load_pairs(_: Avx512<Self>, bits: &[u16; 2 * LANES]) -> __m512bh {
        // SAFETY: the value proves AVX-512F, and the array is 64 readable bytes; both types are 64 bytes that
        // may have any value.
        unsafe { transmute(_mm512_loadu_si512(bits.as_ptr().cast())) }
    }

    #[inline(always)]
    fn dot_pairs(_: Avx512<Self>, weights: __m512bh, x: u32, sums: __m512) -> __m512 {
        // SAFETY: the value proves AVX-512F and BF16; both types are 64 bytes that may have any value.
        unsafe {
            let x: __m512bh = transmute(_mm512_set1_epi32(x.cast_signed()));
            _mm512_dpbf16_ps(sums, weights, x)
        }
    }

    #[inline(always)]
    unsafe fn weights(bytes: __m512i, _: i8) -> __m512i {
        bytes
    }

    #[inline(always)]
    unsafe fn dot_quads(weights: __m512i, x: __m512i, sums: __m512i) -> __m512i {
        // SAFETY: the caller's: AVX-512 VNNI, which takes its first factor without a sign.
        unsafe { _mm512_dpbusd_epi32(sums, weights, x) }
    }
}
