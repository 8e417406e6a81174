//! Matrix products of few rows, where reading the weights is what takes time.
//!
//! Each weight is read once, in the widest loads that there are, and multiplied with all rows. The sum over the inputs is
//! split over the units of a cube, and a cube has few outputs, so that there are enough cubes to fill a device. In which
//! order a sum is made depends on the weight's shape alone, so that a row's result does not depend on the rows beside it.

use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: usize = 128;
/// Bytes that one load takes at most.
const LOAD_BYTES: usize = 16;
/// Outputs of a cube at most: inputs are read once for all of them.
const COLUMNS_MAX: usize = 4;
/// Cubes from which on outputs may share one: two for each multiprocessor of an H200, which has more than others.
const CUBES_MIN: usize = 264;

/// What the kernel is compiled for.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct ProductShape {
    /// Rows of the step, padded as it is.
    pub(super) rows: usize,
    /// Outputs of a cube.
    pub(super) columns: usize,
}

impl ProductShape {
    /// For `rows` rows of a product with so many outputs. Only `rows` depends on the batch.
    pub(super) fn of(rows: usize, outputs: usize) -> Self {
        let mut columns = COLUMNS_MAX;
        while columns > 1 && outputs.div_ceil(columns) < CUBES_MIN {
            columns /= 2;
        }
        Self { rows, columns }
    }
}

/// Numbers of so many bytes that are read at once from rows of `inputs`.
pub(super) fn pack(inputs: usize, bytes: usize) -> usize {
    let mut pack = LOAD_BYTES / bytes;
    while !inputs.is_multiple_of(pack) {
        pack /= 2;
    }
    pack
}

/// `out = x * weight^T`, `columns` outputs of all rows in each cube (x).
///
/// # Shapes
///
/// - `x`: `[rows, vectors]` of `N` numbers each
/// - `weight`: `[outputs, vectors]` of `N` numbers each
/// - `out`: `[rows, outputs]`
#[cube(launch_unchecked)]
pub(super) fn product<E: Float, N: Size>(
    x: &[Vector<E, N>],
    weight: &[Vector<E, N>],
    out: &mut [E],
    vectors: usize,
    outputs: usize,
    #[comptime] shape: ProductShape,
    #[define(E)] _element: ElemType,
) {
    let results = comptime!(shape.rows * shape.columns);
    // One more than there are units, so that neighbours read different banks.
    let stride = comptime!(UNITS + 1);
    let mut parts = Shared::<[f32]>::new_slice(results * stride);
    let unit = UNIT_POS as usize;
    let first = CUBE_POS_X as usize * comptime!(shape.columns);
    let mut sums = Array::<f32>::new(results);
    #[unroll]
    for which in 0..results {
        sums[which] = 0.0;
    }
    let mut index = unit;
    while index < vectors {
        let mut weights = Array::<Vector<f32, N>>::new(shape.columns);
        #[unroll]
        for column in 0..shape.columns {
            // What is past the end is read from the last and not written.
            let output = u32::min((first + column) as u32, (outputs - 1) as u32) as usize;
            weights[column] = Vector::cast_from(weight[output * vectors + index]);
        }
        // Going from row to row takes fewer registers than a place in each.
        let mut from = index;
        #[unroll]
        for row in 0..shape.rows {
            let inputs = Vector::<f32, N>::cast_from(x[from]);
            from += vectors;
            #[unroll]
            for column in 0..shape.columns {
                let products = inputs * weights[column];
                sums[row * shape.columns + column] += products.vector_sum();
            }
        }
        index += UNITS;
    }
    #[unroll]
    for which in 0..results {
        parts[which * stride + unit] = sums[which];
    }
    sync_cube();
    let row = unit / comptime!(shape.columns);
    let output = first + unit % comptime!(shape.columns);
    if unit < results && output < outputs {
        let mut total = 0.0f32;
        for part in 0..UNITS {
            total += parts[unit * stride + part];
        }
        out[row * outputs + output] = E::cast_from(total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubes_fill_a_device_and_the_order_of_a_sum_does_not_depend_on_the_batch() {
        for outputs in [64, 896, 1_152, 1_536, 3_584, 9_728, 151_936] {
            let columns = (1..=16).map(|rows| ProductShape::of(rows, outputs).columns);
            let columns: Vec<usize> = columns.collect();
            assert!(columns.iter().all(|it| *it == columns[0]), "{columns:?}");
            let fills = outputs.div_ceil(columns[0]) >= CUBES_MIN;
            assert!(fills || columns[0] == 1, "{outputs}: {columns:?}");
        }
        // Each result has a unit that adds it up.
        assert!(ProductShape::of(16, 151_936).columns * 16 <= UNITS);
    }
}
