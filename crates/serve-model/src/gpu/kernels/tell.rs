//! Log-probabilities of rows: of the chosen token and of the most likely ones, in two passes, so that a
//! large vocabulary keeps the whole device busy. What they mean is said in [`serve_core::logprobs`].

use cubecl::prelude::*;
use serve_core::{TokenId, TokenLogprob};

use super::choose::{LOWEST, first_of_largest};
use super::reduce;

/// The most likely tokens that are found.
pub(super) const FOUND: usize = serve_core::ALTERNATIVES_MAX as usize;

/// Words that are told of a row: the logarithm of the sum of all exponentials, the chosen token's
/// logit, then the largest logits in descending order, then their tokens.
pub(super) const WORDS: usize = 2 + 2 * FOUND;

/// Stands for a token that is not there.
const NOBODY: u32 = u32::MAX;

/// What the kernels are compiled for.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct TellShape {
    /// Vectors in a row.
    pub(super) vectors: usize,
    /// Logits in a vector.
    pub(super) pack: usize,
    /// Parts of a row.
    pub(super) parts: usize,
    /// Units of a cube, a power of two.
    pub(super) units: usize,
}

/// The `wanted` largest logits of each part (x) of each row that is told (y), and the sum of the
/// exponentials of the part relative to the largest. One cube for each.
///
/// # Shapes
///
/// - `logits`: `[rows, vocabulary]`, `N` at once
/// - `rows`: `[told rows]`
/// - `values`, `places`: `[told rows, parts, FOUND]`
/// - `sums`: `[told rows, parts]`
#[cube(launch_unchecked)]
pub(super) fn tell_parts<E: Float, N: Size>(
    logits: &[Vector<E, N>],
    rows: &[u32],
    values: &mut [f32],
    places: &mut [u32],
    sums: &mut [f32],
    wanted: u32,
    #[comptime] shape: TellShape,
    #[define(E)] _element: ElemType,
) {
    let mut best_values = Shared::<[f32]>::new_slice(shape.units);
    let mut best_places = Shared::<[u32]>::new_slice(shape.units);
    let part = CUBE_POS_X as usize;
    let told = CUBE_POS_Y as usize;
    let unit = UNIT_POS as usize;
    let first = rows[told] as usize * shape.vectors;
    let size = comptime!(shape.vectors.div_ceil(shape.parts));
    let start = part * size + unit;
    let end = u32::min((part * size + size) as u32, comptime!(shape.vectors as u32)) as usize;
    let out = told * shape.parts + part;
    let mut largest = LOWEST.runtime();
    let mut last = LOWEST.runtime();
    let mut last_place = 0u32;
    let mut rank = 0u32;
    while rank < wanted {
        let mut best = LOWEST.runtime();
        let mut place = NOBODY.runtime();
        let mut index = start;
        while index < end {
            let vector = Vector::<f32, N>::cast_from(logits[first + index]);
            #[unroll]
            for lane in 0..shape.pack {
                let value = vector.extract(lane);
                let token = (index * shape.pack + lane) as u32;
                let left = rank == 0 || value < last || (value == last && token > last_place);
                if left && value > best {
                    best = value;
                    place = token;
                }
            }
            index += shape.units;
        }
        best_values[unit] = best;
        best_places[unit] = place;
        sync_cube();
        first_of_largest(&mut best_values, &mut best_places, shape.units);
        last = best_values[0];
        last_place = best_places[0];
        if rank == 0 {
            largest = last;
        }
        if unit == 0 {
            values[out * FOUND + rank as usize] = last;
            places[out * FOUND + rank as usize] = last_place;
        }
        // Before the next round writes over what this one has read.
        sync_cube();
        rank += 1;
    }
    let mut sum = 0.0f32;
    let mut index = start;
    while index < end {
        let vector = Vector::<f32, N>::cast_from(logits[first + index]);
        #[unroll]
        for lane in 0..shape.pack {
            let value = vector.extract(lane);
            if value > LOWEST {
                sum += f32::exp(value - largest);
            }
        }
        index += shape.units;
    }
    let sum = reduce::sum(sum, &mut best_values, shape.units);
    if unit == 0 {
        sums[out] = sum;
    }
}

