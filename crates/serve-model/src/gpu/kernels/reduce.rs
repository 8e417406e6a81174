//! Sums and maxima over all units of a cube, through shared memory: no plane operation, so every
//! device can run them, and a fixed order, so that the result does not depend on the device's planes.

use cubecl::prelude::*;

/// The sum of `value` over the `units` units of a cube, a power of two, in every unit.
#[cube]
pub(super) fn sum(value: f32, scratch: &mut Shared<[f32]>, #[comptime] units: usize) -> f32 {
    let unit = UNIT_POS as usize;
    scratch[unit] = value;
    sync_cube();
    let mut half = comptime!(units / 2).runtime();
    while half > 0 {
        if unit < half {
            let other = scratch[unit + half];
            scratch[unit] += other;
        }
        sync_cube();
        half /= 2;
    }
    let total = scratch[0];
    // The scratch may be used again at once.
    sync_cube();
    total
}
