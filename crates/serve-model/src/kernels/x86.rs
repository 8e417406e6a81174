//! [`Lanes`] on x86-64 processors with AVX2 or AVX-512.
//!
//! A value of these types proves that the processor has the instructions: only `detect` makes one.
#![expect(
    unsafe_code,
    reason = "vector instructions may only run where the processor has them, which a value proves"
)]

use std::arch::x86_64::*;
use std::hint::black_box;

use super::lanes::{LANES, Lanes};

/// The upper half of 32 bits.
const HIGH_HALF: i32 = -1 << 16;

/// AVX-512: one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("fma");
        all.then_some(Self(()))
    }
}

impl Lanes for Avx512 {
    const PARTS: usize = 1;
    const TILE_INPUTS: usize = 6;
    const STREAM_INPUTS: usize = 16;
    const STREAM_TILE_INPUTS: usize = 4;

    type Vector = __m512;
    type Register = __m512;

    #[inline]
    fn run<T>(self, work: impl FnOnce() -> T) -> T {
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,fma")]
        fn inner<T>(work: impl FnOnce() -> T) -> T {
            work()
        }
        // SAFETY: `self` proves these instructions.
        unsafe { inner(work) }
    }

    #[inline(always)]
    fn load(self, numbers: &[f32; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512F, and the array is 64 readable bytes; no alignment needed.
        unsafe { _mm512_loadu_ps(numbers.as_ptr()) }
    }

    #[inline(always)]
    fn load_even_bf16(self, bits: &[u16; 2 * LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512F, and the array is 64 readable bytes.
        unsafe {
            let pairs = _mm512_loadu_si512(bits.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs))
        }
    }

    #[inline(always)]
    fn load_odd_bf16(self, bits: &[u16; 2 * LANES]) -> __m512 {
        // SAFETY: as in `load_even_bf16`.
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
    fn load_i8(self, numbers: &[i8; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512F, which implies AVX; the array is 16 readable bytes.
        unsafe {
            let numbers = _mm_loadu_si128(numbers.as_ptr().cast());
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(numbers))
        }
    }

    #[inline(always)]
    fn load_i4(self, bytes: &[u8; LANES], scale: u16) -> [__m512; 2] {
        // The bits of a half-precision number, moved to where those of an f32 are, are the number less
        // 112 in the exponent, which the numbers make good. Cores have time for that, and for a way
        // through memory, which puts it into all lanes; their vector units are what is short.
        const EXPONENT: f32 = f32::from_bits((127 + 112) << 23);
        let sign_and_rest = i32::from(scale.cast_signed()) << 13;
        let scale = f32::from_bits(sign_and_rest.cast_unsigned() & 0x8fff_e000);
        let scale = self.splat(*black_box(&scale));
        // SAFETY: as in `load_i8`.
        unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let low = _mm512_cvtepu8_epi32(bytes);
            let high = _mm512_srli_epi32::<4>(low);
            let numbers = _mm512_setr_ps(
                -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0,
                7.0,
            );
            // All that a weight can be, once: then it takes a lookup, which minds the lowest four
            // bits only.
            let numbers = _mm512_mul_ps(numbers, _mm512_set1_ps(EXPONENT));
            let weights = _mm512_mul_ps(numbers, scale);
            [
                _mm512_permutexvar_ps(low, weights),
                _mm512_permutexvar_ps(high, weights),
            ]
        }
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
    fn splat(self, number: f32) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_set1_ps(number) }
    }

    #[inline(always)]
    fn splat_f16(self, bits: u16) -> __m512 {
        // SAFETY: `self` proves AVX-512F and VL, which implies AVX2.
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(bits.cast_signed())) }
    }

    #[inline(always)]
    fn load_part(self, numbers: &[f32; LANES], _: usize) -> __m512 {
        self.load(numbers)
    }

    #[inline(always)]
    fn store_part(self, register: __m512, out: &mut [f32; LANES], _: usize) {
        self.store(register, out);
    }

    #[inline(always)]
    fn multiply_add_part(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        self.multiply_add(a, b, c)
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
    fn prefetch<T>(self, memory: &T) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(memory).cast()) }
    }

    #[inline(always)]
    fn prefetch_far<T>(self, memory: &T) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(memory).cast()) }
    }
}

