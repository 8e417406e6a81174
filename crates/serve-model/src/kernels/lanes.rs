//! Sixteen numbers at a time: what the kernels need of a processor, and the version of it that runs
//! on every processor.

use super::factors::{Factors, Rounded};

/// Numbers that are worked on together. It fixes the order of every sum, so it is the same on all
/// processors, whatever the width of their registers.
pub(crate) const LANES: usize = 16;

/// Arithmetic on [`LANES`] numbers.
///
/// The methods must be inlined into a function that [`Lanes::run`] calls; only there may the
/// compiler use the processor's wide registers.
pub(crate) trait Lanes: Copy + Send + Sync {
    /// Registers that hold [`LANES`] numbers.
    const PARTS: usize;
    /// Inputs of a tile of widened weights: with its four rows, as many sums as there are registers
    /// for.
    const TILE_INPUTS: usize;
    /// Inputs up to which weights stream through, widened for each tile anew.
    const STREAM_INPUTS: usize;
    /// Inputs of a tile through which weights stream; 4 at most.
    const STREAM_TILE_INPUTS: usize;

    /// The numbers, in registers.
    type Vector: Copy;
    /// A part of the numbers, in one register.
    type Register: Copy;
    /// How products go whose factors are rounded to bfloat16.
    type Bf16: Factors<Self>;

    /// Runs `work`, compiled for this processor.
    fn run<T>(self, work: impl FnOnce() -> T) -> T;

    fn load(self, numbers: &[f32; LANES]) -> Self::Vector;

    fn load_low_bf16(self, bits: &[u16; 2 * LANES]) -> Self::Vector;

    fn load_high_bf16(self, bits: &[u16; 2 * LANES]) -> Self::Vector;

    fn load_f16(self, bits: &[u16; LANES]) -> Self::Vector;

    fn load_i8(self, numbers: &[i8; LANES]) -> Self::Vector;

    /// The low and the high halves of all bytes, each less 8 and times a half-precision number.
    fn load_i4(self, bytes: &[u8; LANES], scale: u16) -> [Self::Vector; 2];

    fn store(self, vector: Self::Vector, out: &mut [f32; LANES]);

    /// `a * b + c`, of which a processor may round the product.
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// `a * b + c`, rounded once, on every processor.
    fn multiply_add_exact(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        self.multiply_add(a, b, c)
    }

    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// The nearest bfloat16 number of each; of two, the even one.
    fn round_bf16(self, vector: Self::Vector) -> Self::Vector;

    /// One number in all lanes.
    fn splat(self, number: f32) -> Self::Vector;

    /// One half-precision number in all lanes.
    fn splat_f16(self, bits: u16) -> Self::Vector;

    fn load_part(self, numbers: &[f32; LANES], part: usize) -> Self::Register;

    fn store_part(self, register: Self::Register, out: &mut [f32; LANES], part: usize);

    /// `a * b + c`, as [`multiply_add`](Self::multiply_add) does it.
    fn multiply_add_part(
        self,
        a: Self::Register,
        b: Self::Register,
        c: Self::Register,
    ) -> Self::Register;

    /// Asks for memory that is going to be read in some hundred cycles.
    fn prefetch<T>(self, _memory: *const T) {}

    /// Asks for memory that is going to be read in some thousand cycles.
    fn prefetch_far<T>(self, _memory: *const T) {}

    /// The sums of all lanes of four vectors. Halves are added until one number is left.
    #[inline(always)]
    fn sums(self, vectors: [Self::Vector; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        for (vector, out) in vectors.into_iter().zip(&mut out) {
            let mut x = [0.0; LANES];
            self.store(vector, &mut x);
            let mut width = LANES / 2;
            while width > 0 {
                for i in 0..width {
                    x[i] += x[i + width];
                }
                width /= 2;
            }
            *out = x[0];
        }
        out
    }
}

/// What multiplies bfloat16 numbers in pairs: lane `i` of a step has weight `i` in the high half of its
/// 32 bits, which is multiplied first, and weight `i + 16` in the low half.
pub(crate) trait Dot: Lanes {
    /// Pairs in all lanes.
    type Pairs: Copy;

    fn load_pairs(self, bits: &[u16; 2 * LANES]) -> Self::Pairs;

    fn store_pairs(self, pairs: Self::Pairs, out: &mut [u16; 2 * LANES]);

    /// Rounds the numbers of a step.
    fn pair(self, high: Self::Vector, low: Self::Vector) -> Self::Pairs;

    /// The rounded [`Lanes::load_i4`].
    fn pair_i4(self, bytes: &[u8; LANES], scale: u16) -> Self::Pairs;

    /// `a.low * b.low + (a.high * b.high + c)`
    fn dot(self, a: Self::Pairs, b: Self::Pairs, c: Self::Vector) -> Self::Vector;

