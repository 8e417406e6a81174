//! Some rows of a matrix times all inputs, on one thread.
//!
//! Every output is one chain: sixteen partial sums, fed from the first column to the last, then
//! added up in a fixed order. How many rows and inputs share a tile, where columns are cut and whether
//! weights are widened in registers or beforehand decides what lies where; no result depends on it.

use std::ops::Range;

use super::factors::{Factors, Step, Steps, Wide};
use super::lanes::Lanes;
use super::packed::Form;
use super::part::{Ahead, LINE_BYTES, Outputs, Part, ROWS, Sums};
use super::stored::{STEP, Stored};
use super::team::Tile;

/// Rows of a block at most.
pub(super) const BLOCK_ROWS: usize = 32;
/// Inputs that share each pass over a block; their sums stay in the second-level cache.
const PASS_INPUTS: usize = 128;
/// Bytes of a block's widened weights between two cuts.
const CUT_BYTES: usize = BLOCK_ROWS * 28 * size_of::<[f32; STEP]>();
/// A thread's room for widened weights and for sums between two cuts.
#[derive(Debug)]
pub(super) struct Room {
    widened: Widened,
    /// For each input and tile of rows.
    sums: Vec<[Sums; BLOCK_ROWS / ROWS]>,
}

/// Room for widened weights, numbers or pairs.
#[derive(Debug)]
pub(crate) struct Widened {
    pub(super) wide: Vec<[f32; STEP]>,
    pub(super) pairs: Vec<[u16; STEP]>,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            widened: Widened {
                wide: vec![[0.0; STEP]; CUT_BYTES / size_of::<[f32; STEP]>()],
                pairs: vec![[0; STEP]; CUT_BYTES / size_of::<[u16; STEP]>()],
            },
            sums: vec![[Sums::default(); BLOCK_ROWS / ROWS]; PASS_INPUTS],
        }
    }
}

/// Some whole rows.
pub(super) struct Block<'a, W: Stored> {
    /// They, and what lies behind them.
    pub(super) weights: &'a [W::Step],
    pub(super) outputs: Outputs<'a>,
}

