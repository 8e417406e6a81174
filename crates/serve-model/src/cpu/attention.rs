//! Paged attention in host memory: reads block tables directly, so neither is the KV of a sequence
//! copied nor are keys repeated for grouped queries.

use std::array;
use std::ops::Range;

use super::kernels::{Instructions, Kernel, LANES, Lanes, Team, Tile, math};
use crate::decode::{Batch, KvPool, KvShape, RopeTable};
use crate::weights::HeadNorms;

/// Queries that share each pass over the keys of a head.
const QUERIES: usize = 32;

/// How the rows of a batch are cut: each unit, some neighbouring rows of one sequence, sees keys with
/// one KV head at a time.
#[derive(Debug, Default)]
pub(super) struct Units {
    /// The first row of each unit.
    first_rows: Vec<usize>,
    /// The sequence of each unit.
    sequences: Vec<usize>,
}

impl Units {
    /// Cuts a batch.
    pub(super) fn lay_out(&mut self, batch: &Batch, kv: &KvShape, query_heads: usize) {
        let rows_max = (QUERIES / (query_heads / kv.heads)).max(1);
        self.first_rows.clear();
        self.sequences.clear();
        for (index, sequence) in batch.sequences().iter().enumerate() {
            for row in sequence.rows.clone().step_by(rows_max) {
                self.first_rows.push(row);
                self.sequences.push(index);
            }
        }
    }
}

/// Head norms and rotary embedding.
#[derive(Clone, Copy)]
pub(super) struct Prepare<'a> {
    pub(super) rope: &'a RopeTable,
    pub(super) norms: Option<&'a HeadNorms<Vec<f32>>>,
    pub(super) eps: f32,
    pub(super) dim: usize,
    pub(super) query_heads: usize,
    /// Of queries and keys, which lie in front in each row.
    pub(super) heads: usize,
}

impl Prepare<'_> {
    /// Prepares queries and keys in place.
    pub(super) fn all(
        self,
        on: (Instructions, &mut Team),
        qkv: &mut [f32],
        positions: &[u32],
        units: &Units,
    ) {
        let (instructions, team) = on;
        let row_size = qkv.len() / positions.len();
        let starts = &units.first_rows;
        team.for_each_tile(qkv, row_size, row_size, starts, &|unit, _, out| {
            let positions = &positions[starts[unit]..][..out.rows()];
            instructions.run(PrepareRows {
                prepare: self,
                positions,
                out,
            });
        });
    }
}

struct PrepareRows<'a, 'b> {
    prepare: Prepare<'a>,
    positions: &'a [u32],
    out: Tile<'b>,
}

impl Kernel for PrepareRows<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, _: L) {
        let prepare = &self.prepare;
        for (row, &position) in self.positions.iter().enumerate() {
            let heads =
                self.out.row(row)[..prepare.heads * prepare.dim].chunks_exact_mut(prepare.dim);
            for (index, head) in heads.enumerate() {
                if let Some(norms) = prepare.norms {
                    let is_query = index < prepare.query_heads;
                    let weight = if is_query { &norms.query } else { &norms.key };
                    let scale = math::norm_scale(head, prepare.eps);
                    for (x, weight) in head.iter_mut().zip(weight) {
                        *x = *x * scale * weight;
                    }
                }
                prepare.rope.rotate(head, position);
            }
        }
    }
}

/// One layer's attention, all inputs prepared.
#[derive(Clone, Copy)]
pub(super) struct Attention<'a> {
    pub(super) pool: &'a KvPool,
    pub(super) layer: usize,
    pub(super) batch: &'a Batch,
    /// `[rows, row_size]`, the queries in front.
    pub(super) qkv: &'a [f32],
    pub(super) row_size: usize,
    pub(super) query_heads: usize,
}

impl Attention<'_> {
    /// Writes what each query head sees, `[rows, query_heads * head_dim]`.
    pub(super) fn all(self, on: (Instructions, &mut Team), units: &Units, out: &mut [f32]) {
        let (instructions, team) = on;
        let shape = self.pool.shape();
        let columns = self.query_heads * shape.head_dim;
        let width = columns / shape.heads;
        let starts = &units.first_rows;
        team.for_each_tile(out, columns, width, starts, &|unit, kv_head, out| {
            let sequence = &self.batch.sequences()[units.sequences[unit]];
            let first_row = starts[unit];
            instructions.run(Unit {
                attention: self,
                blocks: self.batch.blocks(sequence),
                first_row,
                first_position: sequence.start as usize + first_row - sequence.rows.start,
                kv_head,
                out,
            });
        });
    }
}

/// Some neighbouring rows of a sequence, in the query heads of one KV head.
struct Unit<'a, 'b> {
    attention: Attention<'a>,
    blocks: &'a [u32],
    first_row: usize,
    first_position: usize,
    kv_head: usize,
    out: Tile<'b>,
}

