//! Some rows of a matrix times all inputs, on one core.
//!
//! Every output is one chain: sixteen partial sums, fed from the first column to the last, then
//! added up in a fixed order. How many rows and inputs share a tile, and where columns are cut,
//! decides what lies in registers and caches; no result depends on it.

use std::ops::Range;

use super::lanes::{LANES, Lanes};

/// A type in which weights are stored.
pub(super) trait Element: Send + Sync {
    /// How memory holds one.
    type Bits: Copy + Default + Send + Sync;

    fn load<L: Lanes>(lanes: L, bits: &[Self::Bits; LANES]) -> L::Vector;
}

pub(super) struct F32;

impl Element for F32 {
    type Bits = f32;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, bits: &[f32; LANES]) -> L::Vector {
        lanes.load(bits)
    }
}

pub(super) struct F16;

impl Element for F16 {
    type Bits = u16;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, bits: &[u16; LANES]) -> L::Vector {
        lanes.load_f16(bits)
    }
}

pub(super) struct Bf16;

impl Element for Bf16 {
    type Bits = u16;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, bits: &[u16; LANES]) -> L::Vector {
        lanes.load_bf16(bits)
    }
}

/// Inputs in the order in which tiles read them, the last columns filled up with zeros: within a
/// tile, the first vector of each input, then the second of each.
#[derive(Debug, Default)]
pub(super) struct Packed {
    vectors: Vec<[f32; LANES]>,
    inputs: usize,
    /// Vectors of one input.
    length: usize,
    tiles: usize,
}

impl Packed {
    /// Packs `[inputs, columns]` in tiles of about the same size, `tile_max` inputs at most.
    pub(super) fn pack(&mut self, x: &[f32], columns: usize, tile_max: usize) {
        self.inputs = x.len() / columns;
        self.length = columns.div_ceil(LANES);
        self.tiles = self.inputs.div_ceil(tile_max);
        self.vectors.resize(self.inputs * self.length, [0.0; LANES]);
        for tile in 0..self.tiles {
            let tile = self.tile(tile);
            let vectors = &mut self.vectors[tile.start * self.length..tile.end * self.length];
            for (c, input) in tile.clone().enumerate() {
                let chunks = x[input * columns..][..columns].chunks(LANES);
                let vectors = vectors[c..].iter_mut().step_by(tile.len());
                for (vector, chunk) in vectors.zip(chunks) {
                    match chunk.try_into() {
                        Ok(whole) => *vector = whole,
                        Err(_) => *vector = padded(chunk),
                    }
                }
            }
        }
    }

    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    fn tile(&self, tile: usize) -> Range<usize> {
        tile * self.inputs / self.tiles..(tile + 1) * self.inputs / self.tiles
    }
}

/// Rows of a tile; as many as [`Lanes::sums`] adds up at once.
const ROWS: usize = 4;
/// Inputs that share each pass over the weights; they stay in the second-level cache.
const PASS_INPUTS: usize = 128;
/// Vectors between two cuts: so much of the inputs of a pass stays in the second-level cache.
const CUT: usize = 64;
/// How far ahead of use weights are asked for: the latency of memory times its speed.
const AHEAD_BYTES: usize = 16 << 10;

/// Some whole rows.
pub(super) struct Block<'a, W: Element> {
    /// They, and what lies behind them.
    pub(super) weights: &'a [W::Bits],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) x: &'a Packed,
}

