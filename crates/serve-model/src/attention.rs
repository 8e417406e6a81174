//! Attention over a paged cache: the one part of the decoder that every device does in its own way.
//!
//! [`Attention`] takes the projected queries, keys and values of a batch and gives back what the
//! heads saw. [`HostAttention`] does it in plain Rust on host memory: it reads block tables
//! directly, so neither is the KV of a sequence copied nor are keys repeated for grouped queries.

use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;
use thiserror::Error;

use crate::batch::{Batch, Sequence};
use crate::kv::KvPool;
use crate::rope::RopeTable;

/// The device failed at something that cannot fail for reasons of the request.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{cause}")]
pub struct DeviceError {
    /// The device's own words.
    pub cause: String,
}

impl DeviceError {
    /// Wraps whatever the tensor library reports.
    pub fn new(cause: &impl std::fmt::Debug) -> Self {
        Self {
            cause: format!("{cause:?}"),
        }
    }
}

/// Head norms, rotary embedding, KV cache and attention of a device.
pub trait Attention: Send {
    /// Runs one layer's attention.
    ///
    /// All keys and values of the batch are written before any is read, so a sequence may attend to
    /// positions that another sequence of the same batch writes into a shared block.
    ///
    /// # Shapes
    ///
    /// - `qkv`: `[rows, (heads + 2 * kv_heads) * head_dim]`, queries, keys, values
    /// - result: `[rows, heads * head_dim]`
    ///
    /// # Errors
    ///
    /// [`DeviceError`] when the device fails.
    fn attend(
        &mut self,
        layer: usize,
        qkv: Tensor<2>,
        batch: &Batch,
    ) -> Result<Tensor<2>, DeviceError>;
}

/// RMS norm weights, `[head_dim]`, for each head of Q and of K.
#[derive(Clone, Debug)]
pub struct HeadNorms {
    /// For queries.
    pub query: Vec<f32>,
    /// For keys.
    pub key: Vec<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

/// Attention on host memory, in f32.
#[derive(Debug)]
pub struct HostAttention {
    pool: KvPool,
    rope: RopeTable,
    norms: Vec<Option<HeadNorms>>,
    query_heads: usize,
    device: Device,
}

impl HostAttention {
    /// Attention of `query_heads` heads over `pool`. `norms` has an entry for each layer.
    pub fn new(
        pool: KvPool,
        rope: RopeTable,
        norms: Vec<Option<HeadNorms>>,
        query_heads: usize,
        device: Device,
    ) -> Self {
        Self {
            pool,
            rope,
            norms,
            query_heads,
            device,
        }
    }

    /// Norms and rotates the heads of Q and K in place.
    fn prepare(&self, layer: usize, qkv: &mut [f32], row_size: usize, positions: &[u32]) {
        /// Rows from which a second core pays.
        const PARALLEL_ROWS: usize = 64;
        let dim = self.pool.shape().head_dim;
        let (queries, keys) = (self.query_heads, self.pool.shape().heads);
        let norms = self.norms[layer].as_ref();
        let prepare_row = |(row, &position): (&mut [f32], &u32)| {
            let heads = row[..(queries + keys) * dim].chunks_exact_mut(dim);
            for (index, head) in heads.enumerate() {
                if let Some(norms) = norms {
                    let weight = if index < queries {
                        &norms.query
                    } else {
                        &norms.key
                    };
                    rms_norm(head, weight, norms.eps);
                }
                self.rope.rotate(head, position);
            }
        };
        if positions.len() >= PARALLEL_ROWS {
            let rows = qkv.par_chunks_exact_mut(row_size).zip(positions);
            rows.for_each(prepare_row);
        } else {
            let rows = qkv.chunks_exact_mut(row_size).zip(positions);
            rows.for_each(prepare_row);
        }
    }

