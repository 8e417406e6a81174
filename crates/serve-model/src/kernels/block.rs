//! Some rows of a matrix times all inputs, on one thread.
//!
//! Every output is one chain: sixteen partial sums, fed from the first column to the last, then
//! added up in a fixed order. How many rows and inputs share a tile, where columns are cut and whether
//! weights are widened in registers or beforehand decides what lies where; no result depends on it.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::packed::Packed;
use super::stored::{STEP, Stored, halves};
use super::team::Tile;

/// Rows of a tile; as many as [`Lanes::sums`] adds up at once.
const ROWS: usize = 4;
/// Rows of a block at most.
pub(super) const BLOCK_ROWS: usize = 32;
/// Inputs that share each pass over a block; their sums stay in the second-level cache.
const PASS_INPUTS: usize = 128;
/// Steps between two cuts at most: so much of a tile's inputs stays in the first-level cache while it
/// meets all rows, and so much of a block, widened, in the second-level cache.
const CUT: usize = 28;
/// Bytes that memory hands out at once.
const LINE_BYTES: usize = 64;

/// One vector of each row of a tile.
type Column = [[f32; LANES]; ROWS];

/// A thread's room for widened weights and for sums between two cuts.
#[derive(Debug)]
pub(super) struct Room {
    widened: Vec<[f32; STEP]>,
    /// For each input and tile of rows.
    sums: Vec<[Column; BLOCK_ROWS / ROWS]>,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            widened: vec![[0.0; STEP]; BLOCK_ROWS * CUT],
            sums: vec![[Column::default(); BLOCK_ROWS / ROWS]; PASS_INPUTS],
        }
    }
}

/// Some whole rows.
pub(super) struct Block<'a, W: Stored> {
    /// They, and what lies behind them.
    pub(super) weights: &'a [W::Step],
    pub(super) rows: usize,
    /// Steps of a row.
    pub(super) steps: usize,
    pub(super) x: &'a Packed,
    pub(super) finish: Finish<'a>,
}

/// What becomes of the sums of some rows.
#[derive(Clone, Copy)]
pub(super) struct Finish<'a> {
    /// Is added to them.
    pub(super) bias: Option<&'a [f32]>,
    /// Whether they are added to what is there.
    pub(super) add: bool,
    /// The column of the output where they begin.
    pub(super) column: usize,
}

