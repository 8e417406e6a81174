//! Quantised weights of sixteen rows side by side, and their products with inputs of 8 bits.
//!
//! A lane is a row. Products of a block of 32 columns are whole numbers and are added exactly; the sum,
//! times the scales of the weights and of the inputs, joins its output's chain, from the first block to
//! the last. The same weights as in [`stored`](super::stored) lie in the same room here.

use super::lanes::LANES;
use super::packed::Octets;
use super::part::{Ahead, Outputs};
use super::quads::{QUADS_BYTES, Quads};
use super::stored::{Q4, Q8, STEP, Stored};
use super::team::Tile;

/// Rows side by side.
pub(super) const GROUP_ROWS: usize = LANES;
/// How far ahead of use weights are asked for where they stream through once.
const AHEAD_BYTES: usize = 8 << 10;

/// A block of each row of a group, side by side.
pub(crate) trait Interleaved: Copy + Send + Sync {
    /// A block of one row.
    type Row: Stored<Step = Self::Row> + Copy;

    /// The blocks of all rows.
    fn of(rows: &[Self::Row; GROUP_ROWS]) -> Self;

    /// The block of a row.
    fn row(&self, row: usize) -> Self::Row;

    /// The bits of the half-precision scale of each row.
    fn scales(&self) -> &[u16; GROUP_ROWS];

    /// The weights of four neighbouring columns, of eight times as many.
    fn weights<L: Quads>(&self, lanes: L, quad: usize) -> L::Weights;

    /// By how much the processor takes each weight for larger than it is.
    fn excess<L: Quads>() -> i32;
}

/// Blocks of 8-bit numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Q8x16 {
    scales: [u16; GROUP_ROWS],
    /// For each four neighbouring columns, those of each row, plus 128.
    numbers: [[u8; QUADS_BYTES]; STEP / 4],
}

/// Blocks of 4-bit numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Q4x16 {
    scales: [u16; GROUP_ROWS],
    /// For each four neighbouring columns, those of each row, plus 8: the first half of the columns in
    /// the low halves of the bytes, the second in the high halves.
    numbers: [[u8; QUADS_BYTES]; STEP / 8],
}

/// Where the weight of a row and a column lies: among the quads, and in its own.
fn place(row: usize, column: usize) -> (usize, usize) {
    (column / 4, 4 * row + column % 4)
}

impl Interleaved for Q8x16 {
    type Row = Q8;

    fn of(rows: &[Q8; GROUP_ROWS]) -> Self {
        let mut numbers = [[0; QUADS_BYTES]; STEP / 4];
        for (row, block) in rows.iter().enumerate() {
            for (column, number) in block.numbers.iter().enumerate() {
                let (quad, byte) = place(row, column);
                numbers[quad][byte] = number.cast_unsigned() ^ 0x80;
            }
        }
        Self {
            scales: rows.map(|block| block.scale),
            numbers,
        }
    }

    fn row(&self, row: usize) -> Q8 {
        Q8 {
            scale: self.scales[row],
            numbers: std::array::from_fn(|column| {
                let (quad, byte) = place(row, column);
                (self.numbers[quad][byte] ^ 0x80).cast_signed()
            }),
        }
    }

    #[inline(always)]
    fn scales(&self) -> &[u16; GROUP_ROWS] {
        &self.scales
    }

    #[inline(always)]
    fn weights<L: Quads>(&self, lanes: L, quad: usize) -> L::Weights {
        lanes.load_quads(&self.numbers[quad])
    }

    #[inline(always)]
    fn excess<L: Quads>() -> i32 {
        L::EXCESS[0]
    }
}

impl Interleaved for Q4x16 {
    type Row = Q4;

    fn of(rows: &[Q4; GROUP_ROWS]) -> Self {
        let mut numbers = [[0; QUADS_BYTES]; STEP / 8];
        for (row, block) in rows.iter().enumerate() {
            for column in 0..STEP / 2 {
                // A block has its first half of the columns in the high halves.
                let both = block.numbers[column];
                let (quad, byte) = place(row, column);
                numbers[quad][byte] = both.rotate_left(4);
            }
        }
        Self {
            scales: rows.map(|block| block.scale),
            numbers,
        }
    }

    fn row(&self, row: usize) -> Q4 {
        Q4 {
            scale: self.scales[row],
            numbers: std::array::from_fn(|column| {
                let (quad, byte) = place(row, column);
                self.numbers[quad][byte].rotate_left(4)
            }),
        }
    }

    #[inline(always)]
    fn scales(&self) -> &[u16; GROUP_ROWS] {
        &self.scales
    }

    #[inline(always)]
    fn weights<L: Quads>(&self, lanes: L, quad: usize) -> L::Weights {
        match self.numbers.get(quad) {
            Some(both) => lanes.load_low_quads(both),
            None => lanes.load_high_quads(&self.numbers[quad - STEP / 8]),
        }
    }

    #[inline(always)]
    fn excess<L: Quads>() -> i32 {
        L::EXCESS[1]
    }
}

/// Some rows of a matrix.
pub(super) struct Groups<'a, W> {
    /// All of the matrix: for each group of rows, its blocks.
    pub(super) weights: &'a [W],
    /// The first row.
    pub(super) first: usize,
    pub(super) outputs: Outputs<'a>,
}

