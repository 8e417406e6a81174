//! Rows of the embedding.

use cubecl::prelude::*;

/// `out[row] = table[inputs[tokens_at + row]]`. One cube for each row.
///
/// # Shapes
///
/// - `table`: `[vocabulary, hidden]`
/// - `out`: `[rows, hidden]`
#[cube(launch_unchecked)]
pub(super) fn embed<E: Float>(
    table: &[E],
    inputs: &[u32],
    out: &mut [f32],
    tokens_at: usize,
    #[comptime] hidden: usize,
    #[comptime] units: usize,
    #[define(E)] _element: ElemType,
) {
    let row = CUBE_POS_X as usize;
    let token = inputs[tokens_at + row] as usize;
    let mut index = UNIT_POS as usize;
    while index < hidden {
        out[row * hidden + index] = f32::cast_from(table[token * hidden + index]);
        index += units;
    }
}
