//! Inputs of products in the order in which tiles read them.

use std::ops::Range;

use super::lanes::{LANES, round_bf16};
use super::math::{self, padded};
use super::stored::STEP;

/// How the numbers of inputs are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they are.
    #[default]
    Wide,
    /// Rounded to bfloat16.
    Pairs,
    /// Whole numbers of 8 bits, each step with a scale.
    Octets,
}

/// How inputs are laid out for the instructions that multiply them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) form: Form,
    /// Inputs of a tile at most.
    pub(crate) tile_max: usize,
}

/// A step of numbers as they are.
pub(super) type Wide = [f32; STEP];

/// A step of bfloat16 numbers: two neighbours each, the first in the low half.
pub(super) type Pairs = [u32; STEP / 2];

/// A step of whole numbers, -127 to 127, the largest of which is 127 or -127.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub(crate) struct Octets {
    /// Four neighbours each, the first in the lowest byte.
    pub(super) quads: [i32; STEP / 4],
    /// Of all numbers.
    pub(super) sum: i32,
    /// What they are multiplied with; no number where there was one that is none, or infinite.
    pub(super) scale: f32,
}

/// Several inputs, filled up with zeros to whole steps: within a tile, the first step of each input,
/// then the second of each.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    form: Form,
    /// The steps, if they are numbers of 32 bits.
    wide: Vec<Wide>,
    /// The steps, if they are pairs.
    pairs: Vec<Pairs>,
    /// The steps, if they are numbers of 8 bits.
    octets: Vec<Octets>,
    inputs: usize,
    /// Steps of one input.
    length: usize,
    tiles: usize,
}

impl Packed {
    /// Makes room for inputs of `columns` numbers, in tiles of about the same size. What was packed
    /// before is lost.
    pub(crate) fn start(&mut self, inputs: usize, columns: usize, layout: Layout) {
        self.form = layout.form;
        self.inputs = inputs;
        self.length = columns.div_ceil(STEP);
        self.tiles = inputs.div_ceil(layout.tile_max);
        let steps = inputs * self.length;
        match self.form {
            Form::Wide => grow(&mut self.wide, steps, [0.0; STEP]),
            Form::Pairs => grow(&mut self.pairs, steps, [0; STEP / 2]),
            Form::Octets => grow(&mut self.octets, steps, Octets::default()),
        }
    }

    /// Packs one input.
    #[inline(always)]
    pub(crate) fn set(&mut self, input: usize, row: &[f32]) {
        self.fill(
            input,
            #[inline(always)]
            |vector| part_of(row, vector),
        );
    }

    /// Packs the RMS norm of one input: `row / sqrt(mean(row^2) + eps) * weight`.
    #[inline(always)]
    pub(crate) fn set_normed(&mut self, input: usize, row: &[f32], weight: &[f32], eps: f32) {
        let scale = math::norm_scale(row, eps);
        self.fill(
            input,
            #[inline(always)]
            |vector| {
                let (x, weight) = (part_of(row, vector), part_of(weight, vector));
                let mut out = [0.0; LANES];
                for i in 0..LANES {
                    out[i] = x[i] * scale * weight[i];
                }
                out
            },
        );
    }

    /// Packs every other run of `run` numbers of a row, whole vectors, of which the last run may be
    /// shorter: what [`Matrix::multiply_gated`](super::Matrix::multiply_gated) leaves.
    #[inline(always)]
    pub(crate) fn set_every_other(&mut self, input: usize, row: &[f32], run: usize) {
        let vectors = run / LANES;
        self.fill(
            input,
            #[inline(always)]
            |vector| {
                let pair = row.get(vector / vectors * 2 * run..).unwrap_or_default();
                let pair = &pair[..pair.len().min(2 * run)];
                part_of(&pair[..pair.len() / 2], vector % vectors)
            },
        );
    }

    /// How its numbers are kept.
    #[inline(always)]
    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// The number of tiles.
    pub(super) fn tiles(&self) -> usize {
        self.tiles
    }

    /// The inputs of a tile.
    #[inline(always)]
    pub(super) fn tile(&self, tile: usize) -> Range<usize> {
        tile * self.inputs / self.tiles..(tile + 1) * self.inputs / self.tiles
    }

