//! Numbers of fewer bits, multiplied two or four at a time in each lane: what products with rounded
//! inputs need of a processor, and the version of it that runs on every processor.

use super::lanes::{LANES, Lanes, Portable};

/// Bytes with four weights for each lane.
pub(super) const QUADS_BYTES: usize = 4 * LANES;

/// Products of pairs of bfloat16 numbers and of quads of whole numbers. The results are the same on all
/// processors.
pub(crate) trait Dots: Lanes {
    /// By how much the processor takes a weight for larger than it is, of those that are stored plus 128
    /// and of those that are stored plus 8.
    const EXCESS: [i32; 2];

    /// Two weights for each lane.
    type Pairs: Copy;
    /// Four weights for each lane.
    type Quads: Copy;
    /// A whole number in each lane.
    type Ints: Copy;

    /// The bits of bfloat16 numbers.
    fn load_pairs(self, bits: &[u16; 2 * LANES]) -> Self::Pairs;

    /// Adds to the sum of each lane the product of its second weight and the number in the high half of
    /// `x`, then that of its first weight and the number in the low half, rounded each time. Numbers below
    /// 1e-38 may be taken for zero.
    fn dot_pairs(self, weights: Self::Pairs, x: u32, sums: Self::Vector) -> Self::Vector;

    /// One number in all lanes.
    fn splat_int(self, number: i32) -> Self::Ints;

    /// Of the four bytes for each lane, the first the lowest, the number in these bits.
    fn load_bits(self, bytes: &[u8; QUADS_BYTES], first: u32, count: u32) -> Self::Vector;

    /// Weights of 8 bits, each stored plus 128.
    fn load_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Quads;

    /// Weights of 4 bits, each stored plus 8, in the low halves of the bytes.
    fn load_low_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Quads;

    /// Weights of 4 bits, each stored plus 8, in the high halves of the bytes.
    fn load_high_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Quads;

    /// Adds to the sum of each lane the products of its four weights, each larger by the
    /// [excess](Self::EXCESS), and the four numbers of `x`, none of which is -128.
    fn dot_quads(self, weights: Self::Quads, x: i32, sums: Self::Ints) -> Self::Ints;

    /// The numbers, none of which has more than 24 bits.
    fn to_floats(self, ints: Self::Ints) -> Self::Vector;
}

impl Dots for Portable {
    const EXCESS: [i32; 2] = [0; 2];

    type Pairs = [Self::Vector; 2];
    type Quads = [[i8; 4]; LANES];
    type Ints = [i32; LANES];

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
        [number; LANES]
    }

    #[inline(always)]
    fn load_bits(self, bytes: &[u8; QUADS_BYTES], first: u32, count: u32) -> Self::Vector {
        let mut out = [0.0; LANES];
        for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
            let number = u32::from_le_bytes(*bytes) << (32 - first - count) >> (32 - count);
            *out = number as f32;
        }
        out
    }

    #[inline(always)]
    fn load_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Quads {
        quads(bytes, |byte| byte ^ 0x80)
    }

    #[inline(always)]
    fn load_low_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Quads {
        quads(bytes, |byte| (byte & 15).wrapping_sub(8))
    }

    #[inline(always)]
    fn load_high_quads(self, bytes: &[u8; QUADS_BYTES]) -> Self::Quads {
        quads(bytes, |byte| (byte >> 4).wrapping_sub(8))
    }

    #[inline(always)]
    fn dot_quads(self, weights: Self::Quads, x: i32, mut sums: Self::Ints) -> Self::Ints {
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

/// [`Dots::dot_pairs`] of widened weights, the first and the second of each lane.
#[inline(always)]
pub(super) fn dot_halves<L: Lanes>(
    lanes: L,
    [low, high]: [L::Vector; 2],
    x: u32,
    sums: L::Vector,
) -> L::Vector {
    let [x_low, x_high] = [x << 16, x & 0xffff_0000].map(f32::from_bits);
    // Products of two bfloat16 numbers need no rounding.
    let sums = lanes.multiply_add(high, lanes.splat(x_high), sums);
    lanes.multiply_add(low, lanes.splat(x_low), sums)
}

#[inline(always)]
fn quads(bytes: &[u8; QUADS_BYTES], signed: impl Fn(u8) -> u8) -> [[i8; 4]; LANES] {
    let mut out = [[0; 4]; LANES];
    for (out, quad) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *out = quad.map(|byte| signed(byte).cast_signed());
    }
    out
}
