//! RMS norm of the residual stream, after what is still to be added to it.

use cubecl::prelude::*;

use super::{Buffer, Inputs, Kernels, reduce};

impl Kernels {
    /// `x += delta`, then `out = norm(x) * weight`, for `rows` rows.
    pub(in crate::gpu) fn add_norm(
        &self,
        x: &Buffer,
        delta: Option<&Buffer>,
        weight: &Buffer,
        inputs: Inputs<'_>,
        out: &Buffer,
        rows: usize,
    ) {
        self.norm(x, delta, weight, inputs, out, rows, false);
    }

    /// The same for the wanted rows, and `x` stays as it is.
    pub(in crate::gpu) fn wanted_norm(
        &self,
        x: &Buffer,
        delta: Option<&Buffer>,
        weight: &Buffer,
        inputs: Inputs<'_>,
        out: &Buffer,
        wanted: usize,
    ) {
        self.norm(x, delta, weight, inputs, out, wanted, true);
    }
}

/// `out = norm(x + delta) * weight`; the sum stays in `x`. One cube for each row.
///
/// # Shapes
///
/// - `x`: `[rows, hidden]`
/// - `delta`: `[rows, hidden]`; read if `add`
/// - `weight`: `[hidden]`
/// - `out`: `[cubes, hidden]`
///
/// With `gather`, cube `i` takes row `inputs[rows_at + i]` and leaves `x` as it is.
#[cube(launch_unchecked)]
pub(super) fn add_norm<E: Float>(
    x: &mut [f32],
    delta: &[E],
    weight: &[f32],
    inputs: &[u32],
    out: &mut [E],
    rows_at: usize,
    eps: f32,
    #[comptime] hidden: usize,
    #[comptime] add: bool,
    #[comptime] gather: bool,
    #[comptime] units: usize,
    #[define(E)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(units);
    let cube = CUBE_POS_X as usize;
    let mut row = cube;
    if comptime!(gather) {
        row = inputs[rows_at + cube] as usize;
    }
    let base = row * hidden;
    let mut squares = 0.0f32;
    let mut index = UNIT_POS as usize;
    while index < hidden {
        let mut value = x[base + index];
        if comptime!(add) {
            value += f32::cast_from(delta[base + index]);
            if comptime!(!gather) {
                x[base + index] = value;
            }
        }
        squares += value * value;
        index += units;
    }
    let total = reduce::sum(squares, &mut scratch, units);
    let scale = 1.0 / f32::sqrt(total / comptime!(hidden as f32) + eps);
    let mut index = UNIT_POS as usize;
    while index < hidden {
        let mut value = x[base + index];
        if comptime!(add && gather) {
            value += f32::cast_from(delta[base + index]);
        }
        out[cube * hidden + index] = E::cast_from(value * scale * weight[index]);
        index += units;
    }
}
