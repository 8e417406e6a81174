//! Small products of every stored type on all instructions and two threads, of whole numbers, so that
//! every sum is exact.

use crate::cpu::kernels::{Instructions, Kept, Matrix, Packed, Team};
use crate::numbers::{Elements, Precision, Quantization};

/// Less than a block and a step, exactly one of each, and a little more.
const SHAPES: [(usize, usize, usize); 4] = [(1, 1, 1), (5, 17, 2), (32, 32, 3), (35, 40, 7)];

/// Whole numbers, so that every sum is exact in every order.
fn numbers(count: usize, factor: usize) -> Vec<f32> {
    let number = |index: usize| (index * factor % 13) as f32 - 6.0;
    (0..count).map(number).collect()
}

/// Matrices of the numbers, and the precisions of inputs that each meets.
fn stored(numbers: &[f32], columns: usize) -> [(Matrix, &'static [Precision]); 6] {
    use Precision::{Bf16, F32, Int8};
    let f16 = numbers.iter().map(|&x| half::f16::from_f32(x).to_bits());
    let f16 = Elements::F16(f16.collect());
    let bf16 = numbers.iter().map(|&x| half::bf16::from_f32(x).to_bits());
    let bf16 = Elements::Bf16(bf16.collect());
    let matrix = |kept| Matrix::new(&Elements::F32(numbers.to_vec()), columns, kept);
    [
        (matrix(Kept::AsStored), &[F32]),
        (Matrix::new(&f16, columns, Kept::AsStored), &[F32]),
        (Matrix::new(&bf16, columns, Kept::AsStored), &[F32, Bf16]),
        (matrix(Kept::Rounded), &[F32, Bf16]),
        (matrix(Kept::Quantized(Quantization::Q8)), &[F32, Int8]),
        (matrix(Kept::Quantized(Quantization::Q4)), &[F32, Int8]),
    ]
}

/// The definition; whole numbers as small as these need no rounding to bfloat16.
fn expected(matrix: &Matrix, columns: usize, x: &[f32]) -> Vec<f32> {
    let mut row = vec![0.0; columns];
    let mut out = Vec::new();
    for x in x.chunks(columns) {
        for index in 0..matrix.rows() {
            matrix.copy_row(index, &mut row);
            out.push(row.iter().zip(x).map(|(w, x)| w * x).sum());
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
            let expected = expected(&matrix, columns, &x);
            let ways = Instructions::available().into_iter();
            let ways =
                ways.flat_map(|way| precisions.iter().map(move |&precision| (way, precision)));
            for (instructions, precision) in ways {
                // An input of 8 bits is off by half a step, which is 6 / 127, and a weight is 6 at most.
                let tolerance = match precision {
                    Precision::Int8 => 6.0 * 3.0 / 127.0 * columns as f32,
                    Precision::F32 | Precision::Bf16 => 1e-2,
                };
                let mut packed = Packed::default();
                packed.start(inputs, columns, instructions.layout(precision));
                for (input, row) in x.chunks(columns).enumerate() {
                    packed.set(input, row);
                }
                let mut out = vec![f32::NAN; inputs * rows];
                matrix.multiply((instructions, team), &packed, None, false, &mut out);
                for (found, expected) in out.iter().zip(&expected) {
                    let close = (found - expected).abs() < tolerance;
                    assert!(close, "{instructions}: {found} and {expected}");
                }
            }
        }
    }
}