impl<W: Stored> Block<'_, W> {
    /// Writes `[inputs, rows]`.
    #[inline(always)]
    pub(super) fn run<L: Lanes>(&self, lanes: L, room: &mut Room, out: &mut Tile<'_>) {
        if self.x.inputs() <= L::STREAM_INPUTS {
            return self.stream_all(lanes, out);
        }
        let (tiles, pass_tiles) = (self.x.tiles(), PASS_INPUTS / L::TILE_INPUTS);
        for first in (0..tiles).step_by(pass_tiles) {
            let tiles = first..tiles.min(first + pass_tiles);
            self.pass(lanes, room, tiles, out);
        }
    }

    /// Few inputs: weights are widened in registers as they come, for each tile anew.
    #[inline(always)]
    fn stream_all<L: Lanes>(&self, lanes: L, out: &mut Tile<'_>) {
        for first in (0..self.rows).step_by(ROWS) {
            let mut ahead = first * self.steps + W::AHEAD_BYTES / size_of::<W::Step>();
            for tile in 0..self.x.tiles() {
                let inputs = self.x.tile(tile);
                match inputs.len() {
                    1 => self.stream::<L, 1>(lanes, first, inputs.start, ahead, out),
                    2 => self.stream::<L, 2>(lanes, first, inputs.start, ahead, out),
                    3 => self.stream::<L, 3>(lanes, first, inputs.start, ahead, out),
                    _ => self.stream::<L, 4>(lanes, first, inputs.start, ahead, out),
                }
                // Once is enough.
                ahead = usize::MAX;
            }
        }
    }

    /// The rows of a tile for its `C` inputs.
    #[inline(always)]
    fn stream<L: Lanes, const C: usize>(
        &self,
        lanes: L,
        first: usize,
        inputs: usize,
        ahead: usize,
        out: &mut Tile<'_>,
    ) {
        let x = self.x.vectors::<C>(inputs);
        let zero = lanes.splat(0.0);
        let mut rows = [self.weights; ROWS];
        for (r, row) in rows.iter_mut().enumerate() {
            // Where fewer are left than a tile has, the last one several times.
            *row = row_of(self.weights, self.steps, (first + r).min(self.rows - 1));
        }
        let ahead = self.weights.get(ahead..).unwrap_or_default();
        let mut ahead = ahead.as_chunks::<ROWS>().0.iter();
        let mut sums = [[zero; ROWS]; C];
        for (step, x) in (0..self.steps).zip(x.as_chunks::<2>().0) {
            if let Some(ahead) = ahead.next() {
                for weights in ahead
                    .iter()
                    .step_by((LINE_BYTES / size_of::<W::Step>()).max(1))
                {
                    // The nearest cache holds no more than a few thousand bytes on their way.
                    if W::AHEAD_BYTES <= 8 << 10 {
                        lanes.prefetch(weights);
                    } else {
                        lanes.prefetch_far(weights);
                    }
                }
            }
            let mut w = [[zero; 2]; ROWS];
            for r in 0..ROWS {
                w[r] = W::load(lanes, &rows[r][step]);
            }
            for half in 0..2 {
                for c in 0..C {
                    let x = lanes.load(&x[half][c]);
                    for r in 0..ROWS {
                        sums[c][r] = lanes.multiply_add(w[r][half], x, sums[c][r]);
                    }
                }
            }
        }
        for (c, sums) in sums.into_iter().enumerate() {
            self.finish(lanes.sums(sums), inputs + c, first, out);
        }
    }

    /// Many inputs: weights are widened once for all of them.
    #[inline(always)]
    fn pass<L: Lanes>(&self, lanes: L, room: &mut Room, tiles: Range<usize>, out: &mut Tile<'_>) {
        let cuts = self.steps.div_ceil(CUT);
        let cut_size = self.steps.div_ceil(cuts);
        let groups = self.rows.div_ceil(ROWS);
        let first_input = self.x.tile(tiles.start).start;
        // The weights of the next block are asked for bit by bit meanwhile.
        let next = &self.weights[self.rows * self.steps..];
        let next = &next[..next.len().min(self.rows * self.steps)];
        let line = (LINE_BYTES / size_of::<W::Step>()).max(1);
        let calls = cuts * tiles.len() * groups;
        let lines = next.len().div_ceil(line).div_ceil(calls).max(1);
        let mut ahead = next.chunks(lines * line);
        let ahead_chunk = lines.div_ceil(cut_size) * line;
        for start in (0..self.steps).step_by(cut_size) {
            let cut = start..self.steps.min(start + cut_size);
            let (weights, steps, columns) = match W::as_f32(self.weights) {
                Some(weights) => (weights, self.steps, cut.clone()),
                None => {
                    self.widen(lanes, cut.clone(), &mut room.widened);
                    (room.widened.as_slice(), cut.len(), 0..cut.len())
                }
            };
            for tile in tiles.clone() {
                let inputs = self.x.tile(tile);
                for group in 0..groups {
                    let mut rows: [&[[f32; STEP]]; ROWS] = [&[]; ROWS];
                    for (r, row) in rows.iter_mut().enumerate() {
                        let index = (group * ROWS + r).min(self.rows - 1);
                        *row = &row_of(weights, steps, index)[columns.clone()];
                    }
                    let part = Part {
                        cut: cut.clone(),
                        rows,
                        group,
                        inputs: inputs.start,
                        ahead: ahead.next().unwrap_or_default(),
                        ahead_chunk,
                        sums: &mut room.sums[inputs.start - first_input..][..inputs.len()],
                    };
                    match inputs.len() {
                        1 => part.run::<L, W, 1>(self, lanes, out),
                        2 => part.run::<L, W, 2>(self, lanes, out),
                        3 => part.run::<L, W, 3>(self, lanes, out),
                        4 => part.run::<L, W, 4>(self, lanes, out),
                        5 => part.run::<L, W, 5>(self, lanes, out),
                        _ => part.run::<L, W, 6>(self, lanes, out),
                    }
                }
            }
        }
    }

    /// Widens a cut of all rows, `[rows, steps of the cut]`.
    #[inline(always)]
    fn widen<L: Lanes>(&self, lanes: L, cut: Range<usize>, out: &mut [[f32; STEP]]) {
        for (row, out) in (0..self.rows).zip(out.chunks_mut(cut.len())) {
            let row = &row_of(self.weights, self.steps, row)[cut.clone()];
            for (out, step) in out.iter_mut().zip(row) {
                let [first, second] = W::load(lanes, step);
                let [out_first, out_second] = halves_mut(out);
                lanes.store(first, out_first);
                lanes.store(second, out_second);
            }
        }
    }

    #[inline(always)]
    fn finish(&self, mut sums: [f32; ROWS], input: usize, first: usize, out: &mut Tile<'_>) {
        let count = ROWS.min(self.rows - first);
        if let Some(bias) = self.finish.bias {
            let bias = &bias[first..][..count];
            sums.iter_mut()
                .zip(bias)
                .for_each(|(sum, bias)| *sum += bias);
        }
        let out = &mut out.row(input)[self.finish.column + first..][..count];
        if self.finish.add {
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        } else {
            out.copy_from_slice(&sums[..count]);
        }
    }
}