    /// All steps, if they are numbers of 32 bits.
    #[inline(always)]
    pub(super) fn wide(&self) -> &[Wide] {
        &self.wide
    }

    /// All steps, if they are pairs.
    #[inline(always)]
    pub(super) fn pairs(&self) -> &[Pairs] {
        &self.pairs
    }

    /// All steps, if they are numbers of 8 bits.
    #[inline(always)]
    pub(super) fn octets(&self) -> &[Octets] {
        &self.octets
    }

    /// The `steps` of the `C` inputs of a tile that begins with `input`.
    #[inline(always)]
    pub(super) fn tile_steps<'a, T, const C: usize>(
        &self,
        steps: &'a [T],
        input: usize,
    ) -> &'a [[T; C]] {
        let steps = &steps[input * self.length..][..C * self.length];
        steps.as_chunks().0
    }

    /// Packs the vectors of an input, which `next` is asked for by number.
    #[inline(always)]
    fn fill(&mut self, input: usize, next: impl Fn(usize) -> [f32; LANES]) {
        // The tile that has it: tiles begin at `tile * inputs / tiles`, rounded down.
        let tile = ((input + 1) * self.tiles - 1) / self.inputs;
        let inputs = self.tile(tile);
        debug_assert!(inputs.contains(&input));
        let steps = inputs.start * self.length..inputs.end * self.length;
        let (first, every) = (input - inputs.start, inputs.len());
        match self.form {
            Form::Wide => {
                let steps = self.wide[steps][first..].iter_mut().step_by(every);
                for (number, step) in steps.enumerate() {
                    *step = joined(next(2 * number), next(2 * number + 1));
                }
            }
            Form::Pairs => {
                let steps = self.pairs[steps][first..].iter_mut().step_by(every);
                for (number, step) in steps.enumerate() {
                    *step = pairs_of(&joined(next(2 * number), next(2 * number + 1)));
                }
            }
            Form::Octets => {
                let steps = self.octets[steps][first..].iter_mut().step_by(every);
                for (number, step) in steps.enumerate() {
                    *step = Octets::of(&joined(next(2 * number), next(2 * number + 1)));
                }
            }
        }
    }
}

impl Octets {
    /// The nearest numbers; of two, the even one.
    #[inline(always)]
    fn of(numbers: &[f32; STEP]) -> Self {
        // Of numbers without a sign, the larger has the larger bits; above all are those of what is
        // infinite or no number.
        const INFINITE: u32 = f32::INFINITY.to_bits();
        // A number below 2^22, added to this, leaves its nearest whole number in the lowest bits.
        const WHOLE: f32 = 1.5 * (1 << 23) as f32;
        let largest = numbers.iter().fold(0, |max, x| max.max(x.abs().to_bits()));
        let scale = match largest < INFINITE {
            true => f32::from_bits(largest) / 127.0,
            false => f32::NAN,
        };
        let inverse = match scale < f32::MIN_POSITIVE {
            true => 0.0,
            false => 1.0 / scale,
        };
        let whole = numbers.map(|x| (x * inverse + WHOLE).to_bits().cast_signed());
        let whole = whole.map(|bits| bits << 24 >> 24);
        let mut quads = [0; STEP / 4];
        for (quad, numbers) in quads.iter_mut().zip(whole.as_chunks().0) {
            *quad = i32::from_le_bytes(numbers.map(|number: i32| number as u8));
        }
        Self {
            quads,
            sum: whole.iter().sum(),
            scale,
        }
    }
}

fn grow<T: Copy>(steps: &mut Vec<T>, count: usize, zero: T) {
    if count > steps.len() {
        steps.resize(count, zero);
    }
}

#[inline(always)]
fn joined(first: [f32; LANES], second: [f32; LANES]) -> [f32; STEP] {
    let mut out = [0.0; STEP];
    out[..LANES].copy_from_slice(&first);
    out[LANES..].copy_from_slice(&second);
    out
}

/// The nearest bfloat16 numbers; of two, the even one.
#[inline(always)]
pub(super) fn pairs_of(numbers: &[f32; STEP]) -> Pairs {
    let mut out = [0; STEP / 2];
    for (out, &[low, high]) in out.iter_mut().zip(numbers.as_chunks().0) {
        *out = round_bf16(low).to_bits() >> 16 | round_bf16(high).to_bits();
    }
    out
}