impl<W: Stored> Block<'_, W> {
    /// Writes `[inputs, rows]`.
    #[inline(always)]
    pub(super) fn run<L: Lanes>(&self, lanes: L, room: &mut Room, out: &mut Tile<'_>) {
        match self.outputs.x.form() {
            Form::Wide => self.run_as::<L, Wide>(lanes, room, out),
            Form::Rounded | Form::Pairs => self.run_as::<L, L::Bf16>(lanes, room, out),
            Form::Octets => unreachable!("inputs of 8 bits are for weights side by side"),
        }
    }

    #[inline(always)]
    fn run_as<L: Lanes, F: Factors<L>>(&self, lanes: L, room: &mut Room, out: &mut Tile<'_>) {
        if self.outputs.x.inputs() <= F::STREAM_INPUTS {
            return self.stream_all::<L, F>(lanes, out);
        }
        let (tiles, pass_tiles) = (
            self.outputs.x.tiles(),
            PASS_INPUTS / F::Widened::TILE_INPUTS,
        );
        for first in (0..tiles).step_by(pass_tiles) {
            let tiles = first..tiles.min(first + pass_tiles);
            self.pass::<L, F>(lanes, room, tiles, out);
        }
    }

    /// Few inputs: weights are widened in registers as they come, for each tile anew.
    #[inline(always)]
    fn stream_all<L: Lanes, F: Factors<L>>(&self, lanes: L, out: &mut Tile<'_>) {
        for first in (0..self.outputs.rows).step_by(ROWS) {
            let mut ahead = first * self.outputs.steps + W::AHEAD_BYTES / size_of::<W::Step>();
            for tile in 0..self.outputs.x.tiles() {
                let inputs = self.outputs.x.tile(tile);
                let start = inputs.start;
                // No more are compiled than there can be.
                match inputs.len().min(F::STREAM_TILE_INPUTS) {
                    1 => self.stream::<L, F, 1>(lanes, first, start, ahead, out),
                    _ if F::STREAM_TILE_INPUTS == 1 => unreachable!("a tile holds one input"),
                    2 => self.stream::<L, F, 2>(lanes, first, start, ahead, out),
                    3 => self.stream::<L, F, 3>(lanes, first, start, ahead, out),
                    _ => self.stream::<L, F, 4>(lanes, first, start, ahead, out),
                }
                // Once is enough.
                ahead = usize::MAX;
            }
        }
    }

    /// The rows of a tile for its `C` inputs.
    #[inline(always)]
    fn stream<L: Lanes, F: Factors<L>, const C: usize>(
        &self,
        lanes: L,
        first: usize,
        inputs: usize,
        ahead: usize,
        out: &mut Tile<'_>,
    ) {
        let x = self
            .outputs
            .x
            .tile_steps::<_, C>(F::Widened::packed(self.outputs.x), inputs);
        let zero = lanes.splat(0.0);
        let mut rows = [self.weights; ROWS];
        for (r, row) in rows.iter_mut().enumerate() {
            // Where fewer are left than a tile has, the last one several times.
            *row = row_of(
                self.weights,
                self.outputs.steps,
                (first + r).min(self.outputs.rows - 1),
            );
        }
        let ahead = self.weights.get(ahead..).unwrap_or_default();
        let mut ahead = ahead.as_chunks::<ROWS>().0.iter();
        let mut sums = [[zero; ROWS]; C];
        for (step, x) in (0..self.outputs.steps).zip(x) {
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
            let mut w = [F::zero(lanes); ROWS];
            for r in 0..ROWS {
                w[r] = F::load::<W>(lanes, &rows[r][step]);
            }
            for unit in 0..F::Widened::UNITS {
                for c in 0..C {
                    let x = F::input(lanes, &x[c].0, unit);
                    for r in 0..ROWS {
                        sums[c][r] = F::add(lanes, F::unit(w[r], unit), x, sums[c][r]);
                    }
                }
            }
        }
        for (c, sums) in sums.into_iter().enumerate() {
            self.outputs
                .finish(&mut lanes.sums(sums), inputs + c, first, out);
        }
    }

    /// Many inputs: weights are widened once for all of them.
    #[inline(always)]
    fn pass<L: Lanes, F: Factors<L>>(
        &self,
        lanes: L,
        room: &mut Room,
        tiles: Range<usize>,
        out: &mut Tile<'_>,
    ) {
        let Room { widened, sums } = room;
        // So much of a tile's inputs stays in the first-level cache while it meets all rows, and so
        // much of a block, widened, in the second-level cache.
        let cut_max = CUT_BYTES / BLOCK_ROWS / size_of::<Step<L, F>>();
        let cuts = self.outputs.steps.div_ceil(cut_max);
        let cut_size = self.outputs.steps.div_ceil(cuts);
        let groups = self.outputs.rows.div_ceil(ROWS);
        let first_input = self.outputs.x.tile(tiles.start).start;
        // The weights of the next block are asked for bit by bit meanwhile.
        let next = &self.weights[self.outputs.rows * self.outputs.steps..];
        let next = &next[..next.len().min(self.outputs.rows * self.outputs.steps)];
        let calls = cuts * tiles.len() * groups;
        let mut ahead = Ahead::of(next, calls);
        for start in (0..self.outputs.steps).step_by(cut_size) {
            let cut = start..self.outputs.steps.min(start + cut_size);
            let as_widened = F::as_widened::<W>(self.weights);
            if as_widened.is_none() {
                self.widen::<L, F>(lanes, cut.clone(), F::Widened::room(widened));
            }
            for tile in tiles.clone() {
                let inputs = self.outputs.x.tile(tile);
                for group in 0..groups {
                    let (weights, steps, columns) = match as_widened {
                        Some(weights) => (weights, self.outputs.steps, cut.clone()),
                        None => (&*F::Widened::room(widened), cut.len(), 0..cut.len()),
                    };
                    let mut rows: [&[Step<L, F>]; ROWS] = [&[]; ROWS];
                    for (r, row) in rows.iter_mut().enumerate() {
                        let index = (group * ROWS + r).min(self.outputs.rows - 1);
                        *row = &row_of(weights, steps, index)[columns.clone()];
                    }
                    let part = Part::<L, F::Widened> {
                        outputs: &self.outputs,
                        cut: cut.clone(),
                        rows,
                        group,
                        inputs: inputs.clone(),
                        ahead: ahead.take(),
                        sums: &mut sums[inputs.start - first_input..][..inputs.len()],
                    };
                    part.run(lanes, out);
                }
            }
        }
    }

    /// Widens a cut of all rows, `[rows, steps of the cut]`.
    #[inline(always)]
    fn widen<L: Lanes, F: Factors<L>>(&self, lanes: L, cut: Range<usize>, out: &mut [Step<L, F>]) {
        for (row, out) in (0..self.outputs.rows).zip(out.chunks_mut(cut.len())) {
            let row = &row_of(self.weights, self.outputs.steps, row)[cut.clone()];
            for (out, step) in out.iter_mut().zip(row) {
                F::store(lanes, F::load::<W>(lanes, step), out);
            }
        }
    }
}

#[inline(always)]
fn row_of<T>(weights: &[T], steps: usize, row: usize) -> &[T] {
    &weights[row * steps..][..steps]
}
