//! Inputs of products in the order in which tiles read them.

use std::ops::Range;

use super::lanes::LANES;
use super::math;
use super::stored::STEP;

/// Several inputs, filled up with zeros to whole steps: within a tile, the first vector of each
/// input, then the second of each.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    vectors: Vec<[f32; LANES]>,
    inputs: usize,
    /// Vectors of one input.
    length: usize,
    tiles: usize,
}

impl Packed {
    /// Makes room for inputs of `columns` numbers, in tiles of about the same size, `tile_max` inputs
    /// at most. What was packed before is lost.
    pub(crate) fn start(&mut self, inputs: usize, columns: usize, tile_max: usize) {
        self.inputs = inputs;
        self.length = STEP / LANES * columns.div_ceil(STEP);
        self.tiles = inputs.div_ceil(tile_max);
        let vectors = inputs * self.length;
        if vectors > self.vectors.len() {
            self.vectors.resize(vectors, [0.0; LANES]);
        }
    }

    /// Packs one input.
    #[inline(always)]
    pub(crate) fn set(&mut self, input: usize, row: &[f32]) {
        let (whole, rest) = row.as_chunks();
        let mut vectors = self.vectors_of(input);
        for (chunk, vector) in whole.iter().zip(vectors.by_ref()) {
            *vector = *chunk;
        }
        pad(vectors, rest);
    }

    /// Packs the RMS norm of one input: `row / sqrt(mean(row^2) + eps) * weight`.
    #[inline(always)]
    pub(crate) fn set_normed(&mut self, input: usize, row: &[f32], weight: &[f32], eps: f32) {
        let scale = math::norm_scale(row, eps);
        let ((whole, rest), (weights, rest_weights)) = (row.as_chunks(), weight.as_chunks());
        let mut vectors = self.vectors_of(input);
        let scaled = |x: &[f32; LANES], weight: &[f32; LANES]| {
            let mut out = [0.0; LANES];
            for i in 0..LANES {
                out[i] = x[i] * scale * weight[i];
            }
            out
        };
        for ((x, weight), vector) in whole.iter().zip(weights).zip(vectors.by_ref()) {
            *vector = scaled(x, weight);
        }
        let last = scaled(&padded(rest), &padded(rest_weights));
        pad(vectors, &last[..rest.len()]);
    }

    /// Packs every other run of `run` numbers of a row, of which the last may be shorter: what
    /// [`Matrix::multiply_gated`](super::Matrix::multiply_gated) leaves.
    #[inline(always)]
    pub(crate) fn set_every_other(&mut self, input: usize, row: &[f32], run: usize) {
        let mut vectors = self.vectors_of(input);
        for pair in row.chunks(2 * run) {
            let (whole, rest) = pair[..pair.len() / 2].as_chunks();
            for (chunk, vector) in whole.iter().zip(vectors.by_ref()) {
                *vector = *chunk;
            }
            // Only the last run may have an incomplete vector.
            if !rest.is_empty()
                && let Some(vector) = vectors.next()
            {
                *vector = padded(rest);
            }
        }
        pad(vectors, &[]);
    }

    /// The number of inputs.
    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// The number of tiles.
    pub(super) fn tiles(&self) -> usize {
        self.tiles
    }

    /// The inputs of a tile.
    #[inline(always)]
    pub(super) fn tile(&self, tile: usize) -> Range<usize> {
        tile * self.inputs / self.tiles..(tile + 1) * self.inputs / self.tiles
    }

    /// The vectors of the `C` inputs of a tile that begins with `input`.
    #[inline(always)]
    pub(super) fn vectors<const C: usize>(&self, input: usize) -> &[[[f32; LANES]; C]] {
        let vectors = &self.vectors[input * self.length..][..C * self.length];
        vectors.as_chunks().0
    }

    #[inline(always)]
    fn vectors_of(&mut self, input: usize) -> impl Iterator<Item = &mut [f32; LANES]> {
        // The tile that has it: tiles begin at `tile * inputs / tiles`, rounded down.
        let tile = ((input + 1) * self.tiles - 1) / self.inputs;
        let inputs = self.tile(tile);
        debug_assert!(inputs.contains(&input));
        let vectors = &mut self.vectors[inputs.start * self.length..inputs.end * self.length];
        vectors[input - inputs.start..]
            .iter_mut()
            .step_by(inputs.len())
    }
}

/// Writes the last, incomplete columns, and zeros from there.
#[inline(always)]
fn pad<'a>(vectors: impl Iterator<Item = &'a mut [f32; LANES]>, rest: &[f32]) {
    let mut last = padded(rest);
    for vector in vectors {
        *vector = last;
        last = [0.0; LANES];
    }
}

/// The last, incomplete columns, and zeros.
#[inline(always)]
pub(super) fn padded<T: Copy + Default>(rest: &[T]) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    out[..rest.len()].copy_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_is_found_in_its_tile() {
        for inputs in 1..70 {
            for tile_max in [1, 5, 6, 8] {
                let mut packed = Packed::default();
                packed.start(inputs, 36, tile_max);
                for input in 0..inputs {
                    packed.set(input, &[input as f32; 36]);
                }
                for tile in 0..packed.tiles() {
                    let inputs = packed.tile(tile);
                    assert!((1..=tile_max).contains(&inputs.len()));
                    let vectors = &packed.vectors[inputs.start * 4..inputs.end * 4];
                    for (index, vector) in vectors.iter().enumerate() {
                        let input = (inputs.start + index % inputs.len()) as f32;
                        let filled = match index / inputs.len() {
                            0 | 1 => 16,
                            2 => 4,
                            _ => 0,
                        };
                        assert!(vector[..filled].iter().all(|&x| x == input));
                        assert!(vector[filled..].iter().all(|&x| x == 0.0));
                    }
                }
            }
        }
    }
}
