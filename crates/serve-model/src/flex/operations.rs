//! The operations of a decoder, each as a few of Burn's own: slow, on any device of Burn, and easy to
//! check against the papers.

use burn::tensor::{Device, Int, Tensor, TensorData, activation};

/// `x / rms(x) * weight` over the last dimension.
///
/// # Shapes
///
/// - `x`: `[rows, size]`, `weight`: `[size]`
pub(super) fn rms_norm(x: Tensor<2>, weight: &Tensor<1>, eps: f32) -> Tensor<2> {
    let mean_square = x.clone().square().mean_dim(1);
    let scale = (mean_square + eps).sqrt();
    x / scale * weight.clone().unsqueeze()
}

/// The same for each head.
///
/// # Shapes
///
/// - `heads`: `[rows, heads, head_dim]`, `weight`: `[head_dim]`
pub(super) fn norm_heads(heads: Tensor<3>, weight: &Tensor<1>, eps: f32) -> Tensor<3> {
    let [rows, count, dim] = heads.dims();
    let flat = heads.reshape([rows * count, dim]);
    rms_norm(flat, weight, eps).reshape([rows, count, dim])
}

/// `x * weight^T + bias`.
///
/// # Shapes
///
/// - `x`: `[rows, inputs]`, `weight`: `[outputs, inputs]`, `bias`: `[outputs]`
pub(super) fn linear(x: Tensor<2>, weight: &Tensor<2>, bias: Option<&Tensor<1>>) -> Tensor<2> {
    let out = x.matmul(weight.clone().transpose());
    match bias {
        Some(bias) => out + bias.clone().unsqueeze(),
        None => out,
    }
}

/// `silu(gate) * up` for `[rows, gate and up]`.
pub(super) fn gate(gate_up: Tensor<2>) -> Tensor<2> {
    let [_, both] = gate_up.dims();
    let gate = gate_up.clone().narrow(1, 0, both / 2);
    let up = gate_up.narrow(1, both / 2, both / 2);
    activation::silu(gate) * up
}

/// The rotary embedding: dimension `i` turns with dimension `i + head_dim / 2`.
///
/// # Shapes
///
/// - `heads`: `[rows, heads, head_dim]`
/// - `angles`: `[rows, head_dim]`: cosines, then sines
pub(super) fn rotate(heads: Tensor<3>, angles: &Tensor<2>) -> Tensor<3> {
    let [rows, _, dim] = heads.dims();
    let half = dim / 2;
    let part = |first| {
        angles
            .clone()
            .narrow(1, first, half)
            .reshape([rows, 1, half])
    };
    let (cos, sin) = (part(0), part(half));
    let (low, high) = (
        heads.clone().narrow(2, 0, half),
        heads.narrow(2, half, half),
    );
    let turned_low = low.clone() * cos.clone() - high.clone() * sin.clone();
    Tensor::cat(vec![turned_low, high * cos + low * sin], 2)
}

/// What neighbouring queries of one sequence see, the first at position `start`.
///
/// # Shapes
///
/// - `queries`: `[rows, heads, head_dim]`
/// - `keys`, `values`: `[start + rows, kv_heads, head_dim]`
/// - result: `[rows, heads * head_dim]`
pub(super) fn attend(
    queries: Tensor<3>,
    keys: Tensor<3>,
    values: Tensor<3>,
    start: usize,
    device: &Device,
) -> Tensor<2> {
    let [rows, heads, dim] = queries.dims();
    let [context, kv_heads, _] = keys.dims();
    let group = heads / kv_heads;
    // The group goes beside the rows, so that no key is repeated.
    let queries = queries.reshape([rows, kv_heads, group, dim]);
    let queries = queries
        .permute([1, 2, 0, 3])
        .reshape([kv_heads, group * rows, dim]);
    let keys = keys.permute([1, 2, 0]);
    let values = values.permute([1, 0, 2]);
    let scores =
        queries.matmul(keys) / (dim as f32).sqrt() + mask(group, rows, start, context, device);
    let seen = activation::softmax(scores, 2).matmul(values);
    let seen = seen
        .reshape([kv_heads, group, rows, dim])
        .permute([2, 0, 1, 3]);
    seen.reshape([rows, heads * dim])
}

/// Nothing for what a query may see, and a large negative number for what comes after it.
fn mask(group: usize, rows: usize, start: usize, context: usize, device: &Device) -> Tensor<3> {
    const HIDDEN: f32 = -1e30;
    let row = |row: usize| {
        (0..context).map(move |position| if position <= start + row { 0.0 } else { HIDDEN })
    };
    let once: Vec<f32> = (0..rows).flat_map(row).collect();
    let mask = TensorData::new(once.repeat(group), [1, group * rows, context]);
    Tensor::from_data(mask, device)
}

/// Indices on a device.
pub(super) fn indices(indices: impl Iterator<Item = u32>, device: &Device) -> Tensor<1, Int> {
    let indices: Vec<i64> = indices.map(i64::from).collect();
    let count = indices.len();
    Tensor::from_data(TensorData::new(indices, [count]), device)
}
