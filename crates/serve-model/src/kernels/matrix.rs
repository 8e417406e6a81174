//! Matrices of stored weights, and their products with packed inputs on all threads of a team.

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

use super::block::{BLOCK_ROWS, Block, Room};
use super::interleaved::{GROUP_ROWS, Groups, Interleaved, Q4x16, Q8x16};
use super::lanes::Portable;
use super::part::{Finish, Outputs};
use super::stored::{Bf16, F16, F32, Q4, Q8, STEP, Stored};
use super::{
    Instructions, Kernel, Lanes, Packed, Precision, Quads, Quantization, Team, Tile, math, pages,
};

/// Weights as a checkpoint stores them.
#[derive(Clone, Debug)]
pub enum Elements {
    /// 32 bits.
    F32(Vec<f32>),
    /// The bits of half-precision numbers.
    F16(Vec<u16>),
    /// The bits of bfloat16 numbers.
    Bf16(Vec<u16>),
}

impl Elements {
    /// How many there are.
    fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::F16(bits) | Self::Bf16(bits) => bits.len(),
        }
    }

    /// All of them, widened.
    pub(crate) fn into_f32(self) -> Vec<f32> {
        let widen_half = |bits: u16| half::f16::from_bits(bits).to_f32();
        let widen_brain = |bits: u16| half::bf16::from_bits(bits).to_f32();
        match self {
            Self::F32(numbers) => numbers,
            Self::F16(bits) => bits.into_iter().map(widen_half).collect(),
            Self::Bf16(bits) => bits.into_iter().map(widen_brain).collect(),
        }
    }
}

/// A matrix of weights, `[rows, columns]`, its rows filled up with zeros to whole steps.
#[derive(Clone, Debug)]
pub struct Matrix {
    weights: Weights,
    rows: usize,
    columns: usize,
}

/// Row by row, or rows side by side and filled up with zeros to whole groups.
#[derive(Clone, Debug)]
enum Weights {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Bf16(Vec<u16>),
    Q8(Vec<Q8>),
    Q4(Vec<Q4>),
    Q8x16(Vec<Q8x16>),
    Q4x16(Vec<Q4x16>),
}

/// Rows that a thread works on at a time.
const TASK_ROWS: usize = BLOCK_ROWS;

impl Matrix {
    /// A matrix of whole rows of `columns` weights, one at least, as they are stored.
    pub fn new(elements: Elements, columns: usize) -> Self {
        let rows = elements.len() / columns;
        let weights = match elements {
            Elements::F32(elements) => Weights::F32(whole_steps(elements, columns)),
            Elements::F16(bits) => Weights::F16(whole_steps(bits, columns)),
            Elements::Bf16(bits) => {
                let mut bits = whole_steps(bits, columns);
                let steps = bits.as_chunks_mut().0;
                steps.par_iter_mut().for_each(Bf16::interleave);
                Weights::Bf16(bits)
            }
        };
        Self {
            weights,
            rows,
            columns,
        }
    }

    /// A matrix of whole rows of `columns` weights, one at least, made smaller and laid out for products
    /// with inputs of this precision.
    pub fn quantized(
        elements: Elements,
        columns: usize,
        to: Quantization,
        precision: Precision,
    ) -> Self {
        let exact = Self::new(elements, columns);
        let weights = match (to, precision) {
            (Quantization::Q8, Precision::Int8) => Weights::Q8x16(exact.map_groups(Q8::of)),
            (Quantization::Q4, Precision::Int8) => Weights::Q4x16(exact.map_groups(Q4::of)),
            (Quantization::Q8, _) => Weights::Q8(exact.map_steps(Q8::of)),
            (Quantization::Q4, _) => Weights::Q4(exact.map_steps(Q4::of)),
        };
        Self { weights, ..exact }
    }

