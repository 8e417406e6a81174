//! Attention of grouped queries over paged keys and values, split over the context (flash decoding:
//! Dao et al., 2023) with a running softmax (Milakov and Gimelshein, 2018).
//!
//! Keys and values are read once for all query heads of their group and for all rows of a work unit,
//! straight from their blocks. How a context is split depends on the position alone, so neither the
//! batch nor the window that a step is made for changes a sum.
#![expect(
    clippy::assign_op_pattern,
    reason = "vectors are added in the form that was compiled and run on every runtime"
)]

use cubecl::prelude::*;

/// Smaller than every score and finite: WGSL has no infinity.
const LOWEST: f32 = -3.0e38;

/// What the kernels are compiled for.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct AttendShape {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) block_size: usize,
    /// Neighbouring dimensions that are read at once; divides `head_dim`.
    pub(super) pack: usize,
    /// Rows of one sequence that a cube takes at once.
    pub(super) rows: usize,
    /// Positions that a cube looks at together, one for each of its units; a power of two.
    pub(super) chunk: usize,
    /// Chunks in a split, which a cube goes through one after the other.
    pub(super) chunks: usize,
    /// Splits of one row in the partial results.
    pub(super) splits_max: usize,
    /// Whether one cube goes through the whole context and writes the result.
    pub(super) whole: bool,
}

/// One cube of `chunk` units for each split (x) of each KV head (y) of each work unit (z).
///
/// # Shapes
///
/// - `queries`: `[rows, heads * head_dim]`
/// - `keys`: `[blocks, kv_heads, head_dim / N, block_size]` of `N` dimensions each
/// - `values`: `[blocks, kv_heads, block_size, head_dim / N]` of `N` dimensions each
/// - `inputs`: from `units_at` four numbers for each work unit: its first row, how many rows, the
///   position of the first, and where in `inputs` its block table starts
/// - `out`: `[rows, heads * head_dim]`; written if `whole`
/// - `partial`: `[rows, heads, splits_max, head_dim]`, not yet divided by their sums
/// - `sums`: `[rows, heads, splits_max, 2]`: largest score, sum of the exponentials
#[cube(launch_unchecked)]
pub(super) fn attend<E: Float, N: Size>(
    queries: &[Vector<f32, N>],
    keys: &[Vector<E, N>],
    values: &[Vector<E, N>],
    inputs: &[u32],
    out: &mut [Vector<E, N>],
    partial: &mut [Vector<f32, N>],
    sums: &mut [f32],
    units_at: usize,
    scale: f32,
    #[comptime] shape: AttendShape,
    #[define(E)] _element: ElemType,
) {
    let heads = comptime!(shape.heads);
    let group = comptime!(shape.heads / shape.kv_heads);
    let asked = comptime!(shape.rows * shape.heads / shape.kv_heads);
    let chunk = comptime!(shape.chunk);
    let width = comptime!(shape.head_dim / shape.pack);
    let subsets = comptime!(shape.chunk / (shape.head_dim / shape.pack));
    let block_size = comptime!(shape.block_size);
    let mut query = Shared::<[Vector<f32, N>]>::new_slice(comptime!(asked * width));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(asked * chunk));
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(asked * chunk));
    let mut lanes = Shared::<[Vector<f32, N>]>::new_slice(chunk);

    let split = CUBE_POS_X as usize;
    let kv_head = CUBE_POS_Y as usize;
    let unit = UNIT_POS as usize;
    let about = units_at + CUBE_POS_Z as usize * 4;
    let first_row = inputs[about] as usize;
    let rows = inputs[about + 1] as usize;
    let first_position = inputs[about + 2] as usize;
    let table = inputs[about + 3] as usize;
    let visible_max = first_position + rows;
    let first_chunk = split * comptime!(shape.chunks);
    if first_chunk * chunk >= visible_max {
        terminate!();
    }
    let mut last_chunk = (visible_max + comptime!(shape.chunk - 1)) / chunk;
    if comptime!(!shape.whole) {
        last_chunk = u32::min(
            last_chunk as u32,
            (first_chunk + comptime!(shape.chunks)) as u32,
        ) as usize;
    }

    let mut index = unit;
    while index < comptime!(asked * width) {
        let which = index / width;
        let row = which / group;
        let mut value = Vector::<f32, N>::new(0.0);
        if row < rows {
            let head = (first_row + row) * heads + kv_head * group + which % group;
            value = queries[head * width + index % width] * Vector::new(scale);
        }
        query[index] = value;
        index += chunk;
    }
    sync_cube();

    let lane = unit % width;
    let subset = unit / width;
    let mut seen = Array::<Vector<f32, N>>::new(asked);
    let mut largest = Array::<f32>::new(asked);
    let mut total = Array::<f32>::new(asked);
    #[unroll]
    for which in 0..asked {
        seen[which] = Vector::new(0.0);
        largest[which] = LOWEST;
        total[which] = 0.0;
    }
    for number in first_chunk..last_chunk {
        let start = number * chunk;
        // Each unit scores one position.
        let position = start + unit;
        let mut scores = Array::<f32>::new(asked);
        #[unroll]
        for which in 0..asked {
            scores[which] = 0.0;
        }
        if position < visible_max {
            let block = inputs[table + position / block_size] as usize;
            let run = (block * comptime!(shape.kv_heads) + kv_head) * comptime!(width * block_size)
                + position % block_size;
            for part in 0..width {
                let key = Vector::<f32, N>::cast_from(keys[run + part * block_size]);
                #[unroll]
                for which in 0..asked {
                    let products = query[which * width + part] * key;
                    scores[which] += products.vector_sum();
                }
            }
        }
        #[unroll]
        for which in 0..asked {
            // Row `which / group` sees its own position and those before it.
            let end = first_position + comptime!(which / group) + 1;
            if position >= u32::min(end as u32, visible_max as u32) as usize {
                scores[which] = LOWEST;
            }
            scratch[which * chunk + unit] = scores[which];
        }
        sync_cube();
        let mut half = comptime!(chunk / 2).runtime();
        while half > 0 {
            if unit < half {
                #[unroll]
                for which in 0..asked {
                    let other = scratch[which * chunk + unit + half];
                    scratch[which * chunk + unit] = f32::max(scratch[which * chunk + unit], other);
                }
            }
            sync_cube();
            half /= 2;
        }
        #[unroll]
        for which in 0..asked {
            let now = f32::max(largest[which], scratch[which * chunk]);
            let shrink = f32::exp(largest[which] - now);
            seen[which] = seen[which] * Vector::new(shrink);
            total[which] *= shrink;
            largest[which] = now;
            let mut weight = 0.0f32;
            if scores[which] > LOWEST {
                weight = f32::exp(scores[which] - now);
            }
            weights[which * chunk + unit] = weight;
        }
        sync_cube();
        // Each unit adds up some dimensions of every `subsets`-th position.
        if subset < subsets {
            let end =
                u32::min((visible_max - start) as u32, comptime!(shape.chunk as u32)) as usize;
            let mut place = subset;
            while place < end {
                let position = start + place;
                let block = inputs[table + position / block_size] as usize;
                let run = (block * comptime!(shape.kv_heads) + kv_head) * block_size
                    + position % block_size;
                let value = Vector::<f32, N>::cast_from(values[run * width + lane]);
                #[unroll]
                for which in 0..asked {
                    let weight = weights[which * chunk + place];
                    seen[which] = seen[which] + value * Vector::new(weight);
                    total[which] += weight;
                }
                place += subsets;
            }
        }
        sync_cube();
    }

    #[unroll]
    for which in 0..asked {
        if subset < subsets {
            lanes[unit] = seen[which];
            if lane == 0 {
                scratch[subset] = total[which];
            }
        }
        sync_cube();
        let row = comptime!(which / group);
        if unit < width && row < rows {
            let mut value = Vector::<f32, N>::new(0.0);
            let mut weight = 0.0f32;
            for other in 0..subsets {
                value = value + lanes[other * width + unit];
                weight += scratch[other];
            }
            let head = (first_row + row) * heads + kv_head * group + comptime!(which % group);
            if comptime!(shape.whole) {
                out[head * width + unit] = Vector::cast_from(value / Vector::new(weight));
            } else {
                let at = head * comptime!(shape.splits_max) + split;
                partial[at * width + unit] = value;
                if unit == 0 {
                    sums[at * 2] = largest[which];
                    sums[at * 2 + 1] = weight;
                }
            }
        }
        sync_cube();
    }
}

