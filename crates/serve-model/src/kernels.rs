//! Products with stored weights on host memory: weights stay in the type of the checkpoint and are
//! streamed through all cores once for all inputs.
//!
//! A product never depends on how many inputs there are, how many cores, or which neighbours an
//! input has: the same input gives the same bits. AVX2 and AVX-512 give the same bits too; the
//! portable version rounds products before it adds them and differs in the last bits.

mod block;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

use rayon::prelude::*;

use block::{Bf16, Block, Element, F16, F32, Packed};
use lanes::{Lanes, Portable};

/// Instructions of this processor that the kernels can use.
#[derive(Clone, Copy, Debug)]
pub struct Instructions(Kind);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
}

impl Instructions {
    /// All that this processor has, the fastest last.
    pub fn available() -> Vec<Self> {
        let portable = Some(Kind::Portable(Portable));
        #[cfg(target_arch = "x86_64")]
        let all = [
            portable,
            x86::Avx2::detect().map(Kind::Avx2),
            x86::Avx512::detect().map(Kind::Avx512),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let all = [portable];
        all.into_iter().flatten().map(Self).collect()
    }

    /// The fastest that this processor has.
    pub fn best() -> Self {
        let best = Self::available().pop();
        best.unwrap_or(Self(Kind::Portable(Portable)))
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(_) => "avx512",
        })
    }
}

/// Weights in the type in which they are stored.
#[derive(Clone, Debug)]
pub enum Elements {
    /// 32 bits.
    F32(Vec<f32>),
    /// The bits of half-precision numbers.
    F16(Vec<u16>),
    /// The bits of bfloat16 numbers.
    Bf16(Vec<u16>),
}

/// A matrix of stored weights, `[rows, columns]`, row by row.
#[derive(Clone, Debug)]
pub struct Matrix {
    elements: Elements,
    columns: usize,
}

/// Buffers that products share.
#[derive(Debug, Default)]
pub struct Scratch {
    packed: Packed,
    tasks: Vec<f32>,
}

/// Rows that a core works on at a time.
const TASK_ROWS: usize = 32;

impl Matrix {
    /// A matrix of whole rows of `columns` weights, one at least.
    pub fn new(elements: Elements, columns: usize) -> Self {
        Self { elements, columns }
    }

    /// The number of rows: outputs of a product.
    pub fn rows(&self) -> usize {
        let elements = match &self.elements {
            Elements::F32(elements) => elements.len(),
            Elements::F16(bits) | Elements::Bf16(bits) => bits.len(),
        };
        elements / self.columns
    }

