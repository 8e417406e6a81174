//! Penalties: rows that have them get logits of their own, in f32, so that a small penalty is not lost
//! in the rounding of a narrower type. The arithmetic is that of [`crate::penalties`].

use cubecl::prelude::*;

/// Numbers that say what becomes of a row: repetition, frequency and presence penalty.
pub(super) const NUMBERS: usize = 3;

/// Words of a row: which of the step's it is, and from where to where what it has seen goes.
pub(super) const WORDS: usize = 3;

/// `out[i] = logits[row of i]`. One cube for each part (x) of each row of `out` (y).
///
/// # Shapes
///
/// - `logits`: `[rows, vocabulary]`
/// - `rows`: `[penalised rows, WORDS]`
/// - `out`: `[penalised rows, vocabulary]`
#[cube(launch_unchecked)]
pub(super) fn widen<E: Float>(
    logits: &[E],
    rows: &[u32],
    out: &mut [f32],
    #[comptime] vocabulary: usize,
    #[comptime] parts: usize,
    #[comptime] units: usize,
    #[define(E)] _element: ElemType,
) {
    let to = CUBE_POS_Y as usize;
    let from = rows[to * WORDS] as usize;
    let mut index = CUBE_POS_X as usize * units + UNIT_POS as usize;
    while index < vocabulary {
        out[to * vocabulary + index] = f32::cast_from(logits[from * vocabulary + index]);
        index += parts * units;
    }
}

/// Changes the logits of what each row has seen. One cube for each row.
///
/// # Shapes
///
/// - `logits`: `[penalised rows, vocabulary]`
/// - `rows`: `[penalised rows, WORDS]`
/// - `penalties`: `[penalised rows, NUMBERS]`
/// - `seen`: `[seen, 2]`: a token, and how often the output has it; each token once in a row
#[cube(launch_unchecked)]
pub(super) fn penalise(
    logits: &mut [f32],
    rows: &[u32],
    penalties: &[f32],
    seen: &[u32],
    #[comptime] vocabulary: usize,
    #[comptime] units: usize,
) {
    let row = CUBE_POS_X as usize;
    let repetition = penalties[row * NUMBERS];
    let frequency = penalties[row * NUMBERS + 1];
    let presence = penalties[row * NUMBERS + 2];
    let mut index = rows[row * WORDS + 1] as usize + UNIT_POS as usize;
    let end = rows[row * WORDS + 2] as usize;
    while index < end {
        let at = row * vocabulary + seen[2 * index] as usize;
        let outputs = seen[2 * index + 1];
        let mut logit = logits[at];
        if logit > 0.0 {
            logit /= repetition;
        } else {
            logit *= repetition;
        }
        logit -= frequency * f32::cast_from(outputs);
        if outputs > 0 {
            logit -= presence;
        }
        logits[at] = logit;
        index += units;
    }
}

/// `tokens[row of i] = chosen[i]`. One unit for each.
#[cube(launch_unchecked)]
pub(super) fn put_back(chosen: &[u32], rows: &[u32], tokens: &mut [u32], count: usize) {
    let index = ABSOLUTE_POS;
    if index < count {
        tokens[rows[index * WORDS] as usize] = chosen[index];
    }
}
