//! Sixteen numbers at a time: what the kernels need of a processor, and the version of it that runs
//! on every processor.

/// Numbers that are worked on together. It fixes the order of every sum, so it is the same on all
/// processors, whatever the width of their registers.
pub(super) const LANES: usize = 16;

/// Arithmetic on [`LANES`] numbers.
///
/// The methods must be inlined into a function that [`Lanes::run`] calls; only there may the
/// compiler use the processor's wide registers.
pub(super) trait Lanes: Copy + Send + Sync {
    /// Inputs of a tile: with its four rows, as many sums as there are registers for.
    const TILE_INPUTS: usize;

    /// The numbers, in registers.
    type Vector: Copy;

    /// Runs `work`, compiled for this processor.
    fn run<T>(self, work: impl FnOnce() -> T) -> T;

    fn load(self, numbers: &[f32; LANES]) -> Self::Vector;

    fn load_bf16(self, bits: &[u16; LANES]) -> Self::Vector;

    fn load_f16(self, bits: &[u16; LANES]) -> Self::Vector;

    fn store(self, vector: Self::Vector, out: &mut [f32; LANES]);

    /// `a * b + c`
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// Asks for memory that is going to be read soon.
    fn prefetch<T>(self, _memory: &T) {}

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

/// Plain Rust.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

impl Lanes for Portable {
    const TILE_INPUTS: usize = 1;
    type Vector = [f32; LANES];

    fn run<T>(self, work: impl FnOnce() -> T) -> T {
        work()
    }

    #[inline(always)]
    fn load(self, numbers: &[f32; LANES]) -> Self::Vector {
        *numbers
    }

    #[inline(always)]
    fn load_bf16(self, bits: &[u16; LANES]) -> Self::Vector {
        bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
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
}