    /// The number of rows: outputs of a product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Widens one row, of as many columns as `out` has room for.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn copy_row(&self, row: usize, out: &mut [f32]) {
        self.copy_steps(row, 0..self.steps(), out);
    }

    /// Widens steps of a row.
    fn copy_steps(&self, row: usize, steps: Range<usize>, out: &mut [f32]) {
        let here = row * self.steps() + steps.start..row * self.steps() + steps.end;
        match &self.weights {
            Weights::F32(elements) => copy_steps::<F32>(&elements.as_chunks().0[here], out),
            Weights::F16(bits) => copy_steps::<F16>(&bits.as_chunks().0[here], out),
            Weights::Bf16(bits) => copy_steps::<Bf16>(&bits.as_chunks().0[here], out),
            Weights::Q8(blocks) => copy_steps::<Q8>(&blocks[here], out),
            Weights::Q4(blocks) => copy_steps::<Q4>(&blocks[here], out),
            Weights::Q8x16(blocks) => copy_from_group(self.group(blocks, row), row, steps, out),
            Weights::Q4x16(blocks) => copy_from_group(self.group(blocks, row), row, steps, out),
        }
    }

    /// The blocks of the group that a row belongs to.
    fn group<'a, W>(&self, blocks: &'a [W], row: usize) -> &'a [W] {
        &blocks[row / GROUP_ROWS * self.steps()..][..self.steps()]
    }

    /// Steps of each row.
    fn steps(&self) -> usize {
        self.columns.div_ceil(STEP)
    }

    /// What `map` makes of each step, row by row.
    fn map_steps<T: Send>(&self, map: fn(&[f32; STEP]) -> T) -> Vec<T> {
        let steps = self.steps();
        collect(self.rows * steps, |step| {
            map(&self.step(step / steps, step % steps))
        })
    }

    /// What `map` makes of each step, rows side by side.
    fn map_groups<W: Interleaved>(&self, map: fn(&[f32; STEP]) -> W::Row) -> Vec<W> {
        let steps = self.steps();
        collect(self.rows.div_ceil(GROUP_ROWS) * steps, |block| {
            let (group, step) = (block / steps, block % steps);
            let row = |row| map(&self.step(group * GROUP_ROWS + row, step));
            W::of(&std::array::from_fn(row))
        })
    }

    /// A step of a row, widened; zeros behind the last row.
    fn step(&self, row: usize, step: usize) -> [f32; STEP] {
        let mut wide = [0.0; STEP];
        if row < self.rows {
            self.copy_steps(row, step..step + 1, &mut wide);
        }
        wide
    }

    /// Multiplies each input with all rows: `out = x * rows + bias`, or `out += ..` if `add`. Inputs are
    /// packed for the precision that the matrix was laid out for.
    ///
    /// # Shapes
    ///
    /// - `x`: `[inputs, columns]`
    /// - `bias`: `[rows]`
    /// - `out`: `[inputs, rows]`
    pub(crate) fn multiply(
        &self,
        on: (Instructions, &mut Team),
        x: &Packed,
        bias: Option<&[f32]>,
        add: bool,
        out: &mut [f32],
    ) {
        let (instructions, team) = on;
        team.for_each_tile(out, self.rows(), TASK_ROWS, &[0], &|_, task, mut tile| {
            let finish = Finish {
                bias: bias.map(|bias| &bias[task * TASK_ROWS..]),
                add,
                column: 0,
            };
            let rows = Rows {
                matrix: self,
                first: task * TASK_ROWS,
                rows: tile.width(),
                x,
                finish,
                out: &mut tile,
            };
            rows.run_on(instructions);
        });
    }

    /// Multiplies each input with all rows, of which the first half is a gate for the second:
    /// `silu(gate) * up`. The result lies in runs of [`GATED_RUN`](Self::GATED_RUN), with other things
    /// between: [`Packed::set_every_other`] reads it.
    ///
    /// # Shapes
    ///
    /// - `x`: `[inputs, columns]`
    /// - `bias`: `[rows]`
    /// - `out`: `[inputs, rows]`
    pub(crate) fn multiply_gated(
        &self,
        on: (Instructions, &mut Team),
        x: &Packed,
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) {
        let (instructions, team) = on;
        let run = Self::GATED_RUN;
        let half = self.rows() / 2;
        team.for_each_tile(out, 2 * half, 2 * run, &[0], &|_, task, mut tile| {
            let rows = tile.width() / 2;
            for (column, first) in [(0, task * run), (rows, half + task * run)] {
                let finish = Finish {
                    bias: bias.map(|bias| &bias[first..]),
                    add: false,
                    column,
                };
                let rows = Rows {
                    matrix: self,
                    first,
                    rows,
                    x,
                    finish,
                    out: &mut tile,
                };
                rows.run_on(instructions);
            }
            instructions.run(Gate { rows, out: tile });
        });
    }

    /// See [`multiply_gated`](Self::multiply_gated).
    pub(crate) const GATED_RUN: usize = BLOCK_ROWS;
}

/// The products of some rows.
struct Rows<'a, 'b> {
    matrix: &'a Matrix,
    first: usize,
    rows: usize,
    x: &'a Packed,
    finish: Finish<'a>,
    out: &'a mut Tile<'b>,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::new(Room::new());
}