/// Puts the parts of each row together. One cube for each row that is told.
///
/// # Shapes
///
/// - `logits`: `[rows, vocabulary]`
/// - `tokens`: `[rows]`, the chosen ones
/// - `rows`: `[told rows]`
/// - `values`, `places`, `sums`: what [`tell_parts`] has left
/// - `out`: `[told rows, WORDS]`
#[cube(launch_unchecked)]
pub(super) fn tell_rows<E: Float>(
    logits: &[E],
    tokens: &[u32],
    rows: &[u32],
    values: &[f32],
    places: &[u32],
    sums: &[f32],
    out: &mut [u32],
    wanted: u32,
    #[comptime] shape: TellShape,
    #[define(E)] _element: ElemType,
) {
    let mut best_values = Shared::<[f32]>::new_slice(shape.units);
    let mut best_places = Shared::<[u32]>::new_slice(shape.units);
    let told = CUBE_POS_X as usize;
    let unit = UNIT_POS as usize;
    let first = told * shape.parts * FOUND;
    let mut largest = LOWEST.runtime();
    let mut last = LOWEST.runtime();
    let mut last_place = 0u32;
    let mut rank = 0u32;
    while rank < wanted {
        let mut best = LOWEST.runtime();
        let mut place = NOBODY.runtime();
        let mut index = unit;
        while index < comptime!(shape.parts * FOUND) {
            // Of each part only so many have been found.
            if ((index % FOUND) as u32) < wanted {
                let value = values[first + index];
                let token = places[first + index];
                let left = rank == 0 || value < last || (value == last && token > last_place);
                if left && (value > best || (value == best && token < place)) {
                    best = value;
                    place = token;
                }
            }
            index += shape.units;
        }
        best_values[unit] = best;
        best_places[unit] = place;
        sync_cube();
        first_of_largest(&mut best_values, &mut best_places, shape.units);
        last = best_values[0];
        last_place = best_places[0];
        if rank == 0 {
            largest = last;
        }
        if unit == 0 {
            out[told * WORDS + 2 + rank as usize] = u32::reinterpret(last);
            out[told * WORDS + 2 + FOUND + rank as usize] = last_place;
        }
        sync_cube();
        rank += 1;
    }
    if unit == 0 {
        let mut total = 0.0f32;
        for part in 0..shape.parts {
            // The first that a part has found is its largest.
            let own = values[first + part * FOUND];
            if own > LOWEST {
                total += sums[told * shape.parts + part] * f32::exp(own - largest);
            }
        }
        let row = rows[told] as usize;
        let chosen = row * comptime!(shape.vectors * shape.pack) + tokens[row] as usize;
        let logit = f32::cast_from(logits[chosen]);
        out[told * WORDS] = u32::reinterpret(largest + f32::ln(total));
        out[told * WORDS + 1] = u32::reinterpret(logit);
    }
}

/// What the kernels have told of a row, for one who asks for so many alternatives.
pub(in crate::gpu) fn entries(
    token: TokenId,
    alternatives: u8,
    told: &[u32],
) -> impl Iterator<Item = TokenLogprob> {
    let log_sum = f32::from_bits(told[0]);
    let entry = move |token: TokenId, logit: u32| {
        let logprob = f32::from_bits(logit) - log_sum;
        TokenLogprob {
            token,
            logprob: match logprob.is_nan() {
                true => f32::NEG_INFINITY,
                false => logprob.min(0.0),
            },
        }
    };
    let (logits, places) = told[2..].split_at(FOUND);
    let all = logits.iter().zip(places).take(alternatives.into());
    let there = all.filter(|&(_, &place)| place != NOBODY);
    let most_likely = there.map(move |(&logit, &place)| entry(TokenId::new(place), logit));
    [entry(token, told[1])].into_iter().chain(most_likely)
}
