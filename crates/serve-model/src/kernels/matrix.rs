//! Matrices of stored weights, and their products with packed inputs on all threads of a team.

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

use super::block::{BLOCK_ROWS, Block, Room};
use super::lanes::Portable;
use super::part::{Finish, Outputs};
use super::stored::{Bf16, F16, F32, Q4, Q8, STEP, Stored};
use super::{Instructions, Kernel, Lanes, Packed, Quantization, Team, Tile, math, pages};

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

/// A matrix of weights, `[rows, columns]`, row by row, each filled up with zeros to whole steps.
#[derive(Clone, Debug)]
pub struct Matrix {
    weights: Weights,
    columns: usize,
}

#[derive(Clone, Debug)]
enum Weights {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Bf16(Vec<u16>),
    Q8(Vec<Q8>),
    Q4(Vec<Q4>),
}

/// Rows that a thread works on at a time.
const TASK_ROWS: usize = BLOCK_ROWS;

impl Matrix {
    /// A matrix of whole rows of `columns` weights, one at least, as they are stored.
    pub fn new(elements: Elements, columns: usize) -> Self {
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
        Self { weights, columns }
    }

    /// A matrix of whole rows of `columns` weights, one at least, made smaller.
    pub fn quantized(elements: Elements, columns: usize, to: Quantization) -> Self {
        let exact = Self::new(elements, columns);
        let weights = match to {
            Quantization::Q8 => Weights::Q8(exact.map_steps(Q8::of)),
            Quantization::Q4 => Weights::Q4(exact.map_steps(Q4::of)),
        };
        Self { weights, columns }
    }

    /// The number of rows: outputs of a product.
    pub fn rows(&self) -> usize {
        let steps = match &self.weights {
            Weights::F32(elements) => elements.len() / STEP,
            Weights::F16(bits) | Weights::Bf16(bits) => bits.len() / STEP,
            Weights::Q8(blocks) => blocks.len(),
            Weights::Q4(blocks) => blocks.len(),
        };
        steps / self.steps()
    }

    /// Widens one row, of as many columns as `out` has room for.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn copy_row(&self, row: usize, out: &mut [f32]) {
        self.copy_steps(row * self.steps()..(row + 1) * self.steps(), out);
    }

    fn copy_steps(&self, steps: Range<usize>, out: &mut [f32]) {
        match &self.weights {
            Weights::F32(elements) => copy_steps::<F32>(&elements.as_chunks().0[steps], out),
            Weights::F16(bits) => copy_steps::<F16>(&bits.as_chunks().0[steps], out),
            Weights::Bf16(bits) => copy_steps::<Bf16>(&bits.as_chunks().0[steps], out),
            Weights::Q8(blocks) => copy_steps::<Q8>(&blocks[steps], out),
            Weights::Q4(blocks) => copy_steps::<Q4>(&blocks[steps], out),
        }
    }

    /// Steps of each row.
    fn steps(&self) -> usize {
        self.columns.div_ceil(STEP)
    }

    /// What `map` makes of each step, written where it stays: a vocabulary's matrix is large.
    fn map_steps<T: Send>(&self, map: fn(&[f32; STEP]) -> T) -> Vec<T> {
        let steps = 0..self.rows() * self.steps();
        let map = |step| {
            let mut wide = [0.0; STEP];
            self.copy_steps(step..step + 1, &mut wide);
            map(&wide)
        };
        let mut out = pages::room(steps.len());
        let steps = steps.into_par_iter().with_min_len(1 << 10);
        steps.map(map).collect_into_vec(&mut out);
        out
    }

    /// Multiplies each input with all rows: `out = x * rows + bias`, or `out += ..` if `add`.
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

impl Rows<'_, '_> {
    fn run_on(self, instructions: Instructions) {
        ROOM.with_borrow_mut(|room| instructions.run(RowsIn { rows: self, room }));
    }

    #[inline(always)]
    fn block<L: Lanes, W: Stored>(self, lanes: L, room: &mut Room, weights: &[W::Step]) {
        let steps = self.matrix.steps();
        let block = Block::<W> {
            weights: &weights[self.first * steps..],
            outputs: Outputs {
                rows: self.rows,
                steps,
                x: self.x,
                finish: self.finish,
            },
        };
        block.run(lanes, room, self.out);
    }
}

/// The products of some rows, in a thread's room.
struct RowsIn<'a, 'b, 'c> {
    rows: Rows<'a, 'b>,
    room: &'c mut Room,
}

