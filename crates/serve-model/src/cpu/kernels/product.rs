//! Some rows of a matrix times all inputs, on one thread.
//!
//! A lane is a row. Its products of a step, 32 columns, are added from the first to the last, and so are the
//! sums of steps: short sums of short sums lose little, and steps do not wait for each other. Whole numbers
//! are added exactly, and then scaled. How many inputs share a tile decides what lies where; no result
//! depends on it.

use super::dots::{Dots, QUADS_BYTES};
use super::lanes::LANES;
use super::packed::{Octets, Packed, Pairs, Wide};
use super::stored::{Bf16x16, GROUP_ROWS, Q4x16, Q8x16, STEP, Stored};
use super::team::Tile;

/// Bytes that memory hands out at once.
const LINE_BYTES: usize = 64;
/// How far ahead of use weights are asked for where they stream through once: the latency of memory times
/// its speed, and more.
const AHEAD_BYTES: usize = 8 << 10;

/// Weights that meet inputs whose steps are an `X`.
pub(crate) trait Meets<X>: Stored {
    /// Adds the products with `C` inputs to their sums.
    fn add<L: Dots, const C: usize>(&self, lanes: L, x: &[X; C], sums: &mut [L::Vector; C]);
}

impl<W: Stored> Meets<Wide> for W {
    #[inline(always)]
    fn add<L: Dots, const C: usize>(&self, lanes: L, x: &[Wide; C], sums: &mut [L::Vector; C]) {
        let mut step = [lanes.splat(0.0); C];
        self.for_each_column(
            lanes,
            #[inline(always)]
            |column, weights| {
                for c in 0..C {
                    step[c] = lanes.multiply_add(weights, lanes.splat(x[c][column]), step[c]);
                }
            },
        );
        join(lanes, step, sums);
    }
}

impl Meets<Pairs> for Bf16x16 {
    #[inline(always)]
    fn add<L: Dots, const C: usize>(&self, lanes: L, x: &[Pairs; C], sums: &mut [L::Vector; C]) {
        let mut step = [lanes.splat(0.0); C];
        for (pair, weights) in self.0.iter().enumerate() {
            let weights = lanes.load_pairs(weights);
            for c in 0..C {
                step[c] = lanes.dot_pairs(weights, x[c][pair], step[c]);
            }
        }
        join(lanes, step, sums);
    }
}

/// Adds the sums of a step to those of the steps before it.
#[inline(always)]
fn join<L: Dots, const C: usize>(lanes: L, step: [L::Vector; C], sums: &mut [L::Vector; C]) {
    for (sum, step) in sums.iter_mut().zip(step) {
        *sum = lanes.add(*sum, step);
    }
}

impl Meets<Octets> for Q8x16 {
    #[inline(always)]
    fn add<L: Dots, const C: usize>(&self, lanes: L, x: &[Octets; C], sums: &mut [L::Vector; C]) {
        let quads = |quad: usize| lanes.load_quads(&self.numbers[quad]);
        add_block(lanes, L::EXCESS[0], quads, &self.scales, x, sums);
    }
}

impl Meets<Octets> for Q4x16 {
    #[inline(always)]
    fn add<L: Dots, const C: usize>(&self, lanes: L, x: &[Octets; C], sums: &mut [L::Vector; C]) {
        let quads = |quad: usize| match self.numbers.get(quad) {
            Some(both) => lanes.load_low_quads(both),
            None => lanes.load_high_quads(&self.numbers[quad - STEP / 8]),
        };
        add_block(lanes, L::EXCESS[1], quads, &self.scales, x, sums);
    }
}

/// A block of whole numbers, each larger by `excess`, and its scales.
#[inline(always)]
fn add_block<L: Dots, const C: usize>(
    lanes: L,
    excess: i32,
    quads: impl Fn(usize) -> L::Quads,
    scales: &[u16; GROUP_ROWS],
    x: &[Octets; C],
    sums: &mut [L::Vector; C],
) {
    const { assert!(STEP / 4 * QUADS_BYTES == STEP * GROUP_ROWS) };
    let mut ints = [lanes.splat_int(0); C];
    for c in 0..C {
        ints[c] = lanes.splat_int(-excess * x[c].sum);
    }
    for quad in 0..STEP / 4 {
        let weights = quads(quad);
        for c in 0..C {
            ints[c] = lanes.dot_quads(weights, x[c].quads[quad], ints[c]);
        }
    }
    let scales = lanes.load_f16(scales);
    for c in 0..C {
        let scales = lanes.multiply(scales, lanes.splat(x[c].scale));
        sums[c] = lanes.multiply_add_exact(lanes.to_floats(ints[c]), scales, sums[c]);
    }
}

/// Some rows of a matrix times all inputs.
pub(super) struct Product<'a, W, X> {
    /// All of the matrix: for each group of rows, its steps.
    pub(super) weights: &'a [W],
    /// Steps of a row.
    pub(super) steps: usize,
    /// The first row.
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) inputs: &'a Packed,
    /// Their steps.
    pub(super) x: &'a [X],
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