    /// Widens one row, of as many columns as `out` has room for.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn copy_row(&self, row: usize, out: &mut [f32]) {
        let columns = row * self.columns..(row + 1) * self.columns;
        match &self.elements {
            Elements::F32(elements) => out.copy_from_slice(&elements[columns]),
            Elements::F16(bits) => {
                for (out, &bits) in out.iter_mut().zip(&bits[columns]) {
                    *out = half::f16::from_bits(bits).to_f32();
                }
            }
            Elements::Bf16(bits) => {
                for (out, &bits) in out.iter_mut().zip(&bits[columns]) {
                    *out = half::bf16::from_bits(bits).to_f32();
                }
            }
        }
    }

    /// Multiplies each input with all rows, on all cores.
    ///
    /// # Shapes
    ///
    /// - `x`: `[inputs, columns]`
    /// - `out`: `[inputs, rows]`
    pub fn multiply(
        &self,
        instructions: Instructions,
        x: &[f32],
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        match instructions.0 {
            Kind::Portable(lanes) => self.multiply_with(lanes, x, scratch, out),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(lanes) => self.multiply_with(lanes, x, scratch, out),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(lanes) => self.multiply_with(lanes, x, scratch, out),
        }
    }

    fn multiply_with<L: Lanes>(&self, lanes: L, x: &[f32], scratch: &mut Scratch, out: &mut [f32]) {
        let Scratch { packed, tasks } = scratch;
        packed.pack(x, self.columns, L::TILE_INPUTS);
        let (rows, inputs) = (self.rows(), packed.inputs());
        if inputs == 0 {
            return;
        }
        if inputs == 1 {
            return self.run(lanes, packed, out);
        }
        // Each task has a run of memory of its own, `[inputs, its rows]`.
        tasks.resize(tasks.len().max(out.len()), 0.0);
        let tasks = &mut tasks[..out.len()];
        self.run(lanes, packed, tasks);
        let gather = |(input, out): (usize, &mut [f32])| {
            let tasks = tasks.chunks(TASK_ROWS * inputs);
            for (out, task) in out.chunks_mut(TASK_ROWS).zip(tasks) {
                out.copy_from_slice(&task[input * out.len()..][..out.len()]);
            }
        };
        out.par_chunks_mut(rows).enumerate().for_each(gather);
    }

    fn run<L: Lanes>(&self, lanes: L, x: &Packed, tasks: &mut [f32]) {
        match &self.elements {
            Elements::F32(elements) => self.run_typed::<L, F32>(lanes, elements, x, tasks),
            Elements::F16(bits) => self.run_typed::<L, F16>(lanes, bits, x, tasks),
            Elements::Bf16(bits) => self.run_typed::<L, Bf16>(lanes, bits, x, tasks),
        }
    }

    fn run_typed<L: Lanes, W: Element>(
        &self,
        lanes: L,
        weights: &[W::Bits],
        x: &Packed,
        tasks: &mut [f32],
    ) {
        let columns = self.columns;
        let task = |(index, out): (usize, &mut [f32])| {
            let block = Block::<W> {
                weights: &weights[index * TASK_ROWS * columns..],
                rows: out.len() / x.inputs(),
                columns,
                x,
            };
            lanes.run(
                #[inline(always)]
                || block.run(lanes, out),
            );
        };
        let tasks = tasks.par_chunks_mut(TASK_ROWS * x.inputs());
        tasks.enumerate().for_each(task);
    }
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

    /// The same numbers, stored in each type.
    fn stored(numbers: &[f32]) -> [Elements; 3] {
        let f16 = |&x: &f32| half::f16::from_f32(x).to_bits();
        let bf16 = |&x: &f32| half::bf16::from_f32(x).to_bits();
        [
            Elements::F32(numbers.to_vec()),
            Elements::F16(numbers.iter().map(f16).collect()),
            Elements::Bf16(numbers.iter().map(bf16).collect()),
        ]
    }

    fn product(instructions: Instructions, matrix: &Matrix, x: &[f32]) -> Vec<f32> {
        let inputs = x.len() / matrix.columns;
        let mut out = vec![f32::NAN; inputs * matrix.rows()];
        matrix.multiply(instructions, x, &mut Scratch::default(), &mut out);
        out
    }

    /// The definition, in f64.
    fn reference(matrix: &Matrix, x: &[f32]) -> Vec<f64> {
        let mut row = vec![0.0; matrix.columns];
        let mut out = Vec::new();
        for input in x.chunks(matrix.columns) {
            for index in 0..matrix.rows() {
                matrix.copy_row(index, &mut row);
                let products = row
                    .iter()
                    .zip(input)
                    .map(|(&w, &x)| f64::from(w) * f64::from(x));
                out.push(products.sum());
            }
        }
        out
    }

    fn check(rows: usize, columns: usize, inputs: usize, seed: u64) {
        let mut rng = Rng::new(seed);
        let x = random(inputs * columns, &mut rng);
        for elements in stored(&random(rows * columns, &mut rng)) {
            let matrix = Matrix::new(elements, columns);
            let expected = reference(&matrix, &x);
            for instructions in Instructions::available() {
                let found = product(instructions, &matrix, &x);
                // Sums of numbers below 1: their rounding grows with the number of terms.
                let tolerance = 1e-6 * (columns as f64).sqrt() + 1e-7;
                for (index, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                    let error = (f64::from(found) - expected).abs();
                    assert!(
                        error <= tolerance,
                        "{instructions} {rows}x{columns}, {inputs} inputs, output {index}: {found} and {expected}"
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
        for elements in stored(&random(rows * columns, &mut rng)) {
            let matrix = Matrix::new(elements, columns);
            for instructions in Instructions::available() {
                let alone: Vec<f32> = x
                    .chunks(columns)
                    .flat_map(|x| product(instructions, &matrix, x))
                    .collect();
                for inputs in (1..=64).chain([127, 128, 129, 140]) {
                    let together = product(instructions, &matrix, &x[..inputs * columns]);
                    assert!(
                        together == alone[..inputs * rows],
                        "{instructions}, {inputs}"
                    );
                }
            }
        }
    }

    #[test]
    fn one_core_and_several_give_the_same_bits() {
        let mut rng = Rng::new(6);
        let x = random(9 * 500, &mut rng);
        let [_, _, elements] = stored(&random(300 * 500, &mut rng));
        let matrix = Matrix::new(elements, 500);
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.unwrap()
                .install(|| product(Instructions::best(), &matrix, &x))
        };
        assert!(on(1) == on(3));
    }

    #[test]
    fn wide_registers_of_any_width_give_the_same_bits() {
        let mut rng = Rng::new(8);
        let x = random(17 * 1030, &mut rng);
        for elements in stored(&random(50 * 1030, &mut rng)) {
            let matrix = Matrix::new(elements, 1030);
            let wide = &Instructions::available()[1..];
            let products: Vec<_> = wide.iter().map(|&i| product(i, &matrix, &x)).collect();
            assert!(products.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }

    #[test]
    fn scratch_of_an_earlier_product_changes_nothing() {
        let mut rng = Rng::new(9);
        let mut scratch = Scratch::default();
        let mut out = vec![0.0; 40 * 20];
        for (rows, columns, inputs) in [(40, 70, 20), (7, 33, 5), (20, 65, 12), (9, 3, 1)] {
            let x = random(inputs * columns, &mut rng);
            let [elements, _, _] = stored(&random(rows * columns, &mut rng));
            let matrix = Matrix::new(elements, columns);
            let out = &mut out[..inputs * rows];
            matrix.multiply(Instructions::best(), &x, &mut scratch, out);
            assert!(*out == product(Instructions::best(), &matrix, &x));
        }
    }
}
