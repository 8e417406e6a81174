//! How weights lie in memory: sixteen rows side by side, 32 columns at a time.
//!
//! A lane is a row, so a product adds nothing across lanes. Numbers of 32 and 16 bits are as checkpoints
//! store them. The quantised ones are those of GGML's Q8_0 and Q4_0: blocks of 32 neighbouring weights of
//! a row with one half-precision scale. A weight is its number times the scale, exactly, so a product
//! of quantised weights with inputs as they are is that of the widened ones, bit by bit.

use super::dots::{Dots, QUADS_BYTES};
use super::lanes::{LANES, round_bf16};

/// Columns of a step, and of a quantised block.
pub(super) const STEP: usize = 2 * LANES;
/// Rows side by side.
pub(super) const GROUP_ROWS: usize = LANES;

/// A step of each row of a group.
pub(crate) trait Stored: Copy + Send + Sync {
    /// What the weights of the rows are before they lie side by side.
    type Element: Copy + Default + Sync;

    /// The weights of all rows.
    fn of(rows: &[[Self::Element; STEP]; GROUP_ROWS]) -> Self;

    /// The weights of a row, widened.
    fn row(&self, row: usize) -> [f32; STEP];

    /// Calls `with` for each column, in order, with its weights, widened.
    fn for_each_column<L: Dots>(&self, lanes: L, with: impl FnMut(usize, L::Vector));
}

/// 32 bits, column by column.
#[derive(Clone, Copy, Debug)]
pub(super) struct F32x16([[f32; GROUP_ROWS]; STEP]);

/// The bits of half-precision numbers, column by column.
#[derive(Clone, Copy, Debug)]
pub(super) struct F16x16([[u16; GROUP_ROWS]; STEP]);

/// The bits of bfloat16 numbers: for each two neighbouring columns, those of each row. So they are the low
/// and the high halves of 32-bit numbers, and need no shuffling to be widened or to be multiplied in pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bf16x16(pub(super) [[u16; 2 * GROUP_ROWS]; STEP / 2]);

/// Blocks of 8-bit numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Q8x16 {
    /// The bits of half-precision numbers.
    pub(super) scales: [u16; GROUP_ROWS],
    /// For each four neighbouring columns, those of each row, plus 128.
    pub(super) numbers: [[u8; QUADS_BYTES]; STEP / 4],
}

/// Blocks of 4-bit numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Q4x16 {
    /// The bits of half-precision numbers.
    pub(super) scales: [u16; GROUP_ROWS],
    /// For each four neighbouring columns, those of each row, plus 8: the first half of the columns in
    /// the low halves of the bytes, the second in the high halves.
    pub(super) numbers: [[u8; QUADS_BYTES]; STEP / 8],
}

impl Stored for F32x16 {
    type Element = f32;

    fn of(rows: &[[f32; STEP]; GROUP_ROWS]) -> Self {
        Self(transposed(rows))
    }

    fn row(&self, row: usize) -> [f32; STEP] {
        self.0.map(|column| column[row])
    }

    #[inline(always)]
    fn for_each_column<L: Dots>(&self, lanes: L, mut with: impl FnMut(usize, L::Vector)) {
        for (column, weights) in self.0.iter().enumerate() {
            with(column, lanes.load(weights));
        }
    }
}

impl Stored for F16x16 {
    type Element = u16;

    fn of(rows: &[[u16; STEP]; GROUP_ROWS]) -> Self {
        Self(transposed(rows))
    }

    fn row(&self, row: usize) -> [f32; STEP] {
        self.0
            .map(|column| half::f16::from_bits(column[row]).to_f32())
    }

    #[inline(always)]
    fn for_each_column<L: Dots>(&self, lanes: L, mut with: impl FnMut(usize, L::Vector)) {
        for (column, weights) in self.0.iter().enumerate() {
            with(column, lanes.load_f16(weights));
        }
    }
}

fn transposed<T: Copy + Default>(rows: &[[T; STEP]; GROUP_ROWS]) -> [[T; GROUP_ROWS]; STEP] {
    let mut columns = [[T::default(); GROUP_ROWS]; STEP];
    for (row, weights) in rows.iter().enumerate() {
        for (column, weight) in columns.iter_mut().zip(weights) {
            column[row] = *weight;
        }
    }
    columns
}

impl Bf16x16 {
    /// The nearest numbers; of two, the even one.
    pub(super) fn rounded(rows: &[[f32; STEP]; GROUP_ROWS]) -> Self {
        Self::of(&rows.map(|row| row.map(|x| (round_bf16(x).to_bits() >> 16) as u16)))
    }
}

impl Stored for Bf16x16 {
    type Element = u16;