/// A vector of a row, filled up with zeros.
#[inline(always)]
fn part_of(row: &[f32], vector: usize) -> [f32; LANES] {
    let rest = row.get(vector * LANES..).unwrap_or_default();
    match rest.first_chunk() {
        Some(whole) => *whole,
        None => padded(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every input's own number, in 36 columns.
    fn packed(inputs: usize, tile_max: usize, form: Form) -> Packed {
        let mut packed = Packed::default();
        packed.start(inputs, 36, Layout { form, tile_max });
        for input in 0..inputs {
            packed.set(input, &[input as f32; 36]);
        }
        packed
    }

    #[test]
    fn every_input_is_found_in_its_tile() {
        for inputs in 1..70 {
            for tile_max in [1, 5, 6, 8] {
                let wide = packed(inputs, tile_max, Form::Wide);
                let pairs = packed(inputs, tile_max, Form::Pairs);
                let octets = packed(inputs, tile_max, Form::Octets);
                for tile in 0..wide.tiles() {
                    let inputs = wide.tile(tile);
                    assert!((1..=tile_max).contains(&inputs.len()));
                    let steps = inputs.start * 2..inputs.end * 2;
                    for (index, step) in steps.enumerate() {
                        let input = (inputs.start + index % inputs.len()) as f32;
                        let filled = [32, 4][index / inputs.len()];
                        let expected: [f32; STEP] =
                            std::array::from_fn(|i| if i < filled { input } else { 0.0 });
                        let at = inputs.start * 2 + index;
                        assert_eq!(wide.wide[at], expected, "{step}");
                        // These numbers have no more bits than either holds.
                        assert_eq!(numbers_of_pairs(&pairs.pairs[at]), expected);
                        assert_eq!(numbers_of_octets(&octets.octets[at]), expected);
                    }
                }
            }
        }
    }

    fn numbers_of_pairs(pairs: &Pairs) -> [f32; STEP] {
        let number = |half: u32| f32::from_bits(half << 16);
        std::array::from_fn(|i| {
            number(if i % 2 == 0 {
                pairs[i / 2] & 0xffff
            } else {
                pairs[i / 2] >> 16
            })
        })
    }

    fn numbers_of_octets(octets: &Octets) -> [f32; STEP] {
        let whole = |i: usize| octets.quads[i / 4].to_le_bytes()[i % 4].cast_signed();
        let sum: i32 = (0..STEP).map(|i| i32::from(whole(i))).sum();
        assert_eq!(octets.sum, sum);
        std::array::from_fn(|i| f32::from(whole(i)) * octets.scale)
    }

    #[test]
    fn all_that_is_packed_is_rounded_alike() {
        let number = |i: usize| (i as f32 * 0.37).sin();
        for columns in [1, 15, 16, 33, 64, 100] {
            let row: Vec<f32> = (0..2 * columns).map(number).collect();
            let weight: Vec<f32> = (0..columns).map(|i| number(i + 7)).collect();
            let setters: [&dyn Fn(&mut Packed); 3] = [
                &|packed| packed.set(0, &row[..columns]),
                &|packed| packed.set_normed(0, &row[..columns], &weight, 1e-6),
                &|packed| packed.set_every_other(0, &row, 32),
            ];
            for set in setters {
                let of = |form| {
                    let mut packed = Packed::default();
                    packed.start(1, columns, Layout { form, tile_max: 1 });
                    set(&mut packed);
                    packed
                };
                let (wide, pairs, octets) = (of(Form::Wide), of(Form::Pairs), of(Form::Octets));
                for (step, wide) in wide.wide.iter().enumerate() {
                    let expected = wide.map(|x| half::bf16::from_f32(x).to_f32());
                    assert_eq!(numbers_of_pairs(&pairs.pairs[step]), expected);
                    let largest = wide.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
                    let found = numbers_of_octets(&octets.octets[step]);
                    for (found, expected) in found.iter().zip(wide) {
                        // Half of a scale, and what rounding the product with it takes.
                        assert!((found - expected).abs() <= largest / 127.0 * 0.501);
                    }
                }
            }
        }
    }
}
