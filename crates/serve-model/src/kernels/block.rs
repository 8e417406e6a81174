//! Some rows of a matrix times all inputs, on one thread.
//!
//! Every output is one chain: sixteen partial sums, fed from the first column to the last, then
//! added up in a fixed order. How many rows and inputs share a tile, where columns are cut and whether
//! weights are widened in registers or beforehand decides what lies where; no result depends on it.

use std::array;
use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::packed::Packed;
use super::stored::Stored;
use super::team::Tile;

/// Rows of a tile; as many as [`Lanes::sums`] adds up at once.
const ROWS: usize = 4;
/// Rows that are widened together.
const GROUP_ROWS: usize = 2 * ROWS;
/// Inputs that share each pass over the weights; they stay in the second-level cache.
const PASS_INPUTS: usize = 128;
/// Vectors between two cuts at most. So much of a group and of a tile's inputs stays in the
/// first-level cache.
const CUT: usize = 40;
/// How far ahead of use weights are asked for where one input streams through: the latency of memory
/// times its speed.
const AHEAD_BYTES: usize = 8 << 10;
/// Bytes that memory hands out at once.
const LINE_BYTES: usize = 64;

/// One vector of each row of a tile.
type Column = [[f32; LANES]; ROWS];

/// A thread's room for widened weights and for sums between two cuts.
#[derive(Debug)]
pub(super) struct Room {
    widened: Box<[[Column; CUT]; GROUP_ROWS / ROWS]>,
    /// For each input and tile of rows.
    sums: Box<[[Column; GROUP_ROWS / ROWS]; PASS_INPUTS]>,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            widened: Box::new([[Column::default(); CUT]; GROUP_ROWS / ROWS]),
            sums: Box::new([[Column::default(); GROUP_ROWS / ROWS]; PASS_INPUTS]),
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
        let x = self.x;
        match x.inputs() {
            1 => self.direct::<L, 1>(lanes, out),
            2 if L::DIRECT_INPUTS >= 2 => self.direct::<L, 2>(lanes, out),
            3 if L::DIRECT_INPUTS >= 3 => self.direct::<L, 3>(lanes, out),
            _ => {
                let (tiles, pass_tiles) = (x.tiles(), PASS_INPUTS / L::TILE_INPUTS);
                for first in (0..tiles).step_by(pass_tiles) {
                    let tiles = first..tiles.min(first + pass_tiles);
                    for first in (0..self.rows).step_by(GROUP_ROWS) {
                        self.group(lanes, room, tiles.clone(), first, out);
                    }
                }
            }
        }
    }

    /// All rows for the `C` inputs of one tile, widened as they stream through the registers.
    #[inline(always)]
    fn direct<L: Lanes, const C: usize>(&self, lanes: L, out: &mut Tile<'_>) {
        let x = self.x.vectors::<C>(0);
        let zero = lanes.splat(0.0);
        let ahead_steps = (AHEAD_BYTES / size_of::<W::Step>()).max(ROWS * self.steps);
        for first in (0..self.rows).step_by(ROWS) {
            let rows = self.rows_from(first);
            let ahead = first * self.steps + ahead_steps;
            let ahead = self.weights.get(ahead..).unwrap_or_default();
            let mut ahead = ahead.as_chunks::<ROWS>().0.iter();
            let mut sums = [[zero; ROWS]; C];
            for (step, x) in (0..self.steps).zip(x.as_chunks::<2>().0) {
                if let Some(ahead) = ahead.next() {
                    for weights in ahead
                        .iter()
                        .step_by((LINE_BYTES / size_of::<W::Step>()).max(1))
                    {
                        lanes.prefetch(weights);
                    }
                }
                let w: [[L::Vector; 2]; ROWS] = array::from_fn(
                    #[inline(always)]
                    |r| W::load(lanes, &rows[r][step]),
                );
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
                self.finish(lanes.sums(sums), c, first, out);
            }
        }
    }

    /// Some rows for the inputs of some tiles. Weights are widened once for all of them.
    #[inline(always)]
    fn group<L: Lanes>(
        &self,
        lanes: L,
        room: &mut Room,
        tiles: Range<usize>,
        first: usize,
        out: &mut Tile<'_>,
    ) {
        let length = self.x.length();
        let first_input = self.x.tile(tiles.start).start;
        let cuts = length.div_ceil(CUT);
        // Whole steps.
        let cut_size = length.div_ceil(cuts).next_multiple_of(2);
        let halves = (self.rows - first).min(GROUP_ROWS).div_ceil(ROWS);
        // The weights of the next group are asked for bit by bit meanwhile.
        let next = ((first + GROUP_ROWS) * self.steps).min(self.weights.len());
        let next = &self.weights[next..];
        let next = &next[..next.len().min(GROUP_ROWS * self.steps)];
        let share = next.len().div_ceil(cuts * tiles.len() * halves).max(1);
        let mut ahead = next.chunks(share);
        for start in (0..length).step_by(cut_size) {
            let cut = start..length.min(start + cut_size);
            for half in 0..halves {
                let rows = self.rows_from(first + half * ROWS);
                widen::<L, W>(lanes, rows, cut.clone(), &mut room.widened[half]);
            }
            for tile in tiles.clone() {
                let inputs = self.x.tile(tile);
                for half in 0..halves {
                    let w = &room.widened[half][..cut.len()];
                    let sums = &mut room.sums[inputs.start - first_input..][..inputs.len()];
                    let ahead = ahead.next().unwrap_or_default();
                    let x = (self.x, inputs.start, &cut);
                    match inputs.len() {
                        1 => tile_of::<L, W, 1>(lanes, w, x, half, sums, ahead),
                        2 => tile_of::<L, W, 2>(lanes, w, x, half, sums, ahead),
                        3 => tile_of::<L, W, 3>(lanes, w, x, half, sums, ahead),
                        4 => tile_of::<L, W, 4>(lanes, w, x, half, sums, ahead),
                        5 => tile_of::<L, W, 5>(lanes, w, x, half, sums, ahead),
                        _ => tile_of::<L, W, 6>(lanes, w, x, half, sums, ahead),
                    }
                }
            }
        }
        for tile in tiles {
            for input in self.x.tile(tile) {
                for half in 0..halves {
                    let sums = room.sums[input - first_input][half];
                    let sums = lanes.sums(array::from_fn(
                        #[inline(always)]
                        |r| lanes.load(&sums[r]),
                    ));
                    self.finish(sums, input, first + half * ROWS, out);
                }
            }
        }
    }

    /// The rows from `first`; where fewer are left than a tile has, the last one several times.
    #[inline(always)]
    fn rows_from(&self, first: usize) -> [&[W::Step]; ROWS] {
        array::from_fn(
            #[inline(always)]
            |r| {
                let row = (first + r).min(self.rows - 1);
                &self.weights[row * self.steps..][..self.steps]
            },
        )
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

/// Widens a cut of some rows.
#[inline(always)]
fn widen<L: Lanes, W: Stored>(
    lanes: L,
    rows: [&[W::Step]; ROWS],
    cut: Range<usize>,
    out: &mut [Column; CUT],
) {
    let steps = cut.start / 2..cut.end / 2;
    let rows = rows.map(|row| &row[steps.clone()]);
    for (step, out) in (0..steps.len()).zip(out.as_chunks_mut::<2>().0) {
        for r in 0..ROWS {
            let [first, second] = W::load(lanes, &rows[r][step]);
            lanes.store(first, &mut out[0][r]);
            lanes.store(second, &mut out[1][r]);
        }
    }
}

/// A cut of a tile: adds the products to the sums, or begins them.
#[inline(always)]
fn tile_of<L: Lanes, W: Stored, const C: usize>(
    lanes: L,
    w: &[Column],
    x: (&Packed, usize, &Range<usize>),
    half: usize,
    sums: &mut [[Column; GROUP_ROWS / ROWS]],
    ahead: &[W::Step],
) {
    let (packed, input, cut) = x;
    let x = &packed.vectors::<C>(input)[cut.clone()];
    let line = (LINE_BYTES / size_of::<W::Step>()).max(1);
    let lines = ahead.len().div_ceil(line).div_ceil(w.len() * L::PARTS);
    let mut ahead = ahead.chunks(line * lines.max(1));
    for part in 0..L::PARTS {
        let mut registers = [[lanes.load_part(&[0.0; LANES], part); ROWS]; C];
        if cut.start > 0 {
            for c in 0..C {
                for r in 0..ROWS {
                    registers[c][r] = lanes.load_part(&sums[c][half][r], part);
                }
            }
        }
        for (w, x) in w.iter().zip(x) {
            if let Some(ahead) = ahead.next() {
                for weights in ahead.iter().step_by(line) {
                    lanes.prefetch_far(weights);
                }
            }
            let w: [L::Register; ROWS] = array::from_fn(
                #[inline(always)]
                |r| lanes.load_part(&w[r], part),
            );
            for c in 0..C {
                let x = lanes.load_part(&x[c], part);
                for r in 0..ROWS {
                    registers[c][r] = lanes.multiply_add_part(w[r], x, registers[c][r]);
                }
            }
        }
        for c in 0..C {
            for r in 0..ROWS {
                lanes.store_part(registers[c][r], &mut sums[c][half][r], part);
            }
        }
    }
}