    fn write(&mut self, layer: usize, qkv: &[f32], row_size: usize, batch: &Batch) {
        let shape = *self.pool.shape();
        let (query_size, kv_size) = (
            self.query_heads * shape.head_dim,
            shape.heads * shape.head_dim,
        );
        for sequence in batch.sequences() {
            let blocks = batch.blocks(sequence);
            for row in sequence.rows.clone() {
                let position = batch.positions()[row] as usize;
                let kv = &qkv[row * row_size + query_size..(row + 1) * row_size];
                let (keys, values) = kv.split_at(kv_size);
                let block = blocks[position / shape.block_size];
                self.pool
                    .write(layer, block, position % shape.block_size, keys, values);
            }
        }
    }
}

impl Attention for HostAttention {
    fn attend(
        &mut self,
        layer: usize,
        qkv: Tensor<2>,
        batch: &Batch,
    ) -> Result<Tensor<2>, DeviceError> {
        let [rows, row_size] = qkv.dims();
        // The tensor is the last of its kind, so its buffer moves out and back without a copy.
        let mut data = qkv.try_into_data().map_err(|e| DeviceError::new(&e))?;
        let qkv = data
            .as_mut_slice::<f32>()
            .map_err(|e| DeviceError::new(&e))?;
        self.prepare(layer, qkv, row_size, batch.positions());
        self.write(layer, qkv, row_size, batch);
        let out_size = self.query_heads * self.pool.shape().head_dim;
        let mut out = vec![0.0; rows * out_size];
        let kernel = Kernel {
            pool: &self.pool,
            layer,
            qkv,
            row_size,
            query_heads: self.query_heads,
        };
        kernel.run(batch, &mut out);
        let out = TensorData::new(out, [rows, out_size]);
        Ok(Tensor::from_data(out, &self.device))
    }
}

/// One layer's attention, all inputs prepared.
struct Kernel<'a> {
    pool: &'a KvPool,
    layer: usize,
    qkv: &'a [f32],
    row_size: usize,
    query_heads: usize,
}

/// A piece of the output that one core computes: some neighbouring rows of a sequence in all heads,
/// or one row in the query heads of one KV head. Either is one run of memory.
struct Unit<'a> {
    blocks: &'a [u32],
    first_row: usize,
    first_position: u32,
    kv_heads: std::ops::Range<usize>,
    out: &'a mut [f32],
}

impl Kernel<'_> {
    fn run(&self, batch: &Batch, out: &mut [f32]) {
        /// Multiply-adds from which a second core pays.
        const PARALLEL_WORK: usize = 1 << 17;
        let work = |sequence: &Sequence| {
            let end = sequence.start as usize + sequence.rows.len();
            end * sequence.rows.len() * self.out_size()
        };
        let parallel = batch.sequences().iter().map(work).sum::<usize>() >= PARALLEL_WORK;
        let units = self.units(batch, out);
        if parallel {
            units
                .into_par_iter()
                .for_each_init(Scratch::default, |scratch, mut unit| {
                    self.unit(&mut unit, scratch);
                });
        } else {
            let mut scratch = Scratch::default();
            units
                .into_iter()
                .for_each(|mut unit| self.unit(&mut unit, &mut scratch));
        }
    }

    fn out_size(&self) -> usize {
        self.query_heads * self.pool.shape().head_dim
    }

    fn units<'a>(&self, batch: &'a Batch, out: &'a mut [f32]) -> Vec<Unit<'a>> {
        /// Rows that share each pass over a block of keys.
        const ROWS: usize = 16;
        let kv_heads = self.pool.shape().heads;
        let mut units = Vec::new();
        let mut rest = out;
        let mut take = |size: usize| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(size);
            rest = tail;
            head
        };
        for sequence in batch.sequences() {
            let blocks = batch.blocks(sequence);
            let unit = |row: usize, kv_heads, out| Unit {
                blocks,
                first_row: sequence.rows.start + row,
                first_position: sequence.start + row as u32,
                kv_heads,
                out,
            };
            let rows = sequence.rows.len();
            if rows == 1 {
                for head in 0..kv_heads {
                    let out = take(self.out_size() / kv_heads);
                    units.push(unit(0, head..head + 1, out));
                }
                continue;
            }
            for row in (0..rows).step_by(ROWS) {
                let out = take(ROWS.min(rows - row) * self.out_size());
                units.push(unit(row, 0..kv_heads, out));
            }
        }
        units
    }

    fn unit(&self, unit: &mut Unit<'_>, scratch: &mut Scratch) {
        let dim = self.pool.shape().head_dim;
        let group = self.query_heads / self.pool.shape().heads;
        let out_row = unit.kv_heads.len() * group * dim;
        let rows = unit.out.len() / out_row;
        for (index, kv_head) in unit.kv_heads.clone().enumerate() {
            scratch.start(rows * group);
            let visible_max = unit.first_position as usize + rows;
            let block_size = self.pool.shape().block_size;
            for (number, &block) in unit.blocks.iter().enumerate() {
                let before = number * block_size;
                if before >= visible_max {
                    break;
                }
                let (keys, values) = self.pool.read(self.layer, block, kv_head);
                for row in 0..rows {
                    let visible = unit.first_position as usize + row + 1;
                    let visible = visible.saturating_sub(before).min(block_size);
                    let query_row = (unit.first_row + row) * self.row_size;
                    for member in 0..group {
                        let head = kv_head * group + member;
                        let query = &self.qkv[query_row + head * dim..][..dim];
                        let out = row * out_row + (index * group + member) * dim;
                        let out = &mut unit.out[out..out + dim];
                        scratch.add(
                            row * group + member,
                            query,
                            &keys[..visible * dim],
                            &values[..visible * dim],
                            out,
                        );
                    }
                }
            }
            for row in 0..rows {
                for member in 0..group {
                    let out = row * out_row + (index * group + member) * dim;
                    let scale = 1.0 / scratch.sums[row * group + member];
                    let out = &mut unit.out[out..out + dim];
                    out.iter_mut().for_each(|x| *x *= scale);
                }
            }
        }
    }
}