    /// `a.low * b.low + (a.high * b.high + c)`
    fn dot_part(self, a: Self::Pairs, b: Self::Pairs, c: Self::Register) -> Self::Register;
}

/// The nearest bfloat16 number; of two, the even one.
#[inline(always)]
pub(super) fn round_bf16(x: f32) -> f32 {
    const QUIET: u32 = 1 << 22;
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let rounded = if x.is_nan() { bits | QUIET } else { nearest };
    f32::from_bits(rounded & 0xffff_0000)
}

/// `a * b + c`, rounded once.
#[inline(always)]
fn multiply_add_exact(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
        return a.mul_add(b, c);
    }
    // Elsewhere that is a call for each number. Boldo and Melquiond, "Emulation of FMA and correctly
    // rounded sums: proved algorithms using rounding to odd" (2008): the product is exact in f64, and a sum
    // that has been rounded to the neighbour with an odd last bit may be rounded again.
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // What rounding took away (Knuth's TwoSum).
    let back = sum - product;
    let lost = (product - (sum - back)) + (c - back);
    let bits = sum.to_bits();
    let larger = lost.to_bits() >> 63 == bits >> 63;
    let toward = if larger {
        bits.wrapping_add(1)
    } else {
        bits.wrapping_sub(1)
    };
    // No number is lost, and no number compares as larger.
    let odd = if lost.abs() > 0.0 && bits & 1 == 0 {
        toward
    } else {
        bits
    };
    f64::from_bits(odd) as f32
}

/// Plain Rust, in parts as wide as the registers that nearly every processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Portable;

const PART: usize = 4;

impl Lanes for Portable {
    const PARTS: usize = LANES / PART;
    const TILE_INPUTS: usize = 2;
    const STREAM_INPUTS: usize = 1;
    const STREAM_TILE_INPUTS: usize = 1;

    type Vector = [f32; LANES];
    type Register = [f32; PART];
    type Bf16 = Rounded;

    fn run<T>(self, work: impl FnOnce() -> T) -> T {
        work()
    }

    #[inline(always)]
    fn load(self, numbers: &[f32; LANES]) -> Self::Vector {
        *numbers
    }

    #[inline(always)]
    fn load_low_bf16(self, bits: &[u16; 2 * LANES]) -> Self::Vector {
        let mut out = [0.0; LANES];
        for (out, &[low, _]) in out.iter_mut().zip(bits.as_chunks().0) {
            *out = f32::from_bits(u32::from(low) << 16);
        }
        out
    }

    #[inline(always)]
    fn load_high_bf16(self, bits: &[u16; 2 * LANES]) -> Self::Vector {
        let mut out = [0.0; LANES];
        for (out, &[_, high]) in out.iter_mut().zip(bits.as_chunks().0) {
            *out = f32::from_bits(u32::from(high) << 16);
        }
        out
    }

    #[inline(always)]
    fn load_f16(self, bits: &[u16; LANES]) -> Self::Vector {
        bits.map(|bits| half::f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    fn load_i8(self, numbers: &[i8; LANES]) -> Self::Vector {
        numbers.map(f32::from)
    }

    #[inline(always)]
    fn load_i4(self, bytes: &[u8; LANES], scale: u16) -> [Self::Vector; 2] {
        let scale = self.splat_f16(scale);
        let low = bytes.map(|byte| f32::from(byte & 15) - 8.0);
        let high = bytes.map(|byte| f32::from(byte >> 4) - 8.0);
        [self.multiply(low, scale), self.multiply(high, scale)]
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, out: &mut [f32; LANES]) {
        *out = vector;
    }

    #[inline(always)]
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, mut c: Self::Vector) -> Self::Vector {
        for i in 0..LANES {
            c[i] += a[i] * b[i];
        }
        c
    }

    #[inline(always)]
    fn multiply_add_exact(
        self,
        a: Self::Vector,
        b: Self::Vector,
        mut c: Self::Vector,
    ) -> Self::Vector {
        for i in 0..LANES {
            c[i] = multiply_add_exact(a[i], b[i], c[i]);
        }
        c
    }

    #[inline(always)]
    fn multiply(self, mut a: Self::Vector, b: Self::Vector) -> Self::Vector {
        for i in 0..LANES {
            a[i] *= b[i];
        }
        a
    }

    #[inline(always)]
    fn round_bf16(self, vector: Self::Vector) -> Self::Vector {
        vector.map(round_bf16)
    }

    #[inline(always)]
    fn splat(self, number: f32) -> Self::Vector {
        [number; LANES]
    }

    #[inline(always)]
    fn splat_f16(self, bits: u16) -> Self::Vector {
        [half::f16::from_bits(bits).to_f32(); LANES]
    }

    #[inline(always)]
    fn load_part(self, numbers: &[f32; LANES], part: usize) -> Self::Register {
        numbers.as_chunks().0[part]
    }

    #[inline(always)]
    fn store_part(self, register: Self::Register, out: &mut [f32; LANES], part: usize) {
        out.as_chunks_mut().0[part] = register;
    }

    #[inline(always)]
    fn multiply_add_part(
        self,
        a: Self::Register,
        b: Self::Register,
        mut c: Self::Register,
    ) -> Self::Register {
        for i in 0..PART {
            c[i] += a[i] * b[i];
        }
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any bits, and numbers whose products and sums meet.
    fn numbers() -> impl Strategy<Value = f32> {
        let bits = any::<u32>().prop_map(f32::from_bits);
        let near = (-9_i32..9, -2_000_i32..2_000).prop_map(|(e, m)| m as f32 * 2_f32.powi(4 * e));
        prop_oneof![bits, near]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn sums_of_products_are_rounded_once(a in numbers(), b in numbers(), c in numbers()) {
            let expected = a.mul_add(b, c);
            let found = Portable.multiply_add_exact([a; LANES], [b; LANES], [c; LANES])[5];
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            prop_assert!(same, "{a:e} * {b:e} + {c:e} is {expected:e}, found {found:e}");
        }
    }
}