impl Finish<'_> {
    /// Writes the sums of neighbouring rows, from `first` on, into a row of the output.
    fn write(&self, sums: &mut [f32], first: usize, out: &mut [f32]) {
        if let Some(bias) = self.bias {
            let bias = &bias[first..];
            sums.iter_mut()
                .zip(bias)
                .for_each(|(sum, bias)| *sum += bias);
        }
        let out = &mut out[self.column + first..][..sums.len()];
        if self.add {
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += *sum);
        } else {
            out.copy_from_slice(sums);
        }
    }
}

impl<X, W: Meets<X>> Product<'_, W, X> {
    /// Writes `[inputs, rows]`.
    #[inline(always)]
    pub(super) fn run<L: Dots>(&self, lanes: L, out: &mut Tile<'_>) {
        let groups = self.first / GROUP_ROWS..(self.first + self.rows).div_ceil(GROUP_ROWS);
        let tiles = self.inputs.tiles();
        // Where all inputs are one tile, what is asked for is soon read. Others read a group again and
        // again from the second-level cache while the next ones are on their way there.
        let start = match tiles {
            1 => groups.start * self.steps + AHEAD_BYTES / size_of::<W>(),
            _ => groups.end * self.steps,
        };
        let next = self.weights.get(start..).unwrap_or_default();
        let next = &next[..next.len().min(groups.len() * self.steps)];
        let mut ahead = Ahead::of(next, groups.len() * tiles);
        for tile in 0..tiles {
            let inputs = self.inputs.tile(tile);
            for group in groups.clone() {
                let part = Part {
                    product: self,
                    group,
                    first_input: inputs.start,
                    ahead: ahead.take(),
                };
                // No more are compiled than there can be.
                match inputs.len().min(L::TILE_INPUTS) {
                    1 => part.run::<L, 1>(lanes, out),
                    2 => part.run::<L, 2>(lanes, out),
                    _ if L::TILE_INPUTS == 2 => unreachable!("a tile holds two inputs"),
                    3 => part.run::<L, 3>(lanes, out),
                    4 => part.run::<L, 4>(lanes, out),
                    _ if L::TILE_INPUTS == 4 => unreachable!("a tile holds four inputs"),
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
struct Part<'a, W, X> {
    product: &'a Product<'a, W, X>,
    group: usize,
    first_input: usize,
    /// Weights to ask for meanwhile.
    ahead: Ahead,
}

impl<X, W: Meets<X>> Part<'_, W, X> {
    /// A function of its own.
    fn run<L: Dots, const C: usize>(self, lanes: L, out: &mut Tile<'_>) {
        lanes.run(
            #[inline(always)]
            || self.run_here::<L, C>(lanes, out),
        );
    }

    #[inline(always)]
    fn run_here<L: Dots, const C: usize>(self, lanes: L, out: &mut Tile<'_>) {
        let Self {
            product,
            group,
            first_input,
            mut ahead,
        } = self;
        let weights = &product.weights[group * product.steps..][..product.steps];
        let x: &[[X; C]] = product.inputs.tile_steps(product.x, first_input);
        let lines = ahead.lines().div_ceil(product.steps);
        let mut sums = [lanes.splat(0.0); C];
        for (weights, x) in weights.iter().zip(x) {
            ahead.ask(lanes, lines);
            weights.add(lanes, x, &mut sums);
        }
        // The rows of the group that are wanted.
        let start = group * GROUP_ROWS;
        let from = product.first.saturating_sub(start);
        let to = GROUP_ROWS.min(product.first + product.rows - start);
        for (c, sums) in sums.into_iter().enumerate() {
            let mut all = [0.0; LANES];
            lanes.store(sums, &mut all);
            let row = out.row(first_input + c);
            let first = start + from - product.first;
            product.finish.write(&mut all[from..to], first, row);
        }
    }
}

/// Memory that is going to be read, asked for in equal shares.
#[derive(Clone, Copy)]
struct Ahead {
    start: *const u8,
    bytes: usize,
    share: usize,
}

impl Ahead {
    /// `shares` of `memory`, whole lines each.
    fn of<T>(memory: &[T], shares: usize) -> Self {
        let bytes = size_of_val(memory);
        Self {
            start: memory.as_ptr().cast(),
            bytes,
            share: bytes.div_ceil(shares).next_multiple_of(LINE_BYTES),
        }
    }

    /// The next share, or what there is.
    fn take(&mut self) -> Self {
        let bytes = self.share.min(self.bytes);
        let taken = Self { bytes, ..*self };
        self.start = self.start.wrapping_add(bytes);
        self.bytes -= bytes;
        taken
    }

    /// How many lines there are.
    fn lines(&self) -> usize {
        self.bytes.div_ceil(LINE_BYTES)
    }

    /// Asks for some lines of it.
    #[inline(always)]
    fn ask<L: Dots>(&mut self, lanes: L, lines: usize) {
        for _ in 0..lines {
            if self.bytes == 0 {
                return;
            }
            lanes.prefetch(self.start);
            self.start = self.start.wrapping_add(LINE_BYTES);
            self.bytes = self.bytes.saturating_sub(LINE_BYTES);
        }
    }
}
