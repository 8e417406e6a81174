//! Matrices of weights, and their products with packed inputs on all threads of a team.

use rayon::prelude::*;

use super::dots::Dots;
use super::instructions::{Instructions, Kernel};
use super::lanes::Lanes;
use super::packed::{Form, Packed};
use super::product::{Finish, Meets, Product};
use super::stored::{Bf16x16, F16x16, F32x16, GROUP_ROWS, Q4x16, Q8x16, STEP, Stored};
use super::team::{Team, Tile};
use super::{math, pages};
use crate::numbers::{Elements, Quantization, widen_bf16, widen_f16};

/// What a matrix is kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The type in which it is stored.
    AsStored,
    /// bfloat16.
    Rounded,
    /// Fewer bits.
    Quantized(Quantization),
}

impl Kept {
    /// Bytes of a matrix whose elements are stored in `stored_bytes` each.
    pub(crate) fn bytes(self, rows: usize, columns: usize, stored_bytes: usize) -> u64 {
        let group = match self {
            Self::AsStored => return (rows * columns * stored_bytes) as u64,
            Self::Rounded => return (rows * columns * size_of::<u16>()) as u64,
            Self::Quantized(Quantization::Q8) => size_of::<Q8x16>(),
            Self::Quantized(Quantization::Q4) => size_of::<Q4x16>(),
        };
        (rows.div_ceil(GROUP_ROWS) * columns.div_ceil(STEP) * group) as u64
    }
}

/// A matrix of weights, `[rows, columns]`. Rows lie side by side, filled up with zeros to whole steps and
/// groups.
#[derive(Clone, Debug)]
pub struct Matrix {
    weights: Weights,
    rows: usize,
    columns: usize,
}

/// For each group of rows, its steps.
#[derive(Clone, Debug)]
enum Weights {
    F32(Vec<F32x16>),
    F16(Vec<F16x16>),
    Bf16(Vec<Bf16x16>),
    Q8(Vec<Q8x16>),
    Q4(Vec<Q4x16>),
}

/// Rows that a thread works on at a time.
const TASK_ROWS: usize = 2 * GROUP_ROWS;

impl Matrix {
    /// A matrix of whole rows of `columns` weights, one at least.
    pub fn new(elements: &Elements, columns: usize, kept: Kept) -> Self {
        let mut matrix = Self::with_room(elements.len() / columns, columns, kept, elements);
        matrix.push(elements);
        matrix
    }

    /// A matrix without rows yet, with room for so many that are stored as `like` is.
    pub(crate) fn with_room(rows: usize, columns: usize, kept: Kept, like: &Elements) -> Self {
        let steps = rows.div_ceil(GROUP_ROWS) * columns.div_ceil(STEP);
        let weights = match (kept, like) {
            (Kept::AsStored, Elements::F32(_)) => Weights::F32(pages::room(steps)),
            (Kept::AsStored, Elements::F16(_)) => Weights::F16(pages::room(steps)),
            (Kept::AsStored, Elements::Bf16(_)) | (Kept::Rounded, _) => {
                Weights::Bf16(pages::room(steps))
            }
            (Kept::Quantized(Quantization::Q8), _) => Weights::Q8(pages::room(steps)),
            (Kept::Quantized(Quantization::Q4), _) => Weights::Q4(pages::room(steps)),
        };
        Self {
            weights,
            rows: 0,
            columns,
        }
    }

    /// Adds whole rows of that type: whole [groups](Self::GROUP_ROWS), but for the last.
    pub(crate) fn push(&mut self, elements: &Elements) {
        debug_assert!(self.rows.is_multiple_of(GROUP_ROWS));
        let columns = self.columns;
        match (&mut self.weights, elements) {
            (Weights::F32(out), Elements::F32(all)) => lay_out(out, all, columns, F32x16::of),
            (Weights::F16(out), Elements::F16(all)) => lay_out(out, all, columns, F16x16::of),
            // Nothing of them is rounded away.
            (Weights::Bf16(out), Elements::Bf16(all)) => lay_out(out, all, columns, Bf16x16::of),
            (Weights::Bf16(out), all) => lay_out_widened(out, all, columns, Bf16x16::rounded),
            (Weights::Q8(out), all) => lay_out_widened(out, all, columns, Q8x16::of),
            (Weights::Q4(out), all) => lay_out_widened(out, all, columns, Q4x16::of),
            (Weights::F32(_) | Weights::F16(_), _) => {
                panic!("rows of another type than there is room for")
            }
        }
        self.rows += elements.len() / columns;
    }