    fn of(rows: &[[u16; STEP]; GROUP_ROWS]) -> Self {
        let mut pairs = [[0; 2 * GROUP_ROWS]; STEP / 2];
        for (row, weights) in rows.iter().enumerate() {
            for (pair, weights) in pairs.iter_mut().zip(weights.as_chunks::<2>().0) {
                pair[2 * row..2 * row + 2].copy_from_slice(weights);
            }
        }
        Self(pairs)
    }

    fn row(&self, row: usize) -> [f32; STEP] {
        let bits = |column: usize| u32::from(self.0[column / 2][2 * row + column % 2]);
        std::array::from_fn(|column| f32::from_bits(bits(column) << 16))
    }

    #[inline(always)]
    fn for_each_column<L: Dots>(&self, lanes: L, mut with: impl FnMut(usize, L::Vector)) {
        for (pair, weights) in self.0.iter().enumerate() {
            with(2 * pair, lanes.load_low_bf16(weights));
            with(2 * pair + 1, lanes.load_high_bf16(weights));
        }
    }
}

/// Where the weight of a row and a column lies: among the quads, and in its own.
fn place(row: usize, column: usize) -> (usize, usize) {
    (column / 4, 4 * row + column % 4)
}

impl Stored for Q8x16 {
    type Element = f32;

    /// The largest of a block becomes 127 or -127.
    fn of(rows: &[[f32; STEP]; GROUP_ROWS]) -> Self {
        let (mut scales, mut numbers) = ([0; GROUP_ROWS], [[0; QUADS_BYTES]; STEP / 4]);
        for (row, weights) in rows.iter().enumerate() {
            let largest = weights.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            let (scale, inverse) = scale(largest / 127.0);
            scales[row] = scale;
            for (column, x) in weights.iter().enumerate() {
                let number = (x * inverse).round().clamp(-127.0, 127.0) as i8;
                let (quad, byte) = place(row, column);
                numbers[quad][byte] = number.cast_unsigned() ^ 0x80;
            }
        }
        Self { scales, numbers }
    }

    fn row(&self, row: usize) -> [f32; STEP] {
        let scale = half::f16::from_bits(self.scales[row]).to_f32();
        std::array::from_fn(|column| {
            let (quad, byte) = place(row, column);
            f32::from((self.numbers[quad][byte] ^ 0x80).cast_signed()) * scale
        })
    }

    #[inline(always)]
    fn for_each_column<L: Dots>(&self, lanes: L, mut with: impl FnMut(usize, L::Vector)) {
        let scales = lanes.load_f16(&self.scales);
        // Each product and each sum has few bits, and is exact.
        let less = lanes.multiply(scales, lanes.splat(-128.0));
        for (quad, numbers) in self.numbers.iter().enumerate() {
            for byte in 0..4 {
                let number = lanes.load_bits(numbers, 8 * byte as u32, 8);
                with(4 * quad + byte, lanes.multiply_add(number, scales, less));
            }
        }
    }
}

impl Stored for Q4x16 {
    type Element = f32;

    /// The largest of a block becomes -8: the scale takes its sign.
    fn of(rows: &[[f32; STEP]; GROUP_ROWS]) -> Self {
        let (mut scales, mut numbers) = ([0; GROUP_ROWS], [[0; QUADS_BYTES]; STEP / 8]);
        for (row, weights) in rows.iter().enumerate() {
            let larger = |a: f32, b: f32| if b.abs() > a.abs() { b } else { a };
            let largest = weights.iter().copied().fold(0.0, larger);
            let (scale, inverse) = scale(largest / -8.0);
            scales[row] = scale;
            let number = |x: f32| ((x * inverse).round().clamp(-8.0, 7.0) + 8.0) as u8;
            let (low, high) = weights.split_at(STEP / 2);
            for (column, (&low, &high)) in low.iter().zip(high).enumerate() {
                let (quad, byte) = place(row, column);
                numbers[quad][byte] = number(low) | number(high) << 4;
            }
        }
        Self { scales, numbers }
    }

    fn row(&self, row: usize) -> [f32; STEP] {
        let scale = half::f16::from_bits(self.scales[row]).to_f32();
        std::array::from_fn(|column| {
            let (quad, byte) = place(row, column % (STEP / 2));
            let both = self.numbers[quad][byte];
            let number = if column < STEP / 2 {
                both & 15
            } else {
                both >> 4
            };
            (f32::from(number) - 8.0) * scale
        })
    }

