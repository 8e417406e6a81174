//! Types in which weights are stored, two vectors at a time.
//!
//! The quantised ones are those of GGML's Q8_0 and Q4_0: blocks of 32 neighbouring weights of a row
//! with one half-precision scale. A weight is its number times the scale, exactly, so a product of
//! quantised weights with inputs as they are is that of the widened ones, bit by bit. How they lie where
//! inputs are whole numbers too is in [`interleaved`](super::interleaved).

use super::lanes::{Dot, LANES, Lanes};

/// Weights of a step: neighbours in a row, and a block of the quantised types.
pub(super) const STEP: usize = 2 * LANES;

/// A type in which weights are stored.
pub(crate) trait Stored {
    /// What memory holds of [`STEP`] weights.
    type Step: Copy + Send + Sync;
    /// How far ahead of use weights are asked for where few inputs stream through: the latency of
    /// memory times its speed, and more where they only have to come as far as the second-level cache.
    const AHEAD_BYTES: usize;

    /// The weights, widened.
    fn load<L: Lanes>(lanes: L, step: &Self::Step) -> [L::Vector; 2];

    /// The weights, widened and rounded to bfloat16.
    #[inline(always)]
    fn load_rounded<L: Lanes>(lanes: L, step: &Self::Step) -> [L::Vector; 2] {
        let [first, second] = Self::load(lanes, step);
        [lanes.round_bf16(first), lanes.round_bf16(second)]
    }

    /// The weights, widened and rounded to bfloat16, in pairs.
    #[inline(always)]
    fn pairs<L: Dot>(lanes: L, step: &Self::Step) -> L::Pairs {
        let [first, second] = Self::load(lanes, step);
        lanes.pair(first, second)
    }

    /// The weights, if they need no widening.
    fn as_f32(_: &[Self::Step]) -> Option<&[[f32; STEP]]> {
        None
    }

    /// The weights, if they are pairs of bfloat16 numbers already.
    fn as_pairs(_: &[Self::Step]) -> Option<&[[u16; STEP]]> {
        None
    }
}

/// 32 bits.
pub(super) struct F32;
/// The bits of half-precision numbers.
pub(super) struct F16;
/// The bits of bfloat16 numbers, weight `i + 16` beside weight `i`: so they are the low and the high
/// halves of 32-bit numbers, and need no shuffling to be widened or to be multiplied in pairs.
pub(super) struct Bf16;

impl Bf16 {
    /// From neighbours in a row.
    pub(super) fn interleave(step: &mut [u16; STEP]) {
        let [first, second] = halves(step);
        let mut out = [0; STEP];
        for i in 0..LANES {
            (out[2 * i], out[2 * i + 1]) = (second[i], first[i]);
        }
        *step = out;
    }
}

impl Stored for F32 {
    type Step = [f32; STEP];
    const AHEAD_BYTES: usize = 32 << 10;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, step: &[f32; STEP]) -> [L::Vector; 2] {
        let [first, second] = halves(step);
        [lanes.load(first), lanes.load(second)]
    }

    fn as_f32(steps: &[[f32; STEP]]) -> Option<&[[f32; STEP]]> {
        Some(steps)
    }
}

impl Stored for F16 {
    type Step = [u16; STEP];
    const AHEAD_BYTES: usize = 32 << 10;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, step: &[u16; STEP]) -> [L::Vector; 2] {
        let [first, second] = halves(step);
        [lanes.load_f16(first), lanes.load_f16(second)]
    }
}

impl Stored for Bf16 {
    type Step = [u16; STEP];
    const AHEAD_BYTES: usize = 32 << 10;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, step: &[u16; STEP]) -> [L::Vector; 2] {
        [lanes.load_high_bf16(step), lanes.load_low_bf16(step)]
    }

    #[inline(always)]
    fn load_rounded<L: Lanes>(lanes: L, step: &[u16; STEP]) -> [L::Vector; 2] {
        Self::load(lanes, step)
    }

    #[inline(always)]
    fn pairs<L: Dot>(lanes: L, step: &[u16; STEP]) -> L::Pairs {
        lanes.load_pairs(step)
    }

    fn as_pairs(steps: &[[u16; STEP]]) -> Option<&[[u16; STEP]]> {
        Some(steps)
    }
}

/// A block of 8-bit numbers, -127 to 127.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Q8 {
    /// The bits of a half-precision number.
    pub(super) scale: u16,
    pub(super) numbers: [i8; STEP],
}

impl Q8 {
    /// The largest becomes 127 or -127.
    pub(super) fn of(weights: &[f32; STEP]) -> Self {
        let largest = weights.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let (scale, inverse) = scale(largest / 127.0);
        Self {
            scale,
            numbers: weights.map(|x| (x * inverse).round().clamp(-127.0, 127.0) as i8),
        }
    }
}