    /// Rows that lie side by side.
    pub(crate) const GROUP_ROWS: usize = GROUP_ROWS;

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
        match &self.weights {
            Weights::F32(weights) => self.copy_row_of(weights, row, out),
            Weights::F16(weights) => self.copy_row_of(weights, row, out),
            Weights::Bf16(weights) => self.copy_row_of(weights, row, out),
            Weights::Q8(weights) => self.copy_row_of(weights, row, out),
            Weights::Q4(weights) => self.copy_row_of(weights, row, out),
        }
    }

    fn copy_row_of<W: Stored>(&self, weights: &[W], row: usize, out: &mut [f32]) {
        let group = &weights[row / GROUP_ROWS * self.steps()..][..self.steps()];
        for (step, out) in group.iter().zip(out.chunks_mut(STEP)) {
            out.copy_from_slice(&step.row(row % GROUP_ROWS)[..out.len()]);
        }
    }

    /// Steps of each row.
    fn steps(&self) -> usize {
        self.columns.div_ceil(STEP)
    }

    /// Multiplies each input with all rows: `out = x * rows + bias`, or `out += ..` if `add`.
    ///
    /// # Shapes
    ///
    /// - `x`: `[inputs, columns]`
    /// - `bias`: `[rows]`
    /// - `out`: `[inputs, rows]`
    ///
    /// # Panics
    ///
    /// When weights of this type do not meet inputs of this form: quantised ones meet whole numbers, and
    /// bfloat16 ones pairs. All meet inputs as they are.
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
            instructions.run(Rows {
                matrix: self,
                first: task * TASK_ROWS,
                rows: tile.width(),
                x,
                finish,
                out: &mut tile,
            });
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
    ///
    /// # Panics
    ///
    /// As [`multiply`](Self::multiply).
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
                instructions.run(Rows {
                    matrix: self,
                    first,
                    rows,
                    x,
                    finish,
                    out: &mut tile,
                });
            }
            instructions.run(Gate { rows, out: tile });
        });
    }

    /// See [`multiply_gated`](Self::multiply_gated).
    pub(crate) const GATED_RUN: usize = TASK_ROWS;
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

impl Kernel for Rows<'_, '_> {
    #[inline(always)]
    fn run<L: Dots>(self, lanes: L) {
        let x = self.x;
        match (&self.matrix.weights, x.form()) {
            (Weights::F32(weights), Form::Wide) => self.multiply(lanes, weights, x.wide()),
            (Weights::F16(weights), Form::Wide) => self.multiply(lanes, weights, x.wide()),
            (Weights::Bf16(weights), Form::Wide) => self.multiply(lanes, weights, x.wide()),
            (Weights::Bf16(weights), Form::Pairs) => self.multiply(lanes, weights, x.pairs()),
            (Weights::Q8(weights), Form::Wide) => self.multiply(lanes, weights, x.wide()),
            (Weights::Q8(weights), Form::Octets) => self.multiply(lanes, weights, x.octets()),
            (Weights::Q4(weights), Form::Wide) => self.multiply(lanes, weights, x.wide()),
            (Weights::Q4(weights), Form::Octets) => self.multiply(lanes, weights, x.octets()),
            (_, Form::Pairs | Form::Octets) => panic!("weights that do not meet rounded inputs"),
        }
    }
}