impl<W: Interleaved> Groups<'_, W> {
    /// Writes `[inputs, rows]`.
    #[inline(always)]
    pub(super) fn run<L: Quads>(&self, lanes: L, out: &mut Tile<'_>) {
        let Outputs { rows, steps, x, .. } = self.outputs;
        let groups = self.first / GROUP_ROWS..(self.first + rows).div_ceil(GROUP_ROWS);
        // Where all inputs are one tile, what is asked for is soon read. Others read a block again and
        // again from the second-level cache while the next block is on its way there.
        let start = match x.tiles() {
            1 => groups.start * steps + AHEAD_BYTES / size_of::<W>(),
            _ => groups.end * steps,
        };
        let next = self.weights.get(start..).unwrap_or_default();
        let next = &next[..next.len().min(groups.len() * steps)];
        let mut ahead = Ahead::of(next, groups.len() * x.tiles());
        for tile in 0..x.tiles() {
            let inputs = x.tile(tile);
            for group in groups.clone() {
                let part = Part {
                    groups: self,
                    group,
                    first_input: inputs.start,
                    ahead: ahead.take(),
                };
                // No more are compiled than there can be.
                match inputs.len().min(L::QUADS_INPUTS) {
                    1 => part.run::<L, 1>(lanes, out),
                    _ if L::QUADS_INPUTS == 1 => unreachable!("a tile holds one input"),
                    2 => part.run::<L, 2>(lanes, out),
                    _ if L::QUADS_INPUTS == 2 => unreachable!("a tile holds two inputs"),
                    3 => part.run::<L, 3>(lanes, out),
                    4 => part.run::<L, 4>(lanes, out),
                    5 => part.run::<L, 5>(lanes, out),
                    6 => part.run::<L, 6>(lanes, out),
                    7 => part.run::<L, 7>(lanes, out),
                    _ => part.run::<L, 8>(lanes, out),
                }
            }
        }
    }
}

/// One group of rows, for the inputs of a tile.
struct Part<'a, W> {
    groups: &'a Groups<'a, W>,
    group: usize,
    first_input: usize,
    /// Weights to ask for meanwhile.
    ahead: Ahead,
}

impl<W: Interleaved> Part<'_, W> {
    /// A function of its own.
    fn run<L: Quads, const C: usize>(self, lanes: L, out: &mut Tile<'_>) {
        lanes.run(
            #[inline(always)]
            || self.run_here::<L, C>(lanes, out),
        );
    }

    #[inline(always)]
    fn run_here<L: Quads, const C: usize>(self, lanes: L, out: &mut Tile<'_>) {
        let Self {
            groups,
            group,
            first_input,
            mut ahead,
        } = self;
        let outputs = &groups.outputs;
        let weights = &groups.weights[group * outputs.steps..][..outputs.steps];
        let x: &[[Octets; C]] = outputs.x.tile_steps(outputs.x.octets(), first_input);
        let lines = ahead.lines().div_ceil(outputs.steps);
        let mut sums = [lanes.splat(0.0); C];
        for (weights, x) in weights.iter().zip(x) {
            ahead.ask(lanes, lines);
            let mut ints = [lanes.splat_int(0); C];
            for c in 0..C {
                ints[c] = lanes.splat_int(-W::excess::<L>() * x[c].sum);
            }
            for quad in 0..STEP / 4 {
                let weights = weights.weights(lanes, quad);
                for c in 0..C {
                    ints[c] = lanes.dot_quads(weights, x[c].quads[quad], ints[c]);
                }
            }
            let scales = lanes.load_f16(weights.scales());
            for c in 0..C {
                let scales = lanes.multiply(scales, lanes.splat(x[c].scale));
                sums[c] = lanes.multiply_add_exact(lanes.to_floats(ints[c]), scales, sums[c]);
            }
        }
        // The rows of the group that are wanted.
        let start = group * GROUP_ROWS;
        let from = groups.first.saturating_sub(start);
        let to = GROUP_ROWS.min(groups.first + outputs.rows - start);
        for (c, sums) in sums.into_iter().enumerate() {
            let mut all = [0.0; LANES];
            lanes.store(sums, &mut all);
            let first = start + from - groups.first;
            outputs.finish(&mut all[from..to], first_input + c, first, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_come_back_as_they_were(
            weights in prop::collection::vec(prop::array::uniform32(-3.0_f32..3.0), GROUP_ROWS),
        ) {
            let weights: [[f32; STEP]; GROUP_ROWS] = weights.try_into().unwrap();
            let (q8, q4) = (weights.map(|row| Q8::of(&row)), weights.map(|row| Q4::of(&row)));
            for row in 0..GROUP_ROWS {
                let found = Q8x16::of(&q8).row(row);
                prop_assert_eq!((found.scale, found.numbers), (q8[row].scale, q8[row].numbers));
                let found = Q4x16::of(&q4).row(row);
                prop_assert_eq!((found.scale, found.numbers), (q4[row].scale, q4[row].numbers));
            }
        }
    }

    #[test]
    fn rows_side_by_side_need_no_more_room() {
        assert_eq!(size_of::<Q8x16>(), GROUP_ROWS * size_of::<Q8>());
        assert_eq!(size_of::<Q4x16>(), GROUP_ROWS * size_of::<Q4>());
    }
}