impl Kernel for RowsIn<'_, '_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { rows, room } = self;
        match &rows.matrix.weights {
            Weights::F32(elements) => rows.block::<L, F32>(lanes, room, elements.as_chunks().0),
            Weights::F16(bits) => rows.block::<L, F16>(lanes, room, bits.as_chunks().0),
            Weights::Bf16(bits) => rows.block::<L, Bf16>(lanes, room, bits.as_chunks().0),
            Weights::Q8(blocks) => rows.block::<L, Q8>(lanes, room, blocks),
            Weights::Q4(blocks) => rows.block::<L, Q4>(lanes, room, blocks),
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

#[cfg(test)]
mod tests {
    use super::super::Precision;
    use super::*;
    use proptest::prelude::*;
    use serve_core::rng::Rng;

    fn random(count: usize, rng: &mut Rng) -> Vec<f32> {
        (0..count)
            .map(|_| (rng.next_f64() * 2.0 - 1.0) as f32)
            .collect()
    }

    /// The same numbers, stored in each type.
    fn stored(numbers: &[f32], columns: usize) -> [Matrix; 5] {
        let f16 = |&x: &f32| half::f16::from_f32(x).to_bits();
        let bf16 = |&x: &f32| half::bf16::from_f32(x).to_bits();
        let f32 = || Elements::F32(numbers.to_vec());
        [
            Matrix::new(f32(), columns),
            Matrix::new(Elements::F16(numbers.iter().map(f16).collect()), columns),
            Matrix::new(Elements::Bf16(numbers.iter().map(bf16).collect()), columns),
            Matrix::quantized(f32(), columns, Quantization::Q8),
            Matrix::quantized(f32(), columns, Quantization::Q4),
        ]
    }

    fn f32(rows: usize, columns: usize, rng: &mut Rng) -> Matrix {
        Matrix::new(Elements::F32(random(rows * columns, rng)), columns)
    }

    /// What multiplies, and what is rounded before.
    #[derive(Clone, Copy, Debug)]
    struct How {
        instructions: Instructions,
        precision: Precision,
    }

    fn every_way() -> Vec<How> {
        let of = |instructions| {
            Precision::ALL.map(|precision| How {
                instructions,
                precision,
            })
        };
        Instructions::available().into_iter().flat_map(of).collect()
    }

    const BEST: fn() -> How = || How {
        instructions: Instructions::best(),
        precision: Precision::F32,
    };

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

    /// A factor as products see it.
    fn factor(precision: Precision, x: f32) -> f32 {
        match precision {
            Precision::F32 => x,
            Precision::Bf16 => half::bf16::from_f32(x).to_f32(),
        }
    }

    /// The definition, in f64.
    fn reference(precision: Precision, matrix: &Matrix, x: &[f32]) -> Vec<f64> {
        let factor = |x| f64::from(factor(precision, x));
        let mut row = vec![0.0; matrix.columns];
        let mut out = Vec::new();
        for input in x.chunks(matrix.columns) {
            for index in 0..matrix.rows() {
                matrix.copy_row(index, &mut row);
                let products = row.iter().zip(input).map(|(&w, &x)| factor(w) * factor(x));
                out.push(products.sum());
            }
        }
        out
    }

    fn check(rows: usize, columns: usize, inputs: usize, seed: u64) {
        let mut rng = Rng::new(seed);
        let x = random(inputs * columns, &mut rng);
        for matrix in stored(&random(rows * columns, &mut rng), columns) {
            for how in every_way() {
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
            for how in every_way() {
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
        let [_, _, matrix, _, _] = stored(&random(300 * 500, &mut rng), 500);
        let on = |threads| product_on(&mut Team::new(threads), BEST(), &matrix, &x);
        assert!(on(1) == on(3));
    }

    #[test]
    fn wide_registers_of_any_width_give_the_same_bits() {
        let mut rng = Rng::new(8);
        let x = random(17 * 1030, &mut rng);
        for matrix in stored(&random(50 * 1030, &mut rng), 1030) {
            let wide = &Instructions::available()[1..];
            let of = |&instructions: &Instructions| {
                let how = How {
                    instructions,
                    ..BEST()
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
        let rounded = |x: &f32| factor(Precision::Bf16, *x);
        let rounded_x: Vec<f32> = x.iter().map(rounded).collect();
        for matrix in stored(&random(rows * columns, &mut rng), columns) {
            let mut wide = vec![0.0; rows * columns];
            for (row, wide) in wide.chunks_mut(columns).enumerate() {
                matrix.copy_row(row, wide);
            }
            let wide = Matrix::new(Elements::F32(wide.iter().map(rounded).collect()), columns);
            let expected = product(BEST(), &wide, &rounded_x);
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
        for bits in [0x7fff_ffff, 0xffff_ffff, 0x7f80_0001] {
            let mut x = [1.0; 40];
            x[21] = f32::from_bits(bits);
            for how in every_way() {
                let ones = Matrix::new(Elements::F32(vec![1.0; 40]), 40);
                assert!(product(how, &ones, &x)[0].is_nan(), "{how:?}, {bits:x}");
                let weights = Matrix::new(Elements::F32(x.to_vec()), 40);
                assert!(
                    product(how, &weights, &[1.0; 40])[0].is_nan(),
                    "{how:?}, {bits:x}"
                );
            }
        }
    }

    #[test]
    fn what_was_packed_before_changes_nothing() {
        let mut rng = Rng::new(9);
        let mut packed = Packed::default();
        for (rows, columns, inputs) in [(40, 70, 20), (7, 33, 5), (20, 65, 12), (9, 3, 1)] {
            let x = random(inputs * columns, &mut rng);
            let matrix = f32(rows, columns, &mut rng);
            for precision in Precision::ALL {
                let how = How {
                    precision,
                    ..BEST()
                };
                pack(&mut packed, how, columns, &x);
                let mut out = vec![f32::NAN; inputs * rows];
                let on = (how.instructions, &mut Team::new(1));
                matrix.multiply(on, &packed, None, false, &mut out);
                assert!(out == product(how, &matrix, &x));
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
        let matrix = f32(rows, columns, &mut rng);
        for how in every_way() {
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

    #[test]
    fn a_gated_product_is_packed_for_the_next() {
        let mut rng = Rng::new(11);
        for (half, columns, inputs) in [(32, 20, 1), (70, 33, 7), (5, 8, 2), (129, 40, 20)] {
            let x = random(inputs * columns, &mut rng);
            let bias = random(2 * half, &mut rng);
            let matrix = f32(2 * half, columns, &mut rng);
            let ones = Matrix::new(Elements::F32(vec![1.0; half]), half);
            for instructions in Instructions::available() {
                let how = How {
                    instructions,
                    ..BEST()
                };
                let plain = product(how, &matrix, &x);
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
                    assert!((expected - f64::from(sum)).abs() < 1e-3, "{instructions}");
                }
            }
        }
    }
}
