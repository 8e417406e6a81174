//! What happens to each element alone: the gate of the feed-forward part, and biases.

use cubecl::prelude::*;

/// `out = silu(gate) * up`. One unit for each element of the result.
///
/// # Shapes
///
/// - `gate_up`: `[rows, 2 * middle]`: gate, up
/// - `out`: `[rows, middle]`
#[cube(launch_unchecked)]
pub(super) fn gate<E: Float>(
    gate_up: &[E],
    out: &mut [E],
    elements: usize,
    #[comptime] middle: usize,
    #[define(E)] _element: ElemType,
) {
    let index = ABSOLUTE_POS;
    if index < elements {
        let row = index / middle;
        let column = index % middle;
        let base = row * comptime!(2 * middle);
        let gate = f32::cast_from(gate_up[base + column]);
        let up = f32::cast_from(gate_up[base + middle + column]);
        out[index] = E::cast_from(gate / (1.0 + f32::exp(-gate)) * up);
    }
}

/// `x += bias`. One unit for each element.
///
/// # Shapes
///
/// - `x`: `[rows, columns]`
/// - `bias`: `[columns]`
#[cube(launch_unchecked)]
pub(super) fn add_bias<E: Float>(
    x: &mut [E],
    bias: &[f32],
    elements: usize,
    #[comptime] columns: usize,
    #[define(E)] _element: ElemType,
) {
    let index = ABSOLUTE_POS;
    if index < elements {
        x[index] = E::cast_from(f32::cast_from(x[index]) + bias[index % columns]);
    }
}