impl Rows<'_, '_> {
    #[inline(always)]
    fn multiply<L: Dots, X, W: Meets<X>>(self, lanes: L, weights: &[W], x: &[X]) {
        let product = Product {
            weights,
            steps: self.matrix.steps(),
            first: self.first,
            rows: self.rows,
            inputs: self.x,
            x,
            finish: self.finish,
        };
        product.run(lanes, self.out);
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

/// As [`lay_out`], of widened weights.
fn lay_out_widened<W: Send>(
    out: &mut Vec<W>,
    elements: &Elements,
    columns: usize,
    of: fn(&[[f32; STEP]; GROUP_ROWS]) -> W,
) {
    match elements {
        Elements::F32(all) => lay_out(out, all, columns, of),
        Elements::F16(all) => {
            lay_out(out, all, columns, |rows| {
                of(&rows.map(|row| row.map(widen_f16)))
            });
        }
        Elements::Bf16(all) => {
            lay_out(out, all, columns, |rows| {
                of(&rows.map(|row| row.map(widen_bf16)))
            });
        }
    }
}

/// Appends what `of` makes of each step of each group of rows.
fn lay_out<T: Copy + Default + Sync, W: Send>(
    out: &mut Vec<W>,
    elements: &[T],
    columns: usize,
    of: impl Fn(&[[T; STEP]; GROUP_ROWS]) -> W + Send + Sync,
) {
    let steps = columns.div_ceil(STEP);
    let all = (elements.len() / columns).div_ceil(GROUP_ROWS) * steps;
    let all = (0..all).into_par_iter().with_min_len(1 << 8);
    out.par_extend(all.map(|index| {
        let (group, step) = (index / steps, index % steps);
        let mut rows = [[T::default(); STEP]; GROUP_ROWS];
        let group = elements.chunks(columns).skip(group * GROUP_ROWS);
        for (out, row) in rows.iter_mut().zip(group) {
            let row = &row[step * STEP..];
            let row = &row[..row.len().min(STEP)];
            out[..row.len()].copy_from_slice(row);
        }
        of(&rows)
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::Precision;
    use proptest::prelude::*;
    use serve_core::rng::Rng;

    fn random(count: usize, rng: &mut Rng) -> Vec<f32> {
        (0..count)
            .map(|_| (rng.next_f64() * 2.0 - 1.0) as f32)
            .collect()
    }

    /// The same numbers, kept in each type.
    fn stored(numbers: &[f32], columns: usize) -> [Matrix; 6] {
        let f16 = numbers.iter().map(|&x| half::f16::from_f32(x).to_bits());
        let f16 = Elements::F16(f16.collect());
        let bf16 = numbers.iter().map(|&x| half::bf16::from_f32(x).to_bits());
        let bf16 = Elements::Bf16(bf16.collect());
        let f32 = || Elements::F32(numbers.to_vec());
        [
            Matrix::new(&f32(), columns, Kept::AsStored),
            Matrix::new(&f16, columns, Kept::AsStored),
            Matrix::new(&bf16, columns, Kept::AsStored),
            Matrix::new(&f32(), columns, Kept::Rounded),
            Matrix::new(&f32(), columns, Kept::Quantized(Quantization::Q8)),
            Matrix::new(&f32(), columns, Kept::Quantized(Quantization::Q4)),
        ]
    }

    /// The precisions of inputs that its weights meet.
    fn precisions(matrix: &Matrix) -> &'static [Precision] {
        match &matrix.weights {
            Weights::F32(_) | Weights::F16(_) => &[Precision::F32],
            Weights::Bf16(_) => &[Precision::F32, Precision::Bf16],
            Weights::Q8(_) | Weights::Q4(_) => &[Precision::F32, Precision::Int8],
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

    fn pack(packed: &mut Packed, how: How, columns: usize, x: &[f32]) {
        let inputs = x.len() / columns;
        let layout = how.instructions.layout(how.precision);
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

    /// All rows, one after the other.
    fn widened(matrix: &Matrix) -> Vec<f32> {
        let mut out = vec![0.0; matrix.rows() * matrix.columns];
        for (index, row) in out.chunks_mut(matrix.columns).enumerate() {
            matrix.copy_row(index, row);
        }
        out
    }

    /// The definition, in f64.
    fn reference(precision: Precision, matrix: &Matrix, x: &[f32]) -> Vec<f64> {
        let rows = widened(matrix);
        let mut out = Vec::new();
        for input in x.chunks(matrix.columns) {
            let input = inputs_of(precision, input);
            for row in rows.chunks(matrix.columns) {
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
            for how in every_way(&matrix) {
                let on = |threads| product_on(&mut Team::new(threads), how, &matrix, &x);
                assert!(on(1) == on(3), "{how:?}");
            }
        }
    }

    #[test]
    fn registers_of_any_width_give_the_same_bits() {
        let mut rng = Rng::new(8);
        let x = random(17 * 1030, &mut rng);
        for matrix in stored(&random(50 * 1030, &mut rng), 1030) {
            for &precision in precisions(&matrix) {
                // The portable version rounds products of f32 factors before it adds them.
                let skipped = usize::from(precision == Precision::F32);
                let of = |&instructions: &Instructions| {
                    let how = How {
                        instructions,
                        precision,
                    };
                    product(how, &matrix, &x)
                };
                let all = &Instructions::available()[skipped..];
                let products: Vec<_> = all.iter().map(of).collect();
                assert!(
                    products.windows(2).all(|pair| pair[0] == pair[1]),
                    "{precision:?}"
                );
            }
        }
    }

    #[test]
    fn rows_that_come_bit_by_bit_lie_where_they_would_at_once() {
        let mut rng = Rng::new(13);
        let (rows, columns) = (87, 70);
        let numbers = random(rows * columns, &mut rng);
        let x = random(3 * columns, &mut rng);
        for matrix in stored(&numbers, columns) {
            for kept in [
                Kept::AsStored,
                Kept::Rounded,
                Kept::Quantized(Quantization::Q8),
                Kept::Quantized(Quantization::Q4),
            ] {
                let wide = widened(&matrix);
                let whole = Matrix::new(&Elements::F32(wide.clone()), columns, kept);
                let like = Elements::F32(Vec::new());
                let mut parts = Matrix::with_room(rows, columns, kept, &like);
                for part in wide.chunks(32 * columns) {
                    parts.push(&Elements::F32(part.to_vec()));
                }
                assert_eq!(parts.rows(), rows);
                for how in every_way(&whole) {
                    assert!(
                        product(how, &whole, &x) == product(how, &parts, &x),
                        "{how:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_quantised_product_is_that_of_the_widened_weights() {
        let mut rng = Rng::new(12);
        let (rows, columns, inputs) = (50, 1030, 17);
        let x = random(inputs * columns, &mut rng);
        for matrix in stored(&random(rows * columns, &mut rng), columns) {
            let wide = Elements::F32(widened(&matrix));
            let wide = Matrix::new(&wide, columns, Kept::AsStored);
            for how in every_way(&wide) {
                assert!(
                    product(how, &matrix, &x) == product(how, &wide, &x),
                    "{how:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none_when_factors_are_rounded() {
        // Rounding by adding to the bits would make infinities and zeros of these.
        for bits in [0x7fff_ffff, 0xffff_ffff, 0x7f80_0001] {
            let mut x = [1.0; 40];
            x[21] = f32::from_bits(bits);
            for matrix in stored(&[1.0; 40], 40) {
                for how in every_way(&matrix) {
                    let found = product(how, &matrix, &x)[0];
                    assert!(found.is_nan(), "{how:?}, {bits:x}");
                }
            }
            for kept in [Kept::AsStored, Kept::Rounded] {
                let weights = Matrix::new(&Elements::F32(x.to_vec()), 40, kept);
                for how in every_way(&weights) {
                    let found = product(how, &weights, &[1.0; 40])[0];
                    assert!(found.is_nan(), "{how:?}, {bits:x}");
                }
            }
        }
    }

    #[test]
    fn what_is_infinite_stays_no_finite_number() {
        for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 40];
            x[21] = infinite;
            for matrix in stored(&[1.0; 40], 40) {
                for how in every_way(&matrix) {
                    let found = product(how, &matrix, &x)[0];
                    assert!(!found.is_finite(), "{how:?}");
                }
            }
        }
    }

    #[test]
    fn rounded_factors_give_the_bits_of_sums_in_order_on_every_processor() {
        let mut rng = Rng::new(14);
        let (rows, columns, inputs) = (50, 1030, 17);
        let x = random(inputs * columns, &mut rng);
        let numbers = Elements::F32(random(rows * columns, &mut rng));
        let matrix = Matrix::new(&numbers, columns, Kept::Rounded);
        // Products of two bfloat16 numbers are exact in f32, so that every sum is rounded once.
        let step = |(w, x): (&[f32], &[f32])| {
            let pairs = w.chunks(2).zip(x.chunks(2));
            pairs.fold(0.0_f32, |sum, (w, x)| {
                let second = w.get(1).map_or(0.0, |w| w * x[1]);
                w[0] * x[0] + (second + sum)
            })
        };
        let rows = widened(&matrix);
        let expected = x.chunks(columns).flat_map(|x| {
            let x = inputs_of(Precision::Bf16, x);
            let sum = |w: &[f32]| w.chunks(STEP).zip(x.chunks(STEP)).map(step).sum::<f32>();
            rows.chunks(columns).map(sum).collect::<Vec<_>>()
        });
        let expected: Vec<f32> = expected.collect();
        for instructions in Instructions::available() {
            let how = How {
                instructions,
                precision: Precision::Bf16,
            };
            assert!(product(how, &matrix, &x) == expected, "{instructions}");
        }
    }

    #[test]
    fn inputs_that_a_scale_cannot_hold_become_zero() {
        for x in [0.0, -0.0, 1e-44, -1e-39] {
            for matrix in stored(&[1.0; 40], 40) {
                for how in every_way(&matrix) {
                    let found = product(how, &matrix, &[x; 40])[0];
                    // So near to zero, bfloat16 has few bits left.
                    assert!(found.abs() <= 40.0 * x.abs() * 1.05, "{x}: {found}");
                }
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
            let ones = Matrix::new(&Elements::F32(vec![1.0; half]), half, Kept::AsStored);
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
                packed.start(inputs, half, instructions.layout(Precision::F32));
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
