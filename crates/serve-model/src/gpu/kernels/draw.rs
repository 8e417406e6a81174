//! Draws a token at random from the logits of a row: temperature, top-k, top-p, min-p, in the order
//! and with the ties of the sampler on the host ([`crate::sampler`]), in f32 where that has f64.
//!
//! Nothing is sorted. A filter keeps the tokens above a threshold, which is found bit by bit, and of
//! the tokens right on it the first few.

use cubecl::prelude::*;

use super::reduce;

/// Numbers that say how a row is drawn: temperature (0 leaves the row as it is), top-k (0 keeps
/// all), top-p, min-p, and the random number in `[0, 1)`.
pub(super) const NUMBERS: usize = 5;

/// What the kernel is compiled for.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct DrawShape {
    /// Vectors in a row.
    pub(super) vectors: usize,
    /// Logits in a vector.
    pub(super) pack: usize,
    /// Bits of a logit.
    pub(super) bits: u32,
    /// Units of a cube, a power of two.
    pub(super) units: usize,
}

/// Overwrites the tokens of the rows that are drawn. One cube for each row.
///
/// # Shapes
///
/// - `logits`: `[rows, vocabulary]`, `N` at once
/// - `how`: `[rows, NUMBERS]`
/// - `tokens`: `[rows]`; what comes in is the most likely token
#[cube(launch_unchecked)]
pub(super) fn draw<E: Float, N: Size>(
    logits: &[Vector<E, N>],
    how: &[f32],
    tokens: &mut [u32],
    #[comptime] shape: DrawShape,
    #[define(E)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(shape.units);
    let mut found = Shared::<[u32]>::new_slice(2usize);
    let row = CUBE_POS_X as usize;
    let unit = UNIT_POS as usize;
    let about = row * NUMBERS;
    let temperature = how[about];
    if temperature == 0.0 {
        terminate!();
    }
    let top_k = how[about + 1];
    let top_p = how[about + 2];
    let min_p = how[about + 3];
    let random = how[about + 4];
    let first = row * shape.vectors;
    let best = tokens[row] as usize;
    let best_vector = Vector::<f32, N>::cast_from(logits[first + best / shape.pack]);
    let largest = best_vector.extract_dynamic(best % shape.pack);
    let scale = 1.0 / temperature;

    // Kept are keys above `least`, and the first `ties` of those equal to it.
    let mut least = 0u32;
    let mut ties = 0.0f32;
    let everything = tally::<E, N>(
        logits,
        first,
        0u32,
        largest,
        scale,
        &mut scratch,
        shape,
        true,
    );
    if top_k > 0.0 && top_k < everything {
        let mut bit = comptime!(1u32 << (shape.bits - 1)).runtime();
        while bit > 0 {
            let tried = least | bit;
            let count = tally::<E, N>(
                logits,
                first,
                tried,
                largest,
                scale,
                &mut scratch,
                shape,
                true,
            );
            if count >= top_k {
                least = tried;
            }
            bit /= 2;
        }
        let above = tally::<E, N>(
            logits,
            first,
            least + 1,
            largest,
            scale,
            &mut scratch,
            shape,
            true,
        );
        ties = top_k - above;
    }
    if top_p < 1.0 {
        let above = tally::<E, N>(
            logits,
            first,
            least + 1,
            largest,
            scale,
            &mut scratch,
            shape,
            false,
        );
        let on_it = weight(value_of(least, shape), largest, scale);
        let mut kept = above;
        if ties > 0.0 {
            kept += ties * on_it;
        }
        let target = top_p * kept;
        let mut nucleus = 0u32;
        let mut bit = comptime!(1u32 << (shape.bits - 1)).runtime();
        while bit > 0 {
            let tried = nucleus | bit;
            // Uniform: both sides are the same in every unit.
            if tried <= least {
                nucleus = tried;
            } else {
                let mass = tally::<E, N>(
                    logits,
                    first,
                    tried,
                    largest,
                    scale,
                    &mut scratch,
                    shape,
                    false,
                );
                if mass >= target {
                    nucleus = tried;
                }
            }
            bit /= 2;
        }
        let above = tally::<E, N>(
            logits,
            first,
            nucleus + 1,
            largest,
            scale,
            &mut scratch,
            shape,
            false,
        );
        let on_it = weight(value_of(nucleus, shape), largest, scale);
        let needed = f32::max(f32::ceil((target - above) / on_it), 1.0);
        if nucleus > least {
            least = nucleus;
            ties = needed;
        } else if ties > 0.0 {
            ties = f32::min(ties, needed);
        }
    }

    // Each unit takes a run of neighbouring tokens: first the ties before it, then its mass.
    let size = comptime!(shape.vectors.div_ceil(shape.units));
    let start = u32::min((unit * size) as u32, comptime!(shape.vectors as u32)) as usize;
    let end = u32::min((start + size) as u32, comptime!(shape.vectors as u32)) as usize;
    let mut equal = 0.0f32;
    for index in start..end {
        let vector = Vector::<f32, N>::cast_from(logits[first + index]);
        #[unroll]
        for lane in 0..shape.pack {
            if key_of(vector.extract(lane), shape) == least {
                equal += 1.0;
            }
        }
    }
    scratch[unit] = equal;
    sync_cube();
    let mut ties_before = 0.0f32;
    for other in 0..unit {
        ties_before += scratch[other];
    }
    sync_cube();
    let mut mass = 0.0f32;
    let mut rank = ties_before;
    for index in start..end {
        let vector = Vector::<f32, N>::cast_from(logits[first + index]);
        #[unroll]
        for lane in 0..shape.pack {
            let value = vector.extract(lane);
            let key = key_of(value, shape);
            let mut keep = key > least;
            if key == least {
                keep = rank < ties;
                rank += 1.0;
            }
            let weight = weight(value, largest, scale);
            if keep && weight > 0.0 && weight >= min_p {
                mass += weight;
            }
        }
    }
    scratch[unit] = mass;
    sync_cube();
    // The unit whose run holds the number that was drawn; the last with a mass if rounding leaves it
    // beyond all.
    if unit == 0 {
        let mut total = 0.0f32;
        for other in 0..shape.units {
            total += scratch[other];
        }
        let target = random * total;
        let mut sum = 0.0f32;
        let mut chosen = 0u32;
        let mut before = 0.0f32;
        let mut done = false;
        for other in 0..shape.units {
            let own = scratch[other];
            if !done && own > 0.0 {
                chosen = other as u32;
                before = sum;
                done = sum + own > target;
            }
            sum += own;
        }
        found[0] = chosen;
        found[1] = u32::reinterpret(target - before);
    }
    sync_cube();
    if unit as u32 == found[0] {
        let target = f32::reinterpret(found[1]);
        let mut sum = 0.0f32;
        let mut rank = ties_before;
        let mut token = best as u32;
        let mut done = false;
        for index in start..end {
            let vector = Vector::<f32, N>::cast_from(logits[first + index]);
            #[unroll]
            for lane in 0..shape.pack {
                let value = vector.extract(lane);
                let key = key_of(value, shape);
                let mut keep = key > least;
                if key == least {
                    keep = rank < ties;
                    rank += 1.0;
                }
                let weight = weight(value, largest, scale);
                if keep && weight > 0.0 && weight >= min_p && !done {
                    sum += weight;
                    token = (index * shape.pack + lane) as u32;
                    done = sum > target;
                }
            }
        }
        tokens[row] = token;
    }
}

