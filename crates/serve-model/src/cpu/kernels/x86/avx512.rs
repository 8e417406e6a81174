//! AVX-512: one register for [`LANES`] numbers, and bfloat16 numbers multiplied in pairs where the
//! processor does that.
#![expect(
    unsafe_code,
    reason = "vector instructions may only run where the processor has them, which a value proves"
)]

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::super::lanes::{LANES, Lanes};
use super::HIGH_HALF;
use super::avx2::sums;

/// AVX-512, with the extensions `E` that multiply numbers of fewer bits: one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx512<E>(PhantomData<E>);

/// Nothing but AVX-512F, VL, BW, DQ and FMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plain;

/// AVX512_BF16 and AVX512_VNNI too: what has the first has the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bf16Dot;

/// An extension of AVX-512.
pub(crate) trait Extension: Copy + Send + Sync {
    /// Runs `work`, compiled for it.
    ///
    /// # Safety
    ///
    /// The processor has it.
    unsafe fn run<T>(work: impl FnOnce() -> T) -> T;
}

impl Extension for Plain {
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,fma")]
    unsafe fn run<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
}

impl Extension for Bf16Dot {
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx512vnni,fma")]
    unsafe fn run<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
}

impl Avx512<Plain> {
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("fma");
        all.then_some(Self(PhantomData))
    }
}

impl Avx512<Bf16Dot> {
    pub(crate) fn detect() -> Option<Self> {
        let all = Avx512::<Plain>::detect().is_some()
            && is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx512vnni");
        all.then_some(Self(PhantomData))
    }
}

impl<E: Extension> Lanes for Avx512<E> {
    const TILE_INPUTS: usize = 8;

    type Vector = __m512;

    #[inline]
    fn run<T>(self, work: impl FnOnce() -> T) -> T {
        // SAFETY: `self` proves these instructions.
        unsafe { E::run(work) }
    }

    #[inline(always)]
    fn load(self, numbers: &[f32; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512F, and the array is 64 readable bytes; no alignment needed.
        unsafe { _mm512_loadu_ps(numbers.as_ptr()) }
    }

    #[inline(always)]
    fn load_low_bf16(self, bits: &[u16; 2 * LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512F, and the array is 64 readable bytes.
        unsafe {
            let pairs = _mm512_loadu_si512(bits.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs))
        }
    }

    #[inline(always)]
    fn load_high_bf16(self, bits: &[u16; 2 * LANES]) -> __m512 {
        // SAFETY: as in `load_low_bf16`.
        unsafe {
            let pairs = _mm512_loadu_si512(bits.as_ptr().cast());
            let high = _mm512_set1_epi32(HIGH_HALF);
            _mm512_castsi512_ps(_mm512_and_si512(pairs, high))
        }
    }

    #[inline(always)]
    fn load_f16(self, bits: &[u16; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512F, which implies AVX; the array is 32 readable bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bits.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store(self, vector: __m512, out: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX-512F, and the array is 64 writable bytes.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn multiply_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn multiply(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn splat(self, number: f32) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_set1_ps(number) }
    }

    #[inline(always)]
    fn sums(self, vectors: [__m512; 4]) -> [f32; 4] {
        // SAFETY: `self` proves AVX-512F, which implies AVX.
        unsafe {
            let half = |x| {
                let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(x));
                _mm256_add_ps(_mm512_castps512_ps256(x), _mm256_castpd_ps(high))
            };
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
