//! AVX2 with FMA and F16C: two registers for [`LANES`] numbers.
#![expect(
    unsafe_code,
    reason = "vector instructions may only run where the processor has them, which a value proves"
)]

use std::arch::x86_64::*;

use super::super::lanes::{LANES, Lanes};
use super::HIGH_HALF;

/// AVX2 with FMA and F16C: two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        all.then_some(Self(()))
    }
}

impl Lanes for Avx2 {
    const TILE_INPUTS: usize = 4;

    type Vector = (__m256, __m256);

    #[inline]
    fn run<T>(self, work: impl FnOnce() -> T) -> T {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<T>(work: impl FnOnce() -> T) -> T {
            work()
        }
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe { inner(work) }
    }

    #[inline(always)]
    fn load(self, numbers: &[f32; LANES]) -> Self::Vector {
        // SAFETY: `self` proves AVX, and the array is 64 readable bytes; no alignment needed.
        unsafe {
            let start = numbers.as_ptr();
            (_mm256_loadu_ps(start), _mm256_loadu_ps(start.add(8)))
        }
    }

    #[inline(always)]
    fn load_low_bf16(self, bits: &[u16; 2 * LANES]) -> Self::Vector {
        // SAFETY: `self` proves AVX2, and the array is 64 readable bytes.
        unsafe {
            let start: *const __m256i = bits.as_ptr().cast();
            let widen = |pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
            (
                widen(_mm256_loadu_si256(start)),
                widen(_mm256_loadu_si256(start.add(1))),
            )
        }
    }

    #[inline(always)]
    fn load_high_bf16(self, bits: &[u16; 2 * LANES]) -> Self::Vector {
        // SAFETY: as in `load_low_bf16`.
        unsafe {
            let start: *const __m256i = bits.as_ptr().cast();
            let high = _mm256_set1_epi32(HIGH_HALF);
            let widen = |pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, high));
            (
                widen(_mm256_loadu_si256(start)),
                widen(_mm256_loadu_si256(start.add(1))),
            )
        }
    }

    #[inline(always)]
    fn load_f16(self, bits: &[u16; LANES]) -> Self::Vector {
        // SAFETY: `self` proves F16C, and the array is 32 readable bytes.
        unsafe {
            let start = bits.as_ptr().cast();
            (
                _mm256_cvtph_ps(_mm_loadu_si128(start)),
                _mm256_cvtph_ps(_mm_loadu_si128(start.add(1))),
            )
        }
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, out: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX, and the array is 64 writable bytes.
        unsafe {
            let start = out.as_mut_ptr();
            _mm256_storeu_ps(start, vector.0);
            _mm256_storeu_ps(start.add(8), vector.1);
        }
    }

    #[inline(always)]
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        // SAFETY: `self` proves FMA.
        unsafe {
            (
                _mm256_fmadd_ps(a.0, b.0, c.0),
                _mm256_fmadd_ps(a.1, b.1, c.1),
            )
        }
    }

    #[inline(always)]
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` proves AVX.
        unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        // SAFETY: `self` proves AVX.
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn splat(self, number: f32) -> Self::Vector {
        // SAFETY: `self` proves AVX.
        let half = unsafe { _mm256_set1_ps(number) };
        (half, half)
    }

    #[inline(always)]
    fn sums(self, vectors: [Self::Vector; 4]) -> [f32; 4] {
        // SAFETY: `self` proves AVX.
        unsafe {
            let half = |x: Self::Vector| _mm256_add_ps(x.0, x.1);
            let [a, b, c, d] = vectors;
            sums([half(a), half(b), half(c), half(d)])
        }
    }

    #[inline(always)]
    fn prefetch<T>(self, memory: *const T) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(memory.cast()) }
    }
}

/// The sums of four times eight numbers, in the order of [`Lanes::sums`].
///
/// # Safety
///
/// The processor has AVX.
#[inline(always)]
pub(super) unsafe fn sums(vectors: [__m256; 4]) -> [f32; 4] {
    // SAFETY: the caller's.
    unsafe {
        let half = |x| _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let [a, b, c, d] = vectors;
        let (a, b, c, d) = (half(a), half(b), half(c), half(d));
        let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
        let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
        let sums = _mm_add_ps(
            _mm_shuffle_ps::<0b10_00_10_00>(ab, cd),
            _mm_shuffle_ps::<0b11_01_11_01>(ab, cd),
        );
        let mut out = [0.0; 4];
        _mm_storeu_ps(out.as_mut_ptr(), sums);
        out
    }
}