/// The running softmax of several queries (Milakov and Gimelshein, 2018): the largest score so far
/// and the sum of the exponentials relative to it. The output is rescaled when the largest grows.
#[derive(Clone, Copy)]
struct Softmax {
    largest: f32,
    sum: f32,
}

impl Kernel for Unit<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let queries = self.out.rows() * self.group();
        for first in (0..queries).step_by(QUERIES) {
            self.queries(lanes, first..queries.min(first + QUERIES));
        }
    }
}

impl Unit<'_, '_> {
    fn group(&self) -> usize {
        self.attention.query_heads / self.attention.pool.shape().heads
    }

    /// Lets some queries see all that is before them. A query is a row and a head of the group.
    #[inline(always)]
    fn queries<L: Lanes>(&mut self, lanes: L, queries: Range<usize>) {
        let shape = *self.attention.pool.shape();
        let (dim, group) = (shape.head_dim, self.group());
        let mut state = [Softmax {
            largest: f32::NEG_INFINITY,
            sum: 0.0,
        }; QUERIES];
        for query in queries.clone() {
            let head = (query % group) * dim;
            self.out.row(query / group)[head..head + dim].fill(0.0);
        }
        let end = self.first_position + (queries.end - 1) / group + 1;
        for (number, &block) in self.blocks.iter().enumerate() {
            let before = number * shape.block_size;
            if before >= end {
                break;
            }
            let (keys, values) =
                self.attention
                    .pool
                    .read(self.attention.layer, block, self.kv_head);
            for first in (0..shape.block_size).step_by(LANES) {
                let keys = &keys[first * dim..];
                let values = &values[first * dim..];
                for (query, state) in queries.clone().zip(&mut state) {
                    let visible = self.first_position + query / group + 1;
                    let visible = visible.saturating_sub(before + first);
                    let visible = visible.min(LANES).min(shape.block_size - first);
                    if visible > 0 {
                        let seen = visible * dim;
                        self.see(lanes, query, state, &keys[..seen], &values[..seen]);
                    }
                }
            }
        }
        for (query, state) in queries.zip(&state) {
            let head = (query % group) * dim;
            let scale = 1.0 / state.sum;
            let out = &mut self.out.row(query / group)[head..head + dim];
            out.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// Lets a query see [`LANES`] more positions at most.
    #[inline(always)]
    fn see<L: Lanes>(
        &mut self,
        lanes: L,
        query: usize,
        state: &mut Softmax,
        keys: &[f32],
        values: &[f32],
    ) {
        let attention = &self.attention;
        let dim = attention.pool.shape().head_dim;
        let group = self.group();
        let (row, member) = (query / group, query % group);
        let head = self.kv_head * group + member;
        let start = (self.first_row + row) * attention.row_size + head * dim;
        let visible = keys.len() / dim;
        let mut scores = dots(lanes, &attention.qkv[start..start + dim], keys);
        let scale = 1.0 / (dim as f32).sqrt();
        let mut largest = state.largest;
        for score in &mut scores[..visible] {
            *score *= scale;
            largest = largest.max(*score);
        }
        // All are minus infinity, or not numbers.
        if largest == f32::NEG_INFINITY {
            return;
        }
        let out = &mut self.out.row(row)[member * dim..(member + 1) * dim];
        if largest > state.largest {
            let shrink = (state.largest - largest).exp();
            state.largest = largest;
            state.sum *= shrink;
            out.iter_mut().for_each(|x| *x *= shrink);
        }
        let weights = math::exp(&scores.map(|score| score - largest));
        for weight in &weights[..visible] {
            state.sum += weight;
        }
        accumulate(lanes, &weights[..visible], values, out);
    }
}

/// The products of a query with up to [`LANES`] keys.
#[inline(always)]
fn dots<L: Lanes>(lanes: L, query: &[f32], keys: &[f32]) -> [f32; LANES] {
    let dim = query.len();
    let count = keys.len() / dim;
    let mut out = [0.0; LANES];
    for (first, out) in (0..count).step_by(4).zip(out.as_chunks_mut().0) {
        // Where fewer than four are left, the last one several times.
        let key = |i: usize| &keys[(first + i).min(count - 1) * dim..][..dim];
        let four: [&[f32]; 4] = array::from_fn(key);
        let whole = four.map(|key| key.as_chunks::<LANES>().0);
        let mut sums = [lanes.load(&[0.0; LANES]); 4];
        let (chunks, rest) = query.as_chunks::<LANES>();
        for (i, chunk) in chunks.iter().enumerate() {
            let query = lanes.load(chunk);
            for (sum, key) in sums.iter_mut().zip(whole) {
                *sum = lanes.multiply_add_exact(query, lanes.load(&key[i]), *sum);
            }
        }
        *out = lanes.sums(sums);
        for (out, key) in out.iter_mut().zip(four) {
            let key = &key[dim - rest.len()..];
            for (query, key) in rest.iter().zip(key) {
                *out += query * key;
            }
        }
    }
    out
}

/// Adds the weighted values to `out`.
#[inline(always)]
fn accumulate<L: Lanes>(lanes: L, weights: &[f32], values: &[f32], out: &mut [f32]) {
    let dim = out.len();
    let (chunks, rest) = out.as_chunks_mut::<LANES>();
    for (index, chunk) in chunks.iter_mut().enumerate() {
        let mut sum = lanes.load(chunk);
        for (&weight, value) in weights.iter().zip(values.chunks_exact(dim)) {
            let value = lanes.load(&value.as_chunks().0[index]);
            sum = lanes.multiply_add_exact(lanes.load(&[weight; LANES]), value, sum);
        }
        lanes.store(sum, chunk);
    }
    for (weight, value) in weights.iter().zip(values.chunks_exact(dim)) {
        for (out, value) in rest.iter_mut().zip(&value[dim - dim % LANES..]) {
            *out += weight * value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Rope, RopeScaling};
    use crate::decode::Logits;
    use serve_core::rng::Rng;

    const HEADS: usize = 6;
    const KV_HEADS: usize = 2;
    const DIM: usize = 10;
    const ROW: usize = (HEADS + 2 * KV_HEADS) * DIM;

    struct Bench {
        pool: KvPool,
        rope: RopeTable,
        team: Team,
    }

    fn bench(block_size: usize) -> Bench {
        let shape = KvShape {
            layers: 1,
            heads: KV_HEADS,
            head_dim: DIM,
            block_size,
            blocks: 40,
        };
        Bench {
            pool: KvPool::new(shape),
            rope: rope(),
            team: Team::new(2),
        }
    }

    fn rope() -> RopeTable {
        let rope = Rope {
            theta: 100.0,
            scaling: RopeScaling::None,
        };
        RopeTable::new(&rope, DIM, 128)
    }

    fn random(rows: usize, seed: u64) -> Vec<f32> {
        let mut rng = Rng::new(seed);
        let next = |_| (rng.next_f64() * 2.0 - 1.0) as f32;
        (0..rows * ROW).map(next).collect()
    }

    /// Runs a batch with all instructions; they agree closely, and the last result comes back.
    fn run(bench: &mut Bench, qkv: &[f32], batch: &Batch) -> Vec<f32> {
        let mut last: Vec<f32> = Vec::new();
        for instructions in Instructions::available() {
            let mut qkv = qkv.to_vec();
            let mut units = Units::default();
            units.lay_out(batch, bench.pool.shape(), HEADS);
            let prepare = Prepare {
                rope: &bench.rope,
                norms: None,
                eps: 0.0,
                dim: DIM,
                query_heads: HEADS,
                heads: HEADS + KV_HEADS,
            };
            let on = (instructions, &mut bench.team);
            prepare.all(on, &mut qkv, batch.positions(), &units);
            bench.pool.write_batch(0, batch, &qkv, HEADS * DIM);
            let attention = Attention {
                pool: &bench.pool,
                layer: 0,
                batch,
                qkv: &qkv,
                row_size: ROW,
                query_heads: HEADS,
            };
            let mut out = vec![f32::NAN; batch.tokens().len() * HEADS * DIM];
            attention.all((instructions, &mut bench.team), &units, &mut out);
            if !last.is_empty() {
                assert_close(&out, &last);
            }
            last = out;
        }
        last
    }

    /// Softmax over all earlier positions, written down directly, in f64.
    fn reference(qkv: &[f32]) -> Vec<f32> {
        let table = rope();
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
            let out = run(&mut bench(block_size), &qkv, &batch);
            assert_close(&out, &reference(&qkv));
        }
    }

    #[test]
    fn ragged_batches_of_chunks_and_single_rows_agree_with_the_definition() {
        let (first, second) = (random(30, 2), random(12, 3));
        let mut bench = bench(4);
        let mut batch = Batch::new();
        let (a, b) = ([9, 3, 30, 7, 1, 2, 8, 11], [5, 4, 20]);
        batch.push(&[0; 29], 0, a, Logits::None);
        batch.push(&[0; 5], 0, b, Logits::None);
        let qkv = [&first[..29 * ROW], &second[..5 * ROW]].concat();
        let out = run(&mut bench, &qkv, &batch);
        assert_close(&out[..29 * HEADS * DIM], &reference(&first[..29 * ROW]));
        assert_close(&out[29 * HEADS * DIM..], &reference(&second[..5 * ROW]));
        batch.clear();
        batch.push(&[0; 7], 5, b, Logits::None);
        batch.push(&[0], 29, a, Logits::None);
        let qkv = [&second[5 * ROW..], &first[29 * ROW..]].concat();
        let out = run(&mut bench, &qkv, &batch);
        let second_out = reference(&second);
        assert_close(&out[..7 * HEADS * DIM], &second_out[5 * HEADS * DIM..]);
        let first_out = reference(&first);
        assert_close(&out[7 * HEADS * DIM..], &first_out[29 * HEADS * DIM..]);
    }
}