    #[inline(always)]
    fn for_each_column<L: Dots>(&self, lanes: L, mut with: impl FnMut(usize, L::Vector)) {
        let scales = lanes.load_f16(&self.scales);
        let less = lanes.multiply(scales, lanes.splat(-8.0));
        for half in 0..2 {
            for (quad, numbers) in self.numbers.iter().enumerate() {
                for byte in 0..4 {
                    let number = lanes.load_bits(numbers, (8 * byte + 4 * half) as u32, 4);
                    let column = STEP / 2 * half + 4 * quad + byte;
                    with(column, lanes.multiply_add(number, scales, less));
                }
            }
        }
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

#[cfg(test)]
mod tests {
    use super::super::lanes::{Lanes, Portable};
    use super::*;
    use proptest::prelude::*;

    /// The same weights in every row.
    fn kept<W: Stored>(weights: &[W::Element; STEP]) -> [f32; STEP] {
        W::of(&[*weights; GROUP_ROWS]).row(GROUP_ROWS - 1)
    }

    fn rows() -> impl Strategy<Value = [[f32; STEP]; GROUP_ROWS]> {
        let row = prop::array::uniform32(-3.0_f32..3.0);
        prop::collection::vec(row, GROUP_ROWS).prop_map(|rows| rows.try_into().unwrap())
    }

    fn columns_are_those_of_rows<W: Stored>(group: &W) {
        let mut next = 0;
        group.for_each_column(Portable, |column, weights| {
            assert_eq!(column, next);
            next += 1;
            let mut found = [0.0; GROUP_ROWS];
            Portable.store(weights, &mut found);
            let expected: [f32; GROUP_ROWS] = std::array::from_fn(|row| group.row(row)[column]);
            assert_eq!(found, expected);
        });
        assert_eq!(next, STEP);
    }

    proptest! {
        #[test]
        fn a_quantised_weight_is_off_by_half_a_step_at_most(rows in rows()) {
            let (q8, q4) = (Q8x16::of(&rows), Q4x16::of(&rows));
            for (row, weights) in rows.iter().enumerate() {
                let largest = weights.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
                // A half-precision scale has eleven bits.
                let rounding = largest / 1_024.0;
                for (x, found) in weights.iter().zip(q8.row(row)) {
                    prop_assert!((x - found).abs() <= largest / 127.0 / 2.0 + rounding);
                }
                for (x, found) in weights.iter().zip(q4.row(row)) {
                    // The other sign ends one step earlier.
                    prop_assert!((x - found).abs() <= largest / 8.0 + rounding);
                }
            }
        }

        #[test]
        fn every_type_has_each_weight_in_its_row_and_column(rows in rows()) {
            let half = rows.map(|row| row.map(half::f16::from_f32));
            let brain = rows.map(|row| row.map(half::bf16::from_f32));
            let plain = F32x16::of(&rows);
            let f16 = F16x16::of(&half.map(|row| row.map(half::f16::to_bits)));
            let bf16 = Bf16x16::of(&brain.map(|row| row.map(half::bf16::to_bits)));
            let rounded = Bf16x16::rounded(&rows);
            for row in 0..GROUP_ROWS {
                prop_assert_eq!(plain.row(row), rows[row]);
                prop_assert_eq!(f16.row(row), half[row].map(half::f16::to_f32));
                prop_assert_eq!(bf16.row(row), brain[row].map(half::bf16::to_f32));
                prop_assert_eq!(rounded.row(row), bf16.row(row));
            }
            columns_are_those_of_rows(&plain);
            columns_are_those_of_rows(&f16);
            columns_are_those_of_rows(&bf16);
            columns_are_those_of_rows(&Q8x16::of(&rows));
            columns_are_those_of_rows(&Q4x16::of(&rows));
        }
    }

    #[test]
    fn whole_numbers_of_steps_survive() {
        let weights: [f32; STEP] = std::array::from_fn(|i| (i as f32 - 16.0) * 0.25);
        let q8 = weights.map(|x| x * 127.0 / 16.0);
        assert_eq!(kept::<Q8x16>(&[0.0; STEP]), [0.0; STEP]);
        assert_eq!(kept::<Q4x16>(&[0.0; STEP]), [0.0; STEP]);
        let near = |(a, b): (&f32, f32)| (a - b).abs() < 0.15;
        assert!(q8.iter().zip(kept::<Q8x16>(&q8)).all(near));
        let q4: [f32; STEP] = std::array::from_fn(|i| (i % 16) as f32 * 0.5 - 4.0);
        assert_eq!(kept::<Q4x16>(&q4), q4);
    }

    #[test]
    fn numbers_that_a_scale_cannot_hold_become_zero() {
        let tiny = [1e-12; STEP];
        assert_eq!(kept::<Q8x16>(&tiny), [0.0; STEP]);
        assert_eq!(kept::<Q4x16>(&tiny), [0.0; STEP]);
    }

    #[test]
    fn a_block_takes_the_bytes_of_its_format() {
        assert_eq!(size_of::<Q8x16>(), GROUP_ROWS * 34);
        assert_eq!(size_of::<Q4x16>(), GROUP_ROWS * 18);
    }
}