impl<W: Element> Block<'_, W> {
    /// Writes `[inputs, rows]`.
    #[inline(always)]
    pub(super) fn run<L: Lanes>(&self, lanes: L, out: &mut [f32]) {
        let pass_tiles = PASS_INPUTS / L::TILE_INPUTS;
        for first in (0..self.x.tiles).step_by(pass_tiles) {
            self.pass(lanes, first..self.x.tiles.min(first + pass_tiles), out);
        }
    }

    /// One pass over the weights, for the inputs of some tiles.
    #[inline(always)]
    fn pass<L: Lanes>(&self, lanes: L, tiles: Range<usize>, out: &mut [f32]) {
        let mut partial = [[[0.0; LANES]; ROWS]; PASS_INPUTS];
        let first_input = self.x.tile(tiles.start).start;
        for first in (0..self.rows).step_by(ROWS) {
            for start in (0..self.x.length).step_by(CUT) {
                let mut part = Part {
                    rows: self.tile_rows(first),
                    ahead: self.ahead(first, start),
                    first,
                    cut: start..self.x.length.min(start + CUT),
                    inputs: 0,
                };
                for tile in tiles.clone() {
                    let inputs = self.x.tile(tile);
                    part.inputs = inputs.start;
                    let partial = &mut partial[inputs.start - first_input..][..inputs.len()];
                    match inputs.len() {
                        1 => self.part::<L, 1>(lanes, &part, partial, out),
                        2 => self.part::<L, 2>(lanes, &part, partial, out),
                        3 => self.part::<L, 3>(lanes, &part, partial, out),
                        4 => self.part::<L, 4>(lanes, &part, partial, out),
                        5 => self.part::<L, 5>(lanes, &part, partial, out),
                        _ => self.part::<L, 6>(lanes, &part, partial, out),
                    }
                    // Once is enough.
                    part.ahead = &[];
                }
            }
        }
    }

    /// The rows from `first`; where fewer are left than a tile has, the last one several times.
    #[inline(always)]
    fn tile_rows(&self, first: usize) -> [&[W::Bits]; ROWS] {
        let mut out = [self.weights; ROWS];
        for (r, out) in out.iter_mut().enumerate() {
            let row = (first + r).min(self.rows - 1);
            *out = &self.weights[row * self.columns..][..self.columns];
        }
        out
    }

    /// What will be read some time after the cut from `start`.
    #[inline(always)]
    fn ahead(&self, first: usize, start: usize) -> &[[W::Bits; STEP]] {
        let now = first * self.columns + start * STEP;
        let distance = (AHEAD_BYTES / size_of::<W::Bits>()).max(ROWS * self.columns);
        let ahead = self.weights.get(now + distance..).unwrap_or_default();
        ahead.as_chunks().0
    }

    #[inline(always)]
    fn part<L: Lanes, const C: usize>(
        &self,
        lanes: L,
        part: &Part<'_, W>,
        partial: &mut [[[f32; LANES]; ROWS]],
        out: &mut [f32],
    ) {
        let x = &self.x.vectors[part.inputs * self.x.length..][..C * self.x.length];
        let x = &x.as_chunks::<C>().0[part.cut.clone()];
        let zero = lanes.load(&[0.0; LANES]);
        let mut sums = [[zero; ROWS]; C];
        if part.cut.start > 0 {
            for c in 0..C {
                for r in 0..ROWS {
                    sums[c][r] = lanes.load(&partial[c][r]);
                }
            }
        }
        let whole = part.cut.end.min(self.columns / LANES) - part.cut.start;
        let mut w = [part.rows[0].as_chunks::<LANES>().0; ROWS];
        for (w, row) in w.iter_mut().zip(part.rows) {
            *w = &row.as_chunks::<LANES>().0[part.cut.start..][..whole];
        }
        for i in 0..whole {
            if let Some(ahead) = part.ahead.get(i) {
                for line in ahead.iter().step_by(LINE_BYTES / size_of::<W::Bits>()) {
                    lanes.prefetch(line);
                }
            }
            let mut row = [zero; ROWS];
            for r in 0..ROWS {
                row[r] = W::load(lanes, &w[r][i]);
            }
            multiply_add(lanes, &row, &x[i], &mut sums);
        }
        if whole < x.len() {
            let mut row = [zero; ROWS];
            for (vector, row) in row.iter_mut().zip(part.rows) {
                let rest = row.as_chunks::<LANES>().1;
                *vector = W::load(lanes, &padded(rest));
            }
            multiply_add(lanes, &row, &x[whole], &mut sums);
        }
        if part.cut.end < self.x.length {
            for c in 0..C {
                for r in 0..ROWS {
                    lanes.store(sums[c][r], &mut partial[c][r]);
                }
            }
        } else {
            self.finish(lanes, &sums, part.inputs, part.first, out);
        }
    }

    #[inline(always)]
    fn finish<L: Lanes, const C: usize>(
        &self,
        lanes: L,
        sums: &[[L::Vector; ROWS]; C],
        inputs: usize,
        first: usize,
        out: &mut [f32],
    ) {
        let count = ROWS.min(self.rows - first);
        for c in 0..C {
            let sums = lanes.sums(sums[c]);
            let out = &mut out[(inputs + c) * self.rows + first..][..count];
            out.copy_from_slice(&sums[..count]);
        }
    }
}

/// A cut of a tile.
struct Part<'a, W: Element> {
    rows: [&'a [W::Bits]; ROWS],
    /// Weights to ask for meanwhile.
    ahead: &'a [[W::Bits; STEP]],
    /// The first row.
    first: usize,
    /// The vectors of each row.
    cut: Range<usize>,
    /// The first input.
    inputs: usize,
}

/// Weights that one step of a tile reads.
const STEP: usize = ROWS * LANES;
/// Bytes that memory hands out at once.
const LINE_BYTES: usize = 64;

#[inline(always)]
fn multiply_add<L: Lanes, const C: usize>(
    lanes: L,
    rows: &[L::Vector; ROWS],
    x: &[[f32; LANES]; C],
    sums: &mut [[L::Vector; ROWS]; C],
) {
    for c in 0..C {
        let x = lanes.load(&x[c]);
        for r in 0..ROWS {
            sums[c][r] = lanes.multiply_add(rows[r], x, sums[c][r]);
        }
    }
}

/// The last, incomplete columns, and zeros.
#[inline(always)]
fn padded<T: Copy + Default>(rest: &[T]) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    out[..rest.len()].copy_from_slice(rest);
    out
}
