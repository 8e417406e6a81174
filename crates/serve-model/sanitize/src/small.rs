//! Small products of every stored type on all instructions and two threads, of whole numbers, so that
//! every sum is exact.

use crate::model::kernels::{
    Elements, Instructions, Matrix, Packed, Precision, Quantization, Team,
};

/// Less than a block and a step, exactly one of each, and a little more.
const SHAPES: [(usize, usize, usize); 4] = [(1, 1, 1), (5, 17, 2), (32, 32, 3), (35, 40, 7)];

/// Whole numbers, so that every sum is exact in every order.
fn numbers(count: usize, factor: usize) -> Vec<f32> {
    let number = |index: usize| (index * factor % 13) as f32 - 6.0;
    (0..count).map(number).collect()
}

/// Matrices of the numbers, and the precisions that they are laid out for.
fn stored(numbers: &[f32], columns: usize) -> [(Matrix, &'static [Precision]); 7] {
    const PLAIN: &[Precision] = &[Precision::F32, Precision::Bf16];
    let f16 = numbers.iter().map(|&x| half::f16::from_f32(x).to_bits());
    let bf16 = numbers.iter().map(|&x| half::bf16::from_f32(x).to_bits());
    let f32 = || Elements::F32(numbers.to_vec());
    let quantized = |to, precision| Matrix::quantized(f32(), columns, to, precision);
    [
        (Matrix::new(f32(), columns), PLAIN),
        (Matrix::new(Elements::F16(f16.collect()), columns), PLAIN),
        (Matrix::new(Elements::Bf16(bf16.collect()), columns), PLAIN),
        (quantized(Quantization::Q8, Precision::F32), PLAIN),
        (quantized(Quantization::Q4, Precision::F32), PLAIN),
        (
            quantized(Quantization::Q8, Precision::Int8),
            &[Precision::Int8],
        ),
        (
            quantized(Quantization::Q4, Precision::Int8),
            &[Precision::Int8],
        ),
    ]
}

/// The definition; whole numbers as small as these need no rounding, but weights that have been made
/// smaller do, and so do inputs of 8 bits.
fn expected(precision: Precision, matrix: &Matrix, columns: usize, x: &[f32]) -> Vec<f32> {
    let rounded = |&w: &f32| match precision {
        Precision::F32 | Precision::Int8 => w,
        Precision::Bf16 => half::bf16::from_f32(w).to_f32(),
    };
    let mut row = vec![0.0; columns];
    let mut out = Vec::new();
    for x in x.chunks(columns) {
        for index in 0..matrix.rows() {
            matrix.copy_row(index, &mut row);
            out.push(row.iter().zip(x).map(|(w, x)| rounded(w) * x).sum());
        }
    }
    out
}

#[test]
fn small_products_agree_with_the_definition() {
    let team = &mut Team::new(2);
    for (rows, columns, inputs) in SHAPES {
        let x = numbers(inputs * columns, 5);
        for (matrix, precisions) in stored(&numbers(rows * columns, 7), columns) {
            let ways = Instructions::available().into_iter();
            let ways =
                ways.flat_map(|instructions| precisions.iter().map(move |&to| (instructions, to)));
            for (instructions, precision) in ways {
                let expected = expected(precision, &matrix, columns, &x);
                // An input of 8 bits is off by half a step, which is 6 / 127, and a weight is 6 at most.
                let tolerance = match precision {
                    Precision::Int8 => 6.0 * 3.0 / 127.0 * columns as f32,
                    Precision::F32 | Precision::Bf16 => 1e-2,
                };
                let mut packed = Packed::default();
                packed.start(inputs, columns, instructions.layout(precision, inputs));
                for (input, row) in x.chunks(columns).enumerate() {
                    packed.set(input, row);
                }
                let mut out = vec![f32::NAN; inputs * rows];
                matrix.multiply((instructions, team), &packed, None, false, &mut out);
                for (found, expected) in out.iter().zip(expected) {
                    let close = (found - expected).abs() < tolerance;
                    assert!(close, "{instructions}: {found} and {expected}");
                }
            }
        }
    }
}