/// Puts the splits of each head (x) of each row (y) together. One cube for each.
///
/// # Shapes
///
/// As for [`attend`]; `inputs` has the position of each row from `positions_at`.
#[cube(launch_unchecked)]
pub(super) fn combine<E: Float>(
    partial: &[f32],
    sums: &[f32],
    inputs: &[u32],
    out: &mut [E],
    positions_at: usize,
    #[comptime] shape: AttendShape,
    #[comptime] units: usize,
    #[define(E)] _element: ElemType,
) {
    let dim = comptime!(shape.head_dim);
    let row = CUBE_POS_Y as usize;
    let head = row * comptime!(shape.heads) + CUBE_POS_X as usize;
    let position = inputs[positions_at + row] as usize;
    let splits = position / comptime!(shape.chunk * shape.chunks) + 1;
    let first = head * comptime!(shape.splits_max);
    let mut largest = LOWEST.runtime();
    for split in 0..splits {
        largest = f32::max(largest, sums[(first + split) * 2]);
    }
    let mut index = UNIT_POS as usize;
    while index < dim {
        let mut value = 0.0f32;
        let mut weight = 0.0f32;
        for split in 0..splits {
            let factor = f32::exp(sums[(first + split) * 2] - largest);
            value += factor * partial[(first + split) * dim + index];
            weight += factor * sums[(first + split) * 2 + 1];
        }
        out[head * dim + index] = E::cast_from(value / weight);
        index += units;
    }
}
