//! The most likely token of each row, in two passes, so that a large vocabulary keeps the whole
//! device busy.

use cubecl::prelude::*;

/// Smaller than every logit and finite: WGSL has no infinity.
pub(super) const LOWEST: f32 = -3.4e38;

/// The largest logit of each part (x) of each row (y), of equals the first. One cube for each.
///
/// # Shapes
///
/// - `logits`: `[rows, vocabulary]`, `N` at once
/// - `values`, `places`: `[rows, parts]`
#[cube(launch_unchecked)]
pub(super) fn largest_of_parts<E: Float, N: Size>(
    logits: &[Vector<E, N>],
    values: &mut [f32],
    places: &mut [u32],
    #[comptime] vectors: usize,
    #[comptime] pack: usize,
    #[comptime] parts: usize,
    #[comptime] units: usize,
    #[define(E)] _element: ElemType,
) {
    let mut best_values = Shared::<[f32]>::new_slice(units);
    let mut best_places = Shared::<[u32]>::new_slice(units);
    let part = CUBE_POS_X as usize;
    let row = CUBE_POS_Y as usize;
    let unit = UNIT_POS as usize;
    let size = comptime!(vectors.div_ceil(parts));
    let mut best = LOWEST.runtime();
    let mut place = 0u32;
    let mut index = part * size + unit;
    let end = u32::min((part * size + size) as u32, comptime!(vectors as u32)) as usize;
    while index < end {
        let vector = Vector::<f32, N>::cast_from(logits[row * vectors + index]);
        #[unroll]
        for lane in 0..pack {
            let value = vector.extract(lane);
            if value > best {
                best = value;
                place = (index * pack + lane) as u32;
            }
        }
        index += units;
    }
    best_values[unit] = best;
    best_places[unit] = place;
    sync_cube();
    first_of_largest(&mut best_values, &mut best_places, units);
    if unit == 0 {
        values[row * parts + part] = best_values[0];
        places[row * parts + part] = best_places[0];
    }
}

/// The token of each row, from its parts. One cube for each row, one unit for each part.
#[cube(launch_unchecked)]
pub(super) fn largest_of_rows(
    values: &[f32],
    places: &[u32],
    tokens: &mut [u32],
    #[comptime] parts: usize,
) {
    let mut best_values = Shared::<[f32]>::new_slice(parts);
    let mut best_places = Shared::<[u32]>::new_slice(parts);
    let row = CUBE_POS_X as usize;
    let unit = UNIT_POS as usize;
    best_values[unit] = values[row * parts + unit];
    best_places[unit] = places[row * parts + unit];
    sync_cube();
    first_of_largest(&mut best_values, &mut best_places, parts);
    if unit == 0 {
        tokens[row] = best_places[0];
    }
}

/// Leaves the largest value at 0, and of equals the one whose place is lowest. `count` is a power of
/// two, with one unit for each value.
#[cube]
pub(super) fn first_of_largest(
    values: &mut Shared<[f32]>,
    places: &mut Shared<[u32]>,
    #[comptime] count: usize,
) {
    let unit = UNIT_POS as usize;
    let mut half = comptime!(count / 2).runtime();
    while half > 0 {
        if unit < half {
            let value = values[unit + half];
            let place = places[unit + half];
            if value > values[unit] || (value == values[unit] && place < places[unit]) {
                values[unit] = value;
                places[unit] = place;
            }
        }
        sync_cube();
        half /= 2;
    }
}
