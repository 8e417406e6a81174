//! Whole numbers of 8 bits, multiplied four at a time: what products of quantised weights with
//! quantised inputs need of a processor, and the version of it that runs on every processor.

use super::lanes::{LANES, Lanes, Portable};

/// Bytes with four weights for each lane.
pub(super) const QUADS_BYTES: usize = 4 * LANES;

/// Arithmetic on whole numbers, exact: the results are the same on all processors.
pub(crate) trait Quads: Lanes {
    /// Inputs of a tile: as many sums as there are registers for; 8 at most.
    const QUADS_INPUTS: usize;
    /// By how much the processor takes a weight for larger than it is, of those that are stored plus 128
    /// and of those that are stored plus 8.
    const EXCESS: [i32; 2];

    /// A sum in each lane.
    type Ints: Copy;
    /// Four weights for each lane.
    type Weights: Copy;

    /// One number in all lanes.
    fn splat_int(self, number: i32) -> Self::Ints;

    /// Weights of 8 bits, each stored plus 128.
    fn load_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Weights;

    /// Weights of 4 bits, each stored plus 8, in the low halves of the bytes.
    fn load_low_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Weights;

    /// Weights of 4 bits, each stored plus 8, in the high halves of the bytes.
    fn load_high_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Weights;

    /// Adds to the sum of each lane the products of its four weights, each larger by the
    /// [excess](Self::EXCESS), and the four numbers of `x`, none of which is -128.
    fn dot_quads(self, weights: Self::Weights, x: i32, sums: Self::Ints) -> Self::Ints;

    /// The numbers, none of which has more than 24 bits.
    fn to_floats(self, ints: Self::Ints) -> Self::Vector;
}

impl Quads for Portable {
    const QUADS_INPUTS: usize = 1;
    const EXCESS: [i32; 2] = [0; 2];

    type Ints = [i32; LANES];
    type Weights = [[i8; 4]; LANES];

    #[inline(always)]
    fn splat_int(self, number: i32) -> Self::Ints {
        [number; LANES]
    }

    #[inline(always)]
    fn load_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Weights {
        quads(bytes, |byte| byte ^ 0x80)
    }

    #[inline(always)]
    fn load_low_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Weights {
        quads(bytes, |byte| (byte & 15).wrapping_sub(8))
    }

    #[inline(always)]
    fn load_high_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Weights {
        quads(bytes, |byte| (byte >> 4).wrapping_sub(8))
    }

    #[inline(always)]
    fn dot_quads(self, weights: Self::Weights, x: i32, mut sums: Self::Ints) -> Self::Ints {
        let x = x.to_le_bytes().map(u8::cast_signed);
        for (weights, sum) in weights.iter().zip(&mut sums) {
            for (&weight, x) in weights.iter().zip(x) {
                *sum += i32::from(weight) * i32::from(x);
            }
        }
        sums
    }

    #[inline(always)]
    fn to_floats(self, ints: Self::Ints) -> Self::Vector {
        ints.map(|int| int as f32)
    }
}

#[inline(always)]
fn quads(bytes: &[u8; QUADS_BYTES], signed: impl Fn(u8) -> u8) -> [[i8; 4]; LANES] {
    let mut out = [[0; 4]; LANES];
    for (out, quad) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *out = quad.map(|byte| signed(byte).cast_signed());
    }
    out
}