/// AVX2 with FMA and F16C: two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        all.then_some(Self(()))
    }
}

impl Lanes for Avx2 {
    const PARTS: usize = 2;
    const TILE_INPUTS: usize = 3;
    const STREAM_INPUTS: usize = 1;
    const STREAM_TILE_INPUTS: usize = 1;

    type Vector = (__m256, __m256);
    type Register = __m256;

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
    fn load_even_bf16(self, bits: &[u16; 2 * LANES]) -> Self::Vector {
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
    fn load_odd_bf16(self, bits: &[u16; 2 * LANES]) -> Self::Vector {
        // SAFETY: as in `load_even_bf16`.
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
    fn load_i8(self, numbers: &[i8; LANES]) -> Self::Vector {
        // SAFETY: `self` proves AVX2, and the array is 16 readable bytes.
        unsafe {
            let numbers = _mm_loadu_si128(numbers.as_ptr().cast());
            (
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(numbers))),
            )
        }
    }

    #[inline(always)]
    fn load_i4(self, bytes: &[u8; LANES], scale: u16) -> [Self::Vector; 2] {
        let (scale, _) = self.splat_f16(scale);
        // SAFETY: `self` proves AVX2, and the array is 16 readable bytes.
        unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let (mask, eight) = (_mm_set1_epi8(15), _mm_set1_epi8(8));
            let widen = |halves| {
                let numbers = _mm_sub_epi8(_mm_and_si128(halves, mask), eight);
                let scaled = |numbers| {
                    let numbers = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers));
                    _mm256_mul_ps(numbers, scale)
                };
                (scaled(numbers), scaled(_mm_srli_si128::<8>(numbers)))
            };
            [widen(bytes), widen(_mm_srli_epi16::<4>(bytes))]
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
    fn splat(self, number: f32) -> Self::Vector {
        // SAFETY: `self` proves AVX.
        let half = unsafe { _mm256_set1_ps(number) };
        (half, half)
    }

    #[inline(always)]
    fn splat_f16(self, bits: u16) -> Self::Vector {
        // SAFETY: `self` proves F16C.
        let half = unsafe { _mm256_cvtph_ps(_mm_set1_epi16(bits.cast_signed())) };
        (half, half)
    }

    #[inline(always)]
    fn load_part(self, numbers: &[f32; LANES], part: usize) -> __m256 {
        let half: &[f32; LANES / 2] = &numbers.as_chunks().0[part];
        // SAFETY: `self` proves AVX, and the array is 32 readable bytes.
        unsafe { _mm256_loadu_ps(half.as_ptr()) }
    }

    #[inline(always)]
    fn store_part(self, register: __m256, out: &mut [f32; LANES], part: usize) {
        let half: &mut [f32; LANES / 2] = &mut out.as_chunks_mut().0[part];
        // SAFETY: `self` proves AVX, and the array is 32 writable bytes.
        unsafe { _mm256_storeu_ps(half.as_mut_ptr(), register) }
    }

    #[inline(always)]
    fn multiply_add_part(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` proves FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
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
    fn prefetch<T>(self, memory: &T) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(memory).cast()) }
    }

    #[inline(always)]
    fn prefetch_far<T>(self, memory: &T) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(memory).cast()) }
    }
}

/// The sums of four times eight numbers, in the order of [`Lanes::sums`].
///
/// # Safety
///
/// The processor has AVX.
#[inline(always)]
unsafe fn sums(vectors: [__m256; 4]) -> [f32; 4] {
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