/// The running softmax of several query heads (Milakov and Gimelshein, 2018): the largest score so
/// far and the sum of the exponentials relative to it. The output is rescaled when the largest grows.
#[derive(Default)]
struct Scratch {
    maxima: Vec<f32>,
    sums: Vec<f32>,
    scores: Vec<f32>,
}

impl Scratch {
    fn start(&mut self, queries: usize) {
        self.maxima.clear();
        self.maxima.resize(queries, f32::NEG_INFINITY);
        self.sums.clear();
        self.sums.resize(queries, 0.0);
    }

    /// Lets query `index` see some more positions.
    fn add(&mut self, index: usize, query: &[f32], keys: &[f32], values: &[f32], out: &mut [f32]) {
        let dim = query.len();
        let scale = 1.0 / (dim as f32).sqrt();
        let scores = keys.chunks_exact(dim).map(|key| dot(query, key) * scale);
        self.scores.clear();
        self.scores.extend(scores);
        let old = self.maxima[index];
        let new = self.scores.iter().copied().fold(old, f32::max);
        if new == f32::NEG_INFINITY {
            return;
        }
        if new > old {
            let shrink = (old - new).exp();
            self.maxima[index] = new;
            self.sums[index] *= shrink;
            out.iter_mut().for_each(|x| *x *= shrink);
        }
        for (score, value) in self.scores.iter().zip(values.chunks_exact(dim)) {
            let weight = (score - new).exp();
            self.sums[index] += weight;
            for (out, value) in out.iter_mut().zip(value) {
                *out += weight * value;
            }
        }
    }
}

/// Eight partial sums, so that the compiler can use vector registers.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

