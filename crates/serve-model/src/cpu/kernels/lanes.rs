//! Sixteen numbers at a time: what the kernels need of a processor, and the version of it that runs
//! on every processor.

/// Numbers that are worked on together. It fixes the order of every sum, so it is the same on all
/// processors, whatever the width of their registers.
pub(crate) const LANES: usize = 16;

/// Arithmetic on [`LANES`] numbers.
///
/// The methods must be inlined into a function that [`Lanes::run`] calls; only there may the
/// compiler use the processor's wide registers.
pub(crate) trait Lanes: Copy + Send + Sync {
    /// Inputs that a product meets at once: as many, with two sums each, as there are registers for; 8 at
    /// most.
    const TILE_INPUTS: usize;

    /// The numbers, in registers.
    type Vector: Copy;

    /// Runs `work`, compiled for this processor.
    fn run<T>(self, work: impl FnOnce() -> T) -> T;

    fn load(self, numbers: &[f32; LANES]) -> Self::Vector;

    fn load_low_bf16(self, bits: &[u16; 2 * LANES]) -> Self::Vector;

    fn load_high_bf16(self, bits: &[u16; 2 * LANES]) -> Self::Vector;

    fn load_f16(self, bits: &[u16; LANES]) -> Self::Vector;

    fn store(self, vector: Self::Vector, out: &mut [f32; LANES]);

    /// `a * b + c`, of which a processor may round the product.
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// `a * b + c`, rounded once, on every processor.
    fn multiply_add_exact(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        self.multiply_add(a, b, c)
    }

    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// One number in all lanes.
    fn splat(self, number: f32) -> Self::Vector;

    /// Asks for memory that is going to be read in some thousand cycles.
    fn prefetch<T>(self, _memory: *const T) {}

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

/// Plain Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Portable;

impl Lanes for Portable {
    const TILE_INPUTS: usize = 2;

    type Vector = [f32; LANES];

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
    fn add(self, mut a: Self::Vector, b: Self::Vector) -> Self::Vector {
        for i in 0..LANES {
            a[i] += b[i];
        }
        a
    }

    #[inline(always)]
    fn splat(self, number: f32) -> Self::Vector {
        [number; LANES]
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
