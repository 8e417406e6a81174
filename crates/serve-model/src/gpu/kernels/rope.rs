//! From projected heads to queries and to keys and values in their blocks: bias, head norms, rotary
//! embedding and the write into the cache, in one pass.

use cubecl::prelude::*;

use super::reduce;

/// What the kernel is compiled for.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct RopeShape {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) block_size: usize,
    /// Neighbouring dimensions of a key that lie side by side in the cache.
    pub(super) pack: usize,
    pub(super) bias: bool,
    pub(super) norms: bool,
    /// Units of a cube: a power of two, no less than half of `head_dim`.
    pub(super) units: usize,
}

/// One cube for each head (x) of each row (y): queries, keys, values.
///
/// # Shapes
///
/// - `qkv`: `[rows, (heads + 2 * kv_heads) * head_dim]`, `bias` one such row
/// - `query_norm`, `key_norm`: `[head_dim]`; read if there are norms
/// - `angles`: `[positions, head_dim]`: cosines of the pairs, then sines
/// - `queries`: `[rows, heads * head_dim]`
/// - `keys`: `[blocks, kv_heads, head_dim / pack, block_size, pack]`
/// - `values`: `[blocks, kv_heads, block_size, head_dim]`
/// - `inputs`: positions from `positions_at`, and from `slots_at` the block times its size plus the
///   place in it
#[cube(launch_unchecked)]
pub(super) fn rope_write<E: Float>(
    qkv: &[E],
    bias: &[f32],
    query_norm: &[f32],
    key_norm: &[f32],
    angles: &[f32],
    inputs: &[u32],
    queries: &mut [f32],
    keys: &mut [E],
    values: &mut [E],
    positions_at: usize,
    slots_at: usize,
    eps: f32,
    #[comptime] shape: RopeShape,
    #[define(E)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(shape.units);
    let dim = comptime!(shape.head_dim);
    let half = comptime!(shape.head_dim / 2);
    let head = CUBE_POS_X as usize;
    let row = CUBE_POS_Y as usize;
    let pair = UNIT_POS as usize;
    let inside = pair < half;
    let base = (row * comptime!(shape.heads + 2 * shape.kv_heads) + head) * dim;
    let mut low = 0.0f32;
    let mut high = 0.0f32;
    if inside {
        low = f32::cast_from(qkv[base + pair]);
        high = f32::cast_from(qkv[base + half + pair]);
        if comptime!(shape.bias) {
            low += bias[head * dim + pair];
            high += bias[head * dim + half + pair];
        }
    }
    let is_query = head < comptime!(shape.heads);
    let is_value = head >= comptime!(shape.heads + shape.kv_heads);
    if comptime!(shape.norms) {
        let squares = reduce::sum(low * low + high * high, &mut scratch, shape.units);
        if inside && !is_value {
            let scale = 1.0 / f32::sqrt(squares / comptime!(shape.head_dim as f32) + eps);
            if is_query {
                low *= scale * query_norm[pair];
                high *= scale * query_norm[half + pair];
            } else {
                low *= scale * key_norm[pair];
                high *= scale * key_norm[half + pair];
            }
        }
    }
    if inside {
        if !is_value {
            let angle = inputs[positions_at + row] as usize * dim + pair;
            let cos = angles[angle];
            let sin = angles[angle + half];
            let turned = low * cos - high * sin;
            high = high * cos + low * sin;
            low = turned;
        }
        if is_query {
            let out = (row * comptime!(shape.heads) + head) * dim + pair;
            queries[out] = low;
            queries[out + half] = high;
        } else {
            let slot = inputs[slots_at + row] as usize;
            let block = slot / comptime!(shape.block_size);
            let place = slot % comptime!(shape.block_size);
            if is_value {
                let kv_head = head - comptime!(shape.heads + shape.kv_heads);
                let run = block * comptime!(shape.kv_heads) + kv_head;
                let out = (run * comptime!(shape.block_size) + place) * dim + pair;
                values[out] = E::cast_from(low);
                values[out + half] = E::cast_from(high);
            } else {
                let kv_head = head - comptime!(shape.heads);
                let run = (block * comptime!(shape.kv_heads) + kv_head)
                    * comptime!(shape.block_size * shape.head_dim);
                keys[run + in_keys(pair, place, shape)] = E::cast_from(low);
                keys[run + in_keys(half + pair, place, shape)] = E::cast_from(high);
            }
        }
    }
}

/// Where a dimension of the key at `place` lies within its head's run of a block.
#[cube]
fn in_keys(dimension: usize, place: usize, #[comptime] shape: RopeShape) -> usize {
    let pack = comptime!(shape.pack);
    let group = dimension / pack;
    (group * comptime!(shape.block_size) + place) * pack + dimension % pack
}