fn rms_norm(head: &mut [f32], weight: &[f32], eps: f32) {
    let mean_square = dot(head, head) / head.len() as f32;
    let scale = 1.0 / (mean_square + eps).sqrt();
    for (x, weight) in head.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Logits;
    use crate::kv::KvShape;
    use crate::rope::{Rope, RopeScaling};
    use serve_core::rng::Rng;

    const HEADS: usize = 6;
    const KV_HEADS: usize = 2;
    const DIM: usize = 10;
    const ROW: usize = (HEADS + 2 * KV_HEADS) * DIM;

    fn attention(block_size: usize) -> HostAttention {
        let shape = KvShape {
            layers: 1,
            heads: KV_HEADS,
            head_dim: DIM,
            block_size,
            blocks: 40,
        };
        let rope = Rope {
            theta: 100.0,
            scaling: RopeScaling::None,
        };
        let table = RopeTable::new(&rope, DIM, 128);
        HostAttention::new(KvPool::new(shape), table, vec![None], HEADS, Device::flex())
    }

    fn random(rows: usize, seed: u64) -> Vec<f32> {
        let mut rng = Rng::new(seed);
        let next = |_| (rng.next_f64() * 2.0 - 1.0) as f32;
        (0..rows * ROW).map(next).collect()
    }

    fn run(attention: &mut HostAttention, qkv: Vec<f32>, batch: &Batch) -> Vec<f32> {
        let rows = qkv.len() / ROW;
        let qkv = TensorData::new(qkv, [rows, ROW]);
        let qkv = Tensor::from_data(qkv, &Device::flex());
        let out = attention.attend(0, qkv, batch).unwrap();
        out.into_data().try_to_vec().unwrap()
    }

    /// Softmax over all earlier positions, written down directly, in f64.
    fn reference(qkv: &[f32]) -> Vec<f32> {
        let rope = Rope {
            theta: 100.0,
            scaling: RopeScaling::None,
        };
        let table = RopeTable::new(&rope, DIM, 128);
        let rows: Vec<Vec<Vec<f32>>> = qkv
            .chunks(ROW)
            .enumerate()
            .map(|(position, row)| {
                let mut heads: Vec<Vec<f32>> = row.chunks(DIM).map(<[f32]>::to_vec).collect();
                for head in &mut heads[..HEADS + KV_HEADS] {
                    table.rotate(head, position as u32);
                }
                heads
            })
            .collect();
        let mut out = Vec::new();
        for (position, row) in rows.iter().enumerate() {
            for (head, query) in row[..HEADS].iter().enumerate() {
                let kv_head = head / (HEADS / KV_HEADS);
                let score = |other: &Vec<Vec<f32>>| {
                    let pairs = query.iter().zip(&other[HEADS + kv_head]);
                    let dot: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                    (dot / (DIM as f64).sqrt()).exp()
                };
                let weights: Vec<f64> = rows[..=position].iter().map(score).collect();
                let sum: f64 = weights.iter().sum();
                for dim in 0..DIM {
                    let seen = rows.iter().zip(&weights);
                    let value =
                        |other: &Vec<Vec<f32>>| f64::from(other[HEADS + KV_HEADS + kv_head][dim]);
                    let x: f64 = seen.map(|(other, w)| w / sum * value(other)).sum();
                    out.push(x as f32);
                }
            }
        }
        out
    }

    fn assert_close(a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len());
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            assert!((a - b).abs() < 1e-5, "element {i}: {a} and {b}");
        }
    }

    #[test]
    fn whole_sequences_agree_with_the_definition() {
        for block_size in [1, 3, 16, 64] {
            let qkv = random(37, 1);
            let mut batch = Batch::new();
            let tokens = [0; 37];
            batch.push(&tokens, 0, (1..40).rev(), Logits::None);
            let out = run(&mut attention(block_size), qkv.clone(), &batch);
            assert_close(&out, &reference(&qkv));
        }
    }

    #[test]
    fn ragged_batches_of_chunks_and_single_rows_agree_with_the_definition() {
        let (first, second) = (random(30, 2), random(12, 3));
        let mut attention = attention(4);
        let mut batch = Batch::new();
        let (a, b) = ([9, 3, 30, 7, 1, 2, 8, 11], [5, 4, 20]);
        batch.push(&[0; 29], 0, a, Logits::None);
        batch.push(&[0; 5], 0, b, Logits::None);
        let qkv = [&first[..29 * ROW], &second[..5 * ROW]].concat();
        let out = run(&mut attention, qkv, &batch);
        assert_close(&out[..29 * HEADS * DIM], &reference(&first[..29 * ROW]));
        assert_close(&out[29 * HEADS * DIM..], &reference(&second[..5 * ROW]));
        batch.clear();
        batch.push(&[0; 7], 5, b, Logits::None);
        batch.push(&[0], 29, a, Logits::None);
        let qkv = [&second[5 * ROW..], &first[29 * ROW..]].concat();
        let out = run(&mut attention, qkv, &batch);
        let second_out = reference(&second);
        assert_close(&out[..7 * HEADS * DIM], &second_out[5 * HEADS * DIM..]);
        let first_out = reference(&first);
        assert_close(&out[7 * HEADS * DIM..], &first_out[29 * HEADS * DIM..]);
    }
}