impl Stored for Q8 {
    type Step = Self;
    const AHEAD_BYTES: usize = 8 << 10;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, step: &Self) -> [L::Vector; 2] {
        let scale = lanes.splat_f16(step.scale);
        let [first, second] = halves(&step.numbers);
        [
            lanes.multiply(lanes.load_i8(first), scale),
            lanes.multiply(lanes.load_i8(second), scale),
        ]
    }
}

/// A block of 4-bit numbers, -8 to 7.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Q4 {
    /// The bits of a half-precision number.
    pub(super) scale: u16,
    /// Weight `i` in the high half of byte `i`, weight `i + 16` in its low half, each plus 8.
    pub(super) numbers: [u8; LANES],
}

impl Q4 {
    /// The largest becomes -8: the scale takes its sign.
    pub(super) fn of(weights: &[f32; STEP]) -> Self {
        let larger = |a: f32, b: f32| if b.abs() > a.abs() { b } else { a };
        let largest = weights.iter().copied().fold(0.0, larger);
        let (scale, inverse) = scale(largest / -8.0);
        let number = |x: f32| ((x * inverse).round().clamp(-8.0, 7.0) + 8.0) as u8;
        let [high, low] = halves(weights);
        let mut numbers = low.map(number);
        for (byte, &x) in numbers.iter_mut().zip(high) {
            *byte |= number(x) << 4;
        }
        Self { scale, numbers }
    }
}

impl Stored for Q4 {
    type Step = Self;
    const AHEAD_BYTES: usize = 8 << 10;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, step: &Self) -> [L::Vector; 2] {
        let [low, high] = lanes.load_i4(&step.numbers, step.scale);
        [high, low]
    }

    #[inline(always)]
    fn pairs<L: Dot>(lanes: L, step: &Self) -> L::Pairs {
        lanes.pair_i4(&step.numbers, step.scale)
    }
}

/// The bits of a scale as it is stored, and what weights are multiplied with.
fn scale(exact: f32) -> (u16, f32) {
    let stored = half::f16::from_f32(exact);
    let inverse = match stored.to_f32() {
        0.0 => 0.0,
        scale => 1.0 / scale,
    };
    (stored.to_bits(), inverse)
}

#[inline(always)]
pub(super) fn halves<T>(step: &[T; STEP]) -> [&[T; LANES]; 2] {
    let halves = step.as_chunks::<LANES>().0;
    [&halves[0], &halves[1]]
}

#[cfg(test)]
mod tests {
    use super::super::lanes::Portable;
    use super::*;
    use proptest::prelude::*;

    fn widened<W: Stored<Step = W>>(block: &W) -> Vec<f32> {
        W::load(Portable, block).concat()
    }

    proptest! {
        #[test]
        fn a_quantised_weight_is_off_by_half_a_step_at_most(
            weights in prop::array::uniform32(-3.0_f32..3.0),
        ) {
            let largest = weights.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            // A half-precision scale has eleven bits.
            let rounding = largest / 1_024.0;
            for (x, found) in weights.iter().zip(widened(&Q8::of(&weights))) {
                prop_assert!((x - found).abs() <= largest / 127.0 / 2.0 + rounding);
            }
            for (x, found) in weights.iter().zip(widened(&Q4::of(&weights))) {
                // The other sign ends one step earlier.
                prop_assert!((x - found).abs() <= largest / 8.0 + rounding);
            }
        }
    }

    #[test]
    fn whole_numbers_of_steps_survive() {
        let weights: [f32; STEP] = std::array::from_fn(|i| (i as f32 - 16.0) * 0.25);
        let q8 = weights.map(|x| x * 127.0 / 16.0);
        assert_eq!(widened(&Q8::of(&weights.map(|_| 0.0))), [0.0; STEP]);
        assert_eq!(widened(&Q4::of(&weights.map(|_| 0.0))), [0.0; STEP]);
        assert!(
            q8.iter()
                .zip(widened(&Q8::of(&q8)))
                .all(|(a, b)| (a - b).abs() < 0.15)
        );
        let q4: [f32; STEP] = std::array::from_fn(|i| (i % 16) as f32 * 0.5 - 4.0);
        assert_eq!(widened(&Q4::of(&q4)), q4);
    }

    #[test]
    fn numbers_that_a_scale_cannot_hold_become_zero() {
        let tiny = [1e-12; STEP];
        assert_eq!(widened(&Q8::of(&tiny)), [0.0; STEP]);
        assert_eq!(widened(&Q4::of(&tiny)), [0.0; STEP]);
    }
}