/// One tile: a cut of some rows for some inputs.
struct Part<'a, S> {
    cut: Range<usize>,
    rows: [&'a [[f32; STEP]]; ROWS],
    group: usize,
    inputs: usize,
    /// Weights to ask for meanwhile.
    ahead: &'a [S],
    /// How many of them in each step.
    ahead_chunk: usize,
    /// The sums of its inputs, from one cut to the next.
    sums: &'a mut [[Column; BLOCK_ROWS / ROWS]],
}

impl<S> Part<'_, S> {
    #[inline(always)]
    fn run<L: Lanes, W: Stored<Step = S>, const C: usize>(
        self,
        block: &Block<'_, W>,
        lanes: L,
        out: &mut Tile<'_>,
    ) {
        let x = block.x.vectors::<C>(self.inputs).as_chunks::<2>().0;
        let x = &x[self.cut.clone()];
        let line = (LINE_BYTES / size_of::<S>()).max(1);
        let mut ahead = self.ahead.chunks(self.ahead_chunk);
        let mut columns = [[[0.0; LANES]; ROWS]; C];
        if self.cut.start > 0 {
            for (column, sums) in columns.iter_mut().zip(self.sums.iter()) {
                *column = sums[self.group];
            }
        }
        for part in 0..L::PARTS {
            let zero = lanes.load_part(&[0.0; LANES], part);
            let mut sums = [[zero; ROWS]; C];
            for c in 0..C {
                for r in 0..ROWS {
                    sums[c][r] = lanes.load_part(&columns[c][r], part);
                }
            }
            for (step, x) in x.iter().enumerate() {
                if part == 0
                    && let Some(ahead) = ahead.next()
                {
                    for weights in ahead.iter().step_by(line) {
                        lanes.prefetch_far(weights);
                    }
                }
                for (half, x) in x.iter().enumerate() {
                    let mut inputs = [zero; C];
                    for c in 0..C {
                        inputs[c] = lanes.load_part(&x[c], part);
                    }
                    for (r, row) in self.rows.iter().enumerate() {
                        let w = lanes.load_part(halves(&row[step])[half], part);
                        for c in 0..C {
                            sums[c][r] = lanes.multiply_add_part(w, inputs[c], sums[c][r]);
                        }
                    }
                }
            }
            for c in 0..C {
                for r in 0..ROWS {
                    lanes.store_part(sums[c][r], &mut columns[c][r], part);
                }
            }
        }
        if self.cut.end < block.steps {
            for (column, sums) in columns.iter().zip(self.sums) {
                sums[self.group] = *column;
            }
            return;
        }
        for (c, column) in columns.iter().enumerate() {
            let mut vectors = [lanes.splat(0.0); ROWS];
            for r in 0..ROWS {
                vectors[r] = lanes.load(&column[r]);
            }
            let sums = lanes.sums(vectors);
            block.finish(sums, self.inputs + c, self.group * ROWS, out);
        }
    }
}

#[inline(always)]
fn row_of<T>(weights: &[T], steps: usize, row: usize) -> &[T] {
    &weights[row * steps..][..steps]
}

#[inline(always)]
fn halves_mut(step: &mut [f32; STEP]) -> [&mut [f32; LANES]; 2] {
    let [first, second] = step.as_chunks_mut::<LANES>().0 else {
        unreachable!("a step is two vectors")
    };
    [first, second]
}
