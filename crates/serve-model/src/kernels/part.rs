//! Some rows of widened weights times the inputs of a tile, from one cut to the next, and what
//! becomes of the sums.
//!
//! It does not know how weights are stored, so it is compiled once for all types of them.

use std::ops::Range;

use super::block::BLOCK_ROWS;
use super::factors::Steps;
use super::lanes::{LANES, Lanes};
use super::packed::Packed;
use super::team::Tile;

/// Rows of a tile; as many as [`Lanes::sums`] adds up at once.
pub(super) const ROWS: usize = 4;
/// Bytes that memory hands out at once.
pub(super) const LINE_BYTES: usize = 64;

/// One vector of each row of a tile.
pub(super) type Sums = [[f32; LANES]; ROWS];

/// The outputs of a block of rows, for all inputs.
pub(super) struct Outputs<'a> {
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

impl Outputs<'_> {
    /// Writes the sums of neighbouring rows, from `first` on; those behind the last row count for nothing.
    #[inline(always)]
    pub(super) fn finish(&self, sums: &mut [f32], input: usize, first: usize, out: &mut Tile<'_>) {
        let count = sums.len().min(self.rows - first);
        if let Some(bias) = self.finish.bias {
            let bias = &bias[first..][..count];
            sums.iter_mut()
                .zip(bias)
                .for_each(|(sum, bias)| *sum += bias);
        }
        let out = &mut out.row(input)[self.finish.column + first..][..count];
        if self.finish.add {
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += *sum);
        } else {
            out.copy_from_slice(&sums[..count]);
        }
    }
}

/// Memory that is going to be read, asked for in equal shares.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    start: *const u8,
    bytes: usize,
    share: usize,
}

impl Ahead {
    /// `shares` of `memory`, whole lines each.
    pub(super) fn of<T>(memory: &[T], shares: usize) -> Self {
        let bytes = size_of_val(memory);
        Self {
            start: memory.as_ptr().cast(),
            bytes,
            share: bytes.div_ceil(shares).next_multiple_of(LINE_BYTES),
        }
    }

    /// The next share, or what there is.
    pub(super) fn take(&mut self) -> Self {
        let bytes = self.share.min(self.bytes);
        let taken = Self { bytes, ..*self };
        self.start = self.start.wrapping_add(bytes);
        self.bytes -= bytes;
        taken
    }

    /// How many lines there are.
    pub(super) fn lines(&self) -> usize {
        self.bytes.div_ceil(LINE_BYTES)
    }

    /// Asks for some lines of it.
    #[inline(always)]
    pub(super) fn ask<L: Lanes>(&mut self, lanes: L, lines: usize) {
        for _ in 0..lines {
            if self.bytes == 0 {
                return;
            }
            lanes.prefetch_far(self.start);
            self.start = self.start.wrapping_add(LINE_BYTES);
            self.bytes = self.bytes.saturating_sub(LINE_BYTES);
        }
    }
}

/// A cut of the rows of a tile, for the inputs of a tile.
pub(super) struct Part<'a, L: Lanes, S: Steps<L>> {
    pub(super) outputs: &'a Outputs<'a>,
    pub(super) cut: Range<usize>,
    pub(super) rows: [&'a [S::Step]; ROWS],
    /// The number of the tile of rows.
    pub(super) group: usize,
    pub(super) inputs: Range<usize>,
    /// Weights to ask for meanwhile.
    pub(super) ahead: Ahead,
    /// The sums of its inputs, from one cut to the next.
    pub(super) sums: &'a mut [[Sums; BLOCK_ROWS / ROWS]],
}

impl<L: Lanes, S: Steps<L>> Part<'_, L, S> {
    /// Adds its products to the sums; those of the last cut go into `out`.
    #[inline(always)]
    pub(super) fn run(self, lanes: L, out: &mut Tile<'_>) {
        // No more are compiled than there can be.
        match self.inputs.len().min(S::TILE_INPUTS) {
            1 => self.run_compiled::<1>(lanes, out),
            2 => self.run_compiled::<2>(lanes, out),
            _ if S::TILE_INPUTS == 2 => unreachable!("a tile holds two inputs"),
            3 => self.run_compiled::<3>(lanes, out),
            _ if S::TILE_INPUTS == 3 => unreachable!("a tile holds three inputs"),
            4 => self.run_compiled::<4>(lanes, out),
            5 => self.run_compiled::<5>(lanes, out),
            _ => self.run_compiled::<6>(lanes, out),
        }
    }

    /// A function of its own.
    fn run_compiled<const C: usize>(self, lanes: L, out: &mut Tile<'_>) {
        lanes.run(
            #[inline(always)]
            || self.run_for::<C>(lanes, out),
        );
    }

    #[inline(always)]
    fn run_for<const C: usize>(self, lanes: L, out: &mut Tile<'_>) {
        let Self {
            outputs,
            cut,
            mut rows,
            group,
            inputs,
            mut ahead,
            sums: kept,
        } = self;
        let x = outputs.x;
        let x = x.tile_steps::<_, C>(S::packed(x), inputs.start);
        let x = &x[cut.clone()];
        for row in &mut rows {
            // So that no step of the loop has to look.
            *row = &row[..x.len()];
        }
        let lines = ahead.lines().div_ceil(x.len());
        let mut columns = [[[0.0; LANES]; ROWS]; C];
        if cut.start > 0 {
            for (column, kept) in columns.iter_mut().zip(kept.iter()) {
                *column = kept[group];
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
                if part == 0 {
                    ahead.ask(lanes, lines);
                }
                for unit in 0..S::UNITS {
                    let mut inputs = [S::part(lanes, &x[0].0, unit, part); C];
                    for c in 1..C {
                        inputs[c] = S::part(lanes, &x[c].0, unit, part);
                    }
                    for (r, row) in rows.iter().enumerate() {
                        let w = S::part(lanes, &row[step], unit, part);
                        for c in 0..C {
                            sums[c][r] = S::add_part(lanes, w, inputs[c], sums[c][r]);
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
        if cut.end < outputs.steps {
            for (column, kept) in columns.iter().zip(kept) {
                kept[group] = *column;
            }
            return;
        }
        for (input, column) in inputs.zip(&columns) {
            let mut vectors = [lanes.splat(0.0); ROWS];
            for r in 0..ROWS {
                vectors[r] = lanes.load(&column[r]);
            }
            outputs.finish(&mut lanes.sums(vectors), input, group * ROWS, out);
        }
    }
}