/// Makes the room of each thread, so that one that comes in time for a first product late need not.
pub(crate) fn make_rooms(team: &mut Team) {
    team.on_every_thread(&|| ROOM.with(|_| ()));
}

impl<'a> Rows<'a, '_> {
    fn run_on(self, instructions: Instructions) {
        ROOM.with_borrow_mut(|room| instructions.run(RowsIn { rows: self, room }));
    }

    #[inline(always)]
    fn outputs(&self) -> Outputs<'a> {
        Outputs {
            rows: self.rows,
            steps: self.matrix.steps(),
            x: self.x,
            finish: self.finish,
        }
    }

    #[inline(always)]
    fn block<L: Lanes, W: Stored>(self, lanes: L, room: &mut Room, weights: &[W::Step]) {
        let steps = self.matrix.steps();
        let block = Block::<W> {
            weights: &weights[self.first * steps..],
            outputs: self.outputs(),
        };
        block.run(lanes, room, self.out);
    }

    #[inline(always)]
    fn groups<L: Quads, W: Interleaved>(self, lanes: L, weights: &[W]) {
        let groups = Groups {
            weights,
            first: self.first,
            outputs: self.outputs(),
        };
        groups.run(lanes, self.out);
    }
}

/// The products of some rows, in a thread's room.
struct RowsIn<'a, 'b, 'c> {
    rows: Rows<'a, 'b>,
    room: &'c mut Room,
}

impl Kernel for RowsIn<'_, '_, '_> {
    #[inline(always)]
    fn run<L: Quads>(self, lanes: L) {
        let Self { rows, room } = self;
        match &rows.matrix.weights {
            Weights::F32(elements) => rows.block::<L, F32>(lanes, room, elements.as_chunks().0),
            Weights::F16(bits) => rows.block::<L, F16>(lanes, room, bits.as_chunks().0),
            Weights::Bf16(bits) => rows.block::<L, Bf16>(lanes, room, bits.as_chunks().0),
            Weights::Q8(blocks) => rows.block::<L, Q8>(lanes, room, blocks),
            Weights::Q4(blocks) => rows.block::<L, Q4>(lanes, room, blocks),
            Weights::Q8x16(blocks) => rows.groups(lanes, blocks),
            Weights::Q4x16(blocks) => rows.groups(lanes, blocks),
        }
    }
}

/// The gate over the first half of a tile's columns.
struct Gate<'a> {
    rows: usize,
    out: Tile<'a>,
}

impl Kernel for Gate<'_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, _: L) {
        for input in 0..self.out.rows() {
            let (gate, up) = self.out.row(input).split_at_mut(self.rows);
            math::gate(gate, up);
        }
    }
}

/// Fills each row up with zeros, if it has to be.
fn whole_steps<T: Copy + Default>(elements: Vec<T>, columns: usize) -> Vec<T> {
    if columns.is_multiple_of(STEP) {
        return elements;
    }
    let length = columns.next_multiple_of(STEP);
    let mut out = pages::zeros(elements.len() / columns * length);
    for (out, row) in out.chunks_mut(length).zip(elements.chunks(columns)) {
        out[..columns].copy_from_slice(row);
    }
    out
}

fn copy_steps<W: Stored>(steps: &[W::Step], out: &mut [f32]) {
    for (step, out) in steps.iter().zip(out.chunks_mut(STEP)) {
        let wide = W::load(Portable, step);
        out.copy_from_slice(&wide.as_flattened()[..out.len()]);
    }
}

/// Widens steps of a row of a group.
fn copy_from_group<W: Interleaved>(group: &[W], row: usize, steps: Range<usize>, out: &mut [f32]) {
    for (block, out) in group[steps].iter().zip(out.chunks_mut(STEP)) {
        copy_steps::<W::Row>(&[block.row(row % GROUP_ROWS)], out);
    }
}