/// How many tokens have at least this key, or with `count` off, how much they weigh.
#[cube]
fn tally<E: Float, N: Size>(
    logits: &[Vector<E, N>],
    first: usize,
    least: u32,
    largest: f32,
    scale: f32,
    scratch: &mut Shared<[f32]>,
    #[comptime] shape: DrawShape,
    #[comptime] count: bool,
) -> f32 {
    let mut sum = 0.0f32;
    let mut index = UNIT_POS as usize;
    while index < shape.vectors {
        let vector = Vector::<f32, N>::cast_from(logits[first + index]);
        #[unroll]
        for lane in 0..shape.pack {
            let value = vector.extract(lane);
            let weight = weight(value, largest, scale);
            if key_of(value, shape) >= least && weight > 0.0 {
                if comptime!(count) {
                    sum += 1.0;
                } else {
                    sum += weight;
                }
            }
        }
        index += shape.units;
    }
    reduce::sum(sum, scratch, shape.units)
}

#[cube]
fn weight(value: f32, largest: f32, scale: f32) -> f32 {
    f32::exp((value - largest) * scale)
}

/// A whole number that orders logits as they are, with as many bits as they have.
#[cube]
fn key_of(value: f32, #[comptime] shape: DrawShape) -> u32 {
    let raw = u32::reinterpret(value);
    let mut key = raw | 0x8000_0000u32;
    if raw >= 0x8000_0000u32 {
        key = !raw;
    }
    key >> comptime!(32 - shape.bits)
}

/// The logit of a key.
#[cube]
fn value_of(key: u32, #[comptime] shape: DrawShape) -> f32 {
    let wide = key << comptime!(32 - shape.bits);
    let mut raw = wide & 0x7fff_ffffu32;
    if wide < 0x8000_0000u32 {
        raw = !wide & comptime!(u32::MAX << (32 - shape.bits));
    }
    f32::reinterpret(raw)
}
