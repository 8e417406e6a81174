//! AVX-512: one register for [`LANES`] numbers, and bfloat16 numbers multiplied in pairs where the
//! processor does that.
#![expect(
    unsafe_code,
    reason = "vector instructions may only run where the processor has them, which a value proves"
)]

use std::arch::x86_64::*;
use std::hint::black_box;
use std::marker::PhantomData;
use std::mem::transmute;

use super::super::factors::{Factors, Pairs, Rounded};
use super::super::lanes::{Dot, LANES, Lanes};
use super::avx2::sums;
use super::{HIGH_HALF, QUIET};

/// AVX-512: one register. With what of the extensions that multiply bfloat16 numbers, `E` says.
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
    /// How products go whose factors are rounded to bfloat16.
    type Bf16: Factors<Avx512<Self>>;

    /// Runs `work`, compiled for it.
    ///
    /// # Safety
    ///
    /// The processor has it.
    unsafe fn run<T>(work: impl FnOnce() -> T) -> T;
}

impl Extension for Plain {
    type Bf16 = Rounded;

    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,fma")]
    unsafe fn run<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
}

impl Extension for Bf16Dot {
    type Bf16 = Pairs;

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
    const PARTS: usize = 1;
    const TILE_INPUTS: usize = 6;
    const STREAM_INPUTS: usize = 16;
    const STREAM_TILE_INPUTS: usize = 4;

    type Vector = __m512;
    type Register = __m512;
    type Bf16 = E::Bf16;

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
    fn load_i8(self, numbers: &[i8; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512F, which implies AVX; the array is 16 readable bytes.
        unsafe {
            let numbers = _mm_loadu_si128(numbers.as_ptr().cast());
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(numbers))
        }
    }

    #[inline(always)]
    fn load_i4(self, bytes: &[u8; LANES], scale: u16) -> [__m512; 2] {
        let weights = self.all_i4(scale);
        // SAFETY: as in `load_i8`.
        unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let low = _mm512_cvtepu8_epi32(bytes);
            let high = _mm512_srli_epi32::<4>(low);
            // A lookup minds the lowest four bits only.
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
    fn round_bf16(self, vector: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe {
            let bits = _mm512_castps_si512(vector);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let no_number = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(vector, vector);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(QUIET));
            let nearest = _mm512_add_epi32(bits, half);
            let rounded = _mm512_mask_blend_epi32(no_number, nearest, quiet);
            _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(HIGH_HALF)))
        }
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
    fn prefetch<T>(self, memory: *const T) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(memory.cast()) }
    }

    #[inline(always)]
    fn prefetch_far<T>(self, memory: *const T) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(memory.cast()) }
    }
}

impl<E: Extension> Avx512<E> {
    /// All that a weight of 4 bits can be: each number less 8 and times the scale.
    #[inline(always)]
    fn all_i4(self, scale: u16) -> __m512 {
        // The bits of a half-precision number, moved to where those of an f32 are, are the number less
        // 112 in the exponent, which the numbers make good. Cores have time for that, and for a way
        // through memory, which puts it into all lanes; their vector units are what is short.
        const EXPONENT: f32 = f32::from_bits((127 + 112) << 23);
        let sign_and_rest = i32::from(scale.cast_signed()) << 13;
        let scale = f32::from_bits(sign_and_rest.cast_unsigned() & 0x8fff_e000);
        let scale = self.splat(*black_box(&scale));
        // SAFETY: `self` proves AVX-512F.
        unsafe {
            let numbers = _mm512_setr_ps(
                -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0,
                7.0,
            );
            _mm512_mul_ps(_mm512_mul_ps(numbers, _mm512_set1_ps(EXPONENT)), scale)
        }
    }
}

impl Dot for Avx512<Bf16Dot> {
    type Pairs = __m512bh;

    #[inline(always)]
    fn load_pairs(self, bits: &[u16; 2 * LANES]) -> __m512bh {
        // SAFETY: `self` proves AVX-512F, and the array is 64 readable bytes; both types are 64 bytes
        // that may have any value.
        unsafe { transmute(_mm512_loadu_si512(bits.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store_pairs(self, pairs: __m512bh, out: &mut [u16; 2 * LANES]) {
        // SAFETY: as in `load_pairs`, and the array is writable.
        unsafe {
            _mm512_storeu_si512(
                out.as_mut_ptr().cast(),
                transmute::<__m512bh, __m512i>(pairs),
            )
        }
    }

    #[inline(always)]
    fn pair(self, high: __m512, low: __m512) -> __m512bh {
        // SAFETY: `self` proves AVX-512F, BW and BF16; both types are 64 bytes that may have any value.
        unsafe {
            let halves: __m512i = transmute(_mm512_cvtne2ps_pbh(high, low));
            let alternate = _mm512_set_epi16(
                31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                20, 4, 19, 3, 18, 2, 17, 1, 16, 0,
            );
            transmute(_mm512_permutexvar_epi16(alternate, halves))
        }
    }

    #[inline(always)]
    fn pair_i4(self, bytes: &[u8; LANES], scale: u16) -> __m512bh {
        let weights = self.all_i4(scale);
        // SAFETY: as in `load_i8` and `pair`.
        unsafe {
            let weights: __m256i = transmute(_mm512_cvtneps_pbh(weights));
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let low = _mm512_cvtepu8_epi32(bytes);
            let high = _mm512_slli_epi32::<12>(low);
            let numbers = _mm512_set1_epi32(0x000f_000f);
            let numbers = _mm512_and_si512(_mm512_or_si512(low, high), numbers);
            let weights = _mm512_zextsi256_si512(weights);
            transmute(_mm512_permutexvar_epi16(numbers, weights))
        }
    }

    #[inline(always)]
    fn dot(self, a: __m512bh, b: __m512bh, c: __m512) -> __m512 {
        // SAFETY: `self` proves AVX512_BF16.
        unsafe { _mm512_dpbf16_ps(c, a, b) }
    }

    #[inline(always)]
    fn dot_part(self, a: __m512bh, b: __m512bh, c: __m512) -> __m512 {
        self.dot(a, b, c)
    }
}