/// What `make` makes of each number below `count`, written where it stays: a vocabulary's matrix is
/// large.
fn collect<T: Send>(count: usize, make: impl Fn(usize) -> T + Send + Sync) -> Vec<T> {
    let mut out = pages::room(count);
    let all = (0..count).into_par_iter().with_min_len(1 << 8);
    all.map(make).collect_into_vec(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serve_core::rng::Rng;

    fn random(count: usize, rng: &mut Rng) -> Vec<f32> {
        (0..count)
            .map(|_| (rng.next_f64() * 2.0 - 1.0) as f32)
            .collect()
    }

    /// The same numbers, stored in each type and each layout.
    fn stored(numbers: &[f32], columns: usize) -> [Matrix; 7] {
        let f16 = |&x: &f32| half::f16::from_f32(x).to_bits();
        let bf16 = |&x: &f32| half::bf16::from_f32(x).to_bits();
        let f32 = || Elements::F32(numbers.to_vec());
        [
            Matrix::new(f32(), columns),
            Matrix::new(Elements::F16(numbers.iter().map(f16).collect()), columns),
            Matrix::new(Elements::Bf16(numbers.iter().map(bf16).collect()), columns),
            Matrix::quantized(f32(), columns, Quantization::Q8, Precision::F32),
            Matrix::quantized(f32(), columns, Quantization::Q4, Precision::F32),
            Matrix::quantized(f32(), columns, Quantization::Q8, Precision::Int8),
            Matrix::quantized(f32(), columns, Quantization::Q4, Precision::Int8),
        ]
    }

    /// The precisions that its weights are laid out for, the first the plainest.
    fn precisions(matrix: &Matrix) -> &'static [Precision] {
        match &matrix.weights {
            Weights::Q8x16(_) | Weights::Q4x16(_) => &[Precision::Int8],
            _ => &[Precision::F32, Precision::Bf16],
        }
    }

    /// What multiplies, and what is rounded before.
    #[derive(Clone, Copy, Debug)]
    struct How {
        instructions: Instructions,
        precision: Precision,
    }

    fn every_way(matrix: &Matrix) -> Vec<How> {
        let of = |instructions| {
            precisions(matrix).iter().map(move |&precision| How {
                instructions,
                precision,
            })
        };
        Instructions::available().into_iter().flat_map(of).collect()
    }

    fn best(matrix: &Matrix) -> How {
        How {
            instructions: Instructions::best(),
            precision: precisions(matrix)[0],
        }
    }

    fn pack(packed: &mut Packed, how: How, columns: usize, x: &[f32]) {
        let inputs = x.len() / columns;
        let layout = how.instructions.layout(how.precision, inputs);
        packed.start(inputs, columns, layout);
        for (input, row) in x.chunks(columns).enumerate() {
            packed.set(input, row);
        }
    }

    fn product_on(team: &mut Team, how: How, matrix: &Matrix, x: &[f32]) -> Vec<f32> {
        let mut packed = Packed::default();
        pack(&mut packed, how, matrix.columns, x);
        let mut out = vec![f32::NAN; x.len() / matrix.columns * matrix.rows()];
        matrix.multiply((how.instructions, team), &packed, None, false, &mut out);
        out
    }

    fn product(how: How, matrix: &Matrix, x: &[f32]) -> Vec<f32> {
        product_on(&mut Team::new(1), how, matrix, x)
    }

    /// A row of weights as products see it.
    fn weights_of(precision: Precision, matrix: &Matrix, row: usize) -> Vec<f32> {
        let mut out = vec![0.0; matrix.columns];
        matrix.copy_row(row, &mut out);
        if precision == Precision::Bf16 {
            out = inputs_of(precision, &out);
        }
        out
    }

    /// An input as products see it.
    fn inputs_of(precision: Precision, x: &[f32]) -> Vec<f32> {
        match precision {
            Precision::F32 => x.to_vec(),
            Precision::Bf16 => x
                .iter()
                .map(|&x| half::bf16::from_f32(x).to_f32())
                .collect(),
            Precision::Int8 => x.chunks(STEP).flat_map(whole).collect(),
        }
    }

    /// Whole numbers of at most 127, times a scale.
    fn whole(x: &[f32]) -> Vec<f32> {
        let largest = x.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let scale = largest / 127.0;
        let whole = |x: &f32| (x * (1.0 / scale)).round_ties_even() * scale;
        x.iter().map(whole).collect()
    }

    /// The definition, in f64.
    fn reference(precision: Precision, matrix: &Matrix, x: &[f32]) -> Vec<f64> {
        let rows: Vec<_> = (0..matrix.rows())
            .map(|row| weights_of(precision, matrix, row))
            .collect();
        let mut out = Vec::new();
        for input in x.chunks(matrix.columns) {
            let input = inputs_of(precision, input);
            for row in &rows {
                let products = row.iter().zip(&input);
                let products = products.map(|(&w, &x)| f64::from(w) * f64::from(x));
                out.push(products.sum());
            }
        }
        out
    }

    fn check(rows: usize, columns: usize, inputs: usize, seed: u64) {
        let mut rng = Rng::new(seed);
        let x = random(inputs * columns, &mut rng);
        for matrix in stored(&random(rows * columns, &mut rng), columns) {
            for how in every_way(&matrix) {
                let expected = reference(how.precision, &matrix, &x);
                let found = product(how, &matrix, &x);
                // Sums of numbers below 1: their rounding grows with the number of terms.
                let tolerance = 1e-6 * (columns as f64).sqrt() + 1e-7;
                for (index, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                    let error = (f64::from(found) - expected).abs();
                    assert!(
                        error <= tolerance,
                        "{how:?} {rows}x{columns}, {inputs} inputs, output {index}: {found} and {expected}"
                    );
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn products_agree_with_the_definition(
            rows in 1..80_usize,
            columns in 1..200_usize,
            inputs in 1..40_usize,
            seed: u64,
        ) {
            check(rows, columns, inputs, seed);
        }
    }

    #[test]
    fn shapes_around_every_cut_agree_with_the_definition() {
        for (rows, columns, inputs) in [
            (33, 1023, 7),
            (31, 1024, 6),
            (32, 1025, 130),
            (5, 2049, 257),
            (64, 16, 128),
            (1, 1, 1),
            (97, 3000, 5),
        ] {
            check(rows, columns, inputs, 7);
        }
    }

    #[test]
    fn an_input_gives_the_same_bits_alone_and_in_any_company() {
        let (rows, columns) = (67, 1100);
        let mut rng = Rng::new(5);
        let x = random(140 * columns, &mut rng);
        for matrix in stored(&random(rows * columns, &mut rng), columns) {
            for how in every_way(&matrix) {
                let alone: Vec<f32> = x
                    .chunks(columns)
                    .flat_map(|x| product(how, &matrix, x))
                    .collect();
                for inputs in (1..=64).chain([127, 128, 129, 140]) {
                    let together = product(how, &matrix, &x[..inputs * columns]);
                    assert!(together == alone[..inputs * rows], "{how:?}, {inputs}");
                }
            }
        }
    }

    #[test]
    fn one_core_and_several_give_the_same_bits() {
        let mut rng = Rng::new(6);
        let x = random(9 * 500, &mut rng);
        for matrix in stored(&random(300 * 500, &mut rng), 500) {
            let on = |threads| product_on(&mut Team::new(threads), best(&matrix), &matrix, &x);
            assert!(on(1) == on(3));
        }
    }

    #[test]
    fn registers_of_any_width_give_the_same_bits() {
        let mut rng = Rng::new(8);
        let x = random(17 * 1030, &mut rng);
        for matrix in stored(&random(50 * 1030, &mut rng), 1030) {
            // The portable version rounds products of f32 factors before it adds them.
            let skipped = usize::from(best(&matrix).precision == Precision::F32);
            let wide = &Instructions::available()[skipped..];
            let of = |&instructions: &Instructions| {
                let how = How {
                    instructions,
                    ..best(&matrix)
                };
                product(how, &matrix, &x)
            };
            let products: Vec<_> = wide.iter().map(of).collect();
            assert!(products.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }

    #[test]
    fn rounded_factors_give_the_bits_of_a_product_of_rounded_numbers_on_every_processor() {
        let mut rng = Rng::new(12);
        let (rows, columns, inputs) = (50, 1030, 17);
        let x = random(inputs * columns, &mut rng);
        let rounded_x = inputs_of(Precision::Bf16, &x);
        for matrix in stored(&random(rows * columns, &mut rng), columns) {
            if !precisions(&matrix).contains(&Precision::Bf16) {
                continue;
            }
            let wide = (0..rows).flat_map(|row| weights_of(Precision::Bf16, &matrix, row));
            let wide = Matrix::new(Elements::F32(wide.collect()), columns);
            let expected = product(best(&wide), &wide, &rounded_x);
            for instructions in Instructions::available() {
                let how = How {
                    instructions,
                    precision: Precision::Bf16,
                };
                assert!(product(how, &matrix, &x) == expected, "{instructions}");
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none_when_factors_are_rounded() {
        // Rounding by adding to the bits would make infinities and zeros of these.
        for bits in [
            0x7fff_ffff,
            0xffff_ffff,
            0x7f80_0001,
            0x7f80_0000,
            0xff80_0000,
        ] {
            let mut x = [1.0; 40];
            x[21] = f32::from_bits(bits);
            for matrix in stored(&[1.0; 40], 40) {
                for how in every_way(&matrix) {
                    let found = product(how, &matrix, &x)[0];
                    assert!(!found.is_finite(), "{how:?}, {bits:x}");
                }
            }
            let weights = Matrix::new(Elements::F32(x.to_vec()), 40);
            for how in every_way(&weights) {
                let found = product(how, &weights, &[1.0; 40])[0];
                assert!(!found.is_finite(), "{how:?}, {bits:x}");
            }
        }
    }

    #[test]
    fn inputs_that_a_scale_cannot_hold_become_zero() {
        for x in [0.0, -0.0, 1e-44, -1e-39] {
            for matrix in stored(&[1.0; 40], 40) {
                let found = product(best(&matrix), &matrix, &[x; 40])[0];
                assert!(found.abs() <= 40.0 * x.abs() * 1.01, "{x}: {found}");
            }
        }
    }

    #[test]
    fn what_was_packed_before_changes_nothing() {
        let mut rng = Rng::new(9);
        let mut packed = Packed::default();
        for (rows, columns, inputs) in [(40, 70, 20), (7, 33, 5), (20, 65, 12), (9, 3, 1)] {
            let x = random(inputs * columns, &mut rng);
            for matrix in stored(&random(rows * columns, &mut rng), columns) {
                for how in every_way(&matrix) {
                    pack(&mut packed, how, columns, &x);
                    let mut out = vec![f32::NAN; inputs * rows];
                    let on = (how.instructions, &mut Team::new(1));
                    matrix.multiply(on, &packed, None, false, &mut out);
                    assert!(out == product(how, &matrix, &x));
                }
            }
        }
    }

    #[test]
    fn biases_and_what_is_there_are_added() {
        let mut rng = Rng::new(10);
        let (rows, columns, inputs) = (70, 40, 8);
        let x = random(inputs * columns, &mut rng);
        let bias = random(rows, &mut rng);
        let before = random(inputs * rows, &mut rng);
        for matrix in stored(&random(rows * columns, &mut rng), columns) {
            for how in every_way(&matrix) {
                let product = product(how, &matrix, &x);
                let mut packed = Packed::default();
                pack(&mut packed, how, columns, &x);
                for add in [false, true] {
                    let mut out = before.clone();
                    let on = (how.instructions, &mut Team::new(2));
                    matrix.multiply(on, &packed, Some(&bias), add, &mut out);
                    for (index, found) in out.into_iter().enumerate() {
                        let sum = product[index] + bias[index % rows];
                        let expected = if add { before[index] + sum } else { sum };
                        assert_eq!(found, expected, "{how:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_gated_product_is_packed_for_the_next() {
        let mut rng = Rng::new(11);
        for (half, columns, inputs) in [(32, 20, 1), (70, 33, 7), (5, 8, 2), (129, 40, 20)] {
            let x = random(inputs * columns, &mut rng);
            let bias = random(2 * half, &mut rng);
            let ones = Matrix::new(Elements::F32(vec![1.0; half]), half);
            let numbers = random(2 * half * columns, &mut rng);
            let all = stored(&numbers, columns);
            let ways = all
                .iter()
                .flat_map(|matrix| every_way(matrix).into_iter().map(move |how| (matrix, how)));
            for (matrix, how) in ways {
                let instructions = how.instructions;
                let plain = product(how, matrix, &x);
                let mut packed = Packed::default();
                pack(&mut packed, how, columns, &x);
                let mut gated = vec![0.0; inputs * 2 * half];
                let team = &mut Team::new(2);
                matrix.multiply_gated((instructions, team), &packed, Some(&bias), &mut gated);
                packed.start(inputs, half, instructions.layout(Precision::F32, inputs));
                for (input, row) in gated.chunks(2 * half).enumerate() {
                    packed.set_every_other(input, row, Matrix::GATED_RUN);
                }
                let mut sums = vec![0.0; inputs];
                ones.multiply((instructions, team), &packed, None, false, &mut sums);
                for (row, sum) in plain.chunks(2 * half).zip(sums) {
                    let at = |i: usize| f64::from(row[i]) + f64::from(bias[i]);
                    let silu = |x: f64| x / (1.0 + (-x).exp());
                    let expected: f64 = (0..half).map(|i| silu(at(i)) * at(half + i)).sum();
                    assert!((expected - f64::from(sum)).abs() < 1e-3, "{how:?}");
                }
            }
        }
    }
}
