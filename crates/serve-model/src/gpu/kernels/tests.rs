//! Every kernel against its definition, written down as plain loops, on random shapes.

use cubecl::Device;
use cubecl::bytes::Bytes;
use cubecl::ir::FloatKind;
use serve_core::rng::Rng;
use serve_core::{Sampling, TokenId, TokenLogprob};
use std::num::NonZeroU32;

use super::*;
use crate::decode::{History, Sampler, logprobs, penalise as penalise_on_host};

/// Some GPU, or what passes for one.
fn device() -> Option<Device> {
    let device = Device::enumerate_all().into_iter().next();
    if device.is_none() {
        println!("skipped: there is no device that kernels run on");
    }
    device
}

struct Bench {
    kernels: Kernels,
    rng: Rng,
}

impl Bench {
    fn new(device: &Device, shape: KernelShape, seed: u64) -> Self {
        Self {
            kernels: Kernels {
                client: device.client(),
                shape,
                element: ElemType::Float(FloatKind::F32),
                eps: 1e-5,
            },
            rng: Rng::new(seed),
        }
    }

    fn random(&mut self, count: usize) -> Vec<f32> {
        let next = |_| (self.rng.next_f64() * 2.0 - 1.0) as f32;
        (0..count).map(next).collect()
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    fn put<T: bytemuck::NoUninit + Send + Sync>(&self, numbers: &[T]) -> Buffer {
        let bytes = Bytes::from_elems(numbers.to_vec());
        Buffer {
            handle: self.kernels.client.create(bytes),
            elements: numbers.len(),
        }
    }

    fn get<T: bytemuck::Pod>(&self, buffer: &Buffer) -> Vec<T> {
        let bytes = self.kernels.client.read_one(buffer.handle.clone()).unwrap();
        bytemuck::cast_slice(&bytes).to_vec()
    }
}

fn inputs(words: &Buffer) -> Inputs<'_> {
    Inputs {
        words,
        tokens_at: 0,
        positions_at: 0,
        slots_at: 0,
        wanted_at: 0,
        units_at: 0,
    }
}

const SHAPE: KernelShape = KernelShape {
    hidden: 90,
    middle: 70,
    vocabulary: 1_000,
    heads: 6,
    kv_heads: 2,
    head_dim: 20,
    block_size: 8,
    context_max: 512,
};

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let bound = 1e-5 * expected.abs().max(1.0);
        assert!(
            (found - expected).abs() <= bound,
            "{what}, element {index}: {found}, expected {expected}"
        );
    }
}

#[test]
fn rows_of_the_embedding_are_those_of_the_tokens() {
    let Some(device) = device() else { return };
    let mut bench = Bench::new(&device, SHAPE, 1);
    let table = bench.random(SHAPE.vocabulary * SHAPE.hidden);
    let tokens = [3_u32, 999, 0, 3];
    let words = bench.put(&[&[77, 77], &tokens[..]].concat());
    let out = bench.put(&[0.0_f32; 4 * SHAPE.hidden]);
    let inputs = Inputs {
        tokens_at: 2,
        ..inputs(&words)
    };
    bench.kernels.embed(&bench.put(&table), inputs, &out, 4);
    let row = |&token: &u32| &table[token as usize * SHAPE.hidden..][..SHAPE.hidden];
    let expected: Vec<f32> = tokens.iter().flat_map(row).copied().collect();
    assert_eq!(bench.get::<f32>(&out), expected);
}

fn normed(row: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
    let scale = 1.0 / (squares / row.len() as f64 + f64::from(eps)).sqrt();
    let scaled = row.iter().zip(weight);
    scaled
        .map(|(&x, &w)| (f64::from(x) * scale) as f32 * w)
        .collect()
}

#[test]
fn norms_are_of_the_sum_and_keep_it() {
    let Some(device) = device() else { return };
    for hidden in [1, 30, 256, 257, 896] {
        let mut bench = Bench::new(&device, KernelShape { hidden, ..SHAPE }, 2);
        let rows = 5;
        let (x, delta) = (bench.random(rows * hidden), bench.random(rows * hidden));
        let weight = bench.random(hidden);
        let sum: Vec<f32> = x.iter().zip(&delta).map(|(a, b)| a + b).collect();
        let norms = |x: &[f32]| -> Vec<f32> {
            x.chunks(hidden)
                .flat_map(|row| normed(row, &weight, 1e-5))
                .collect()
        };
        let words = bench.put(&[9_u32, 4, 1]);
        let inputs = Inputs {
            wanted_at: 1,
            ..inputs(&words)
        };
        let put = (bench.put(&x), bench.put(&delta), bench.put(&weight));
        let out = bench.put(&vec![0.0_f32; rows * hidden]);

        bench
            .kernels
            .add_norm(&put.0, None, &put.2, inputs, &out, rows);
        assert_close(&bench.get(&out), &norms(&x), "norm");
        assert_eq!(bench.get::<f32>(&put.0), x);

        bench
            .kernels
            .wanted_norm(&put.0, Some(&put.1), &put.2, inputs, &out, 2);
        let wanted = [&sum[4 * hidden..], &sum[hidden..2 * hidden]].concat();
        let found = bench.get::<f32>(&out);
        assert_close(
            &found[..2 * hidden],
            &norms(&wanted),
            "norm of the wanted rows",
        );
        assert_eq!(bench.get::<f32>(&put.0), x);

        bench
            .kernels
            .add_norm(&put.0, Some(&put.1), &put.2, inputs, &out, rows);
        assert_close(&bench.get(&out), &norms(&sum), "norm of a sum");
        assert_close(&bench.get(&put.0), &sum, "the sum");
    }
}

/// Products of 1 to 16 rows: near the definition, and each row the same bits alone and beside others.
#[test]
fn products_of_few_rows_are_those_of_each_row_alone() {
    let Some(device) = device() else { return };
    for (inputs, outputs) in [(3, 5), (70, 33), (256, 1), (516, 270), (2_056, 1_057)] {
        let mut bench = Bench::new(&device, SHAPE, 12);
        let rows_max = PRODUCT_ROWS_MAX;
        let x = bench.random(rows_max * inputs);
        // As a model's are: sums are of one size, however many numbers they have.
        let scale = 1.0 / (inputs as f32).sqrt();
        let weight = bench.random(outputs * inputs);
        let weight: Vec<f32> = weight.iter().map(|x| x * scale).collect();
        let stored = bench.put(&weight);
        let product = |first: usize, rows: usize| -> Vec<f32> {
            let x = bench.put(&x[first * inputs..][..rows * inputs]);
            let out = bench.put(&vec![f32::NAN; rows * outputs]);
            let shape = (outputs, inputs);
            bench.kernels.product(&x, &stored, &out, rows, shape);
            bench.get(&out)
        };
        let alone: Vec<Vec<f32>> = (0..rows_max).map(|row| product(row, 1)).collect();
        for (x, found) in x.chunks(inputs).zip(&alone) {
            let dot = |weight: &[f32]| {
                let pairs = x.iter().zip(weight);
                pairs
                    .map(|(&a, &b)| f64::from(a) * f64::from(b))
                    .sum::<f64>() as f32
            };
            let expected: Vec<f32> = weight.chunks(inputs).map(dot).collect();
            assert_close(found, &expected, "product");
        }
        let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for rows in [2, 3, 5, 6, 7, 12, 16] {
            let beside = product(16 - rows, rows);
            let expected = alone[16 - rows..].concat();
            assert_eq!(
                bits(&beside),
                bits(&expected),
                "{inputs}, {outputs}, {rows}"
            );
        }
    }
}

#[test]
fn gates_and_biases_are_those_of_each_element() {
    let Some(device) = device() else { return };
    for rows in [1, 7, 33] {
        let mut bench = Bench::new(&device, SHAPE, 3);
        let middle = SHAPE.middle;
        let both = bench.random(rows * 2 * middle);
        let out = bench.put(&vec![0.0_f32; rows * middle]);
        bench.kernels.gate(&bench.put(&both), &out, rows);
        let gated = |row: &[f32]| -> Vec<f32> {
            let (gate, up) = row.split_at(middle);
            let pairs = gate.iter().zip(up);
            pairs.map(|(&g, &u)| g / (1.0 + (-g).exp()) * u).collect()
        };
        let expected: Vec<f32> = both.chunks(2 * middle).flat_map(gated).collect();
        assert_close(&bench.get(&out), &expected, "gate");

        let bias = bench.random(middle);
        bench
            .kernels
            .add_bias(&out, &bench.put(&bias), rows, middle);
        let expected = expected.iter().enumerate();
        let expected: Vec<f32> = expected.map(|(i, x)| x + bias[i % middle]).collect();
        assert_close(&bench.get(&out), &expected, "bias");
    }
}

#[test]
fn the_most_likely_token_is_the_first_of_the_largest_logits() {
    let Some(device) = device() else { return };
    for vocabulary in [1, 3, 256, 257, 5_003] {
        let mut bench = Bench::new(
            &device,
            KernelShape {
                vocabulary,
                ..SHAPE
            },
            4,
        );
        let rows = 6;
        // Few different logits, so that there are ties.
        let logits = bench.random(rows * vocabulary);
        let mut logits: Vec<f32> = logits.iter().map(|x| (x * 20.0).round()).collect();
        logits[..vocabulary].fill(f32::NEG_INFINITY);
        let tokens = bench.put(&[u32::MAX; 6]);
        let best = Best {
            values: bench.put(&[0.0_f32; 6 * PARTS]),
            places: bench.put(&[0_u32; 6 * PARTS]),
        };
        bench
            .kernels
            .most_likely(&bench.put(&logits), &best, &tokens, rows);
        let first = |row: &[f32]| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter().position(|&x| x == largest).unwrap() as u32
        };
        let expected: Vec<u32> = logits.chunks(vocabulary).map(first).collect();
        assert_eq!(bench.get::<u32>(&tokens), expected, "{vocabulary}");
    }
}

/// Draws from the same logits in many ways, and compares with the sampler on the host. The sums of
/// the two differ by rounding, so the random number may lie between two tokens for one in some
/// hundred thousand draws; here it does not.
#[test]
fn draws_are_those_of_the_host() {
    let Some(device) = device() else { return };
    for (vocabulary, grain) in [(5, 0.5), (1_000, 0.25), (2_503, 0.0)] {
        let mut bench = Bench::new(
            &device,
            KernelShape {
                vocabulary,
                ..SHAPE
            },
            6,
        );
        let rows = 64;
        let mut row = bench.random(vocabulary);
        // Ties, if there is a grain.
        row.iter_mut().for_each(|x| *x *= 6.0);
        if grain > 0.0 {
            row.iter_mut()
                .for_each(|x| *x = (*x / grain).round() * grain);
        }
        let logits = row.repeat(rows);
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        let best = row.iter().position(|&x| x == largest).unwrap() as u32;
        let mut expected = Vec::new();
        let mut how = Vec::new();
        let mut sampler = Sampler::new();
        for index in 0..rows {
            let temperature = [0.0, 0.7, 1.0, 3.0][index % 4];
            let top_k = [0, 1, 3, 40, 5_000][index % 5];
            let top_p = [1.0, 0.9, 0.5, 0.01][index / 4 % 4];
            let min_p = [0.0, 0.1, 0.9][index / 16 % 3];
            let sampling = Sampling::GREEDY.with_temperature(temperature).unwrap();
            let sampling = sampling.with_top_k(NonZeroU32::new(top_k));
            let sampling = sampling
                .with_top_p(top_p)
                .unwrap()
                .with_min_p(min_p)
                .unwrap();
            let sampling = sampling.with_seed(9);
            let token = sampler.sample(&row, &sampling, index as u32, &[]);
            expected.push(token.get());
            let random = Sampler::random(&sampling, index as u32) as f32;
            how.extend([temperature, top_k as f32, top_p, min_p, random]);
        }
        let tokens = bench.put(&vec![best; rows]);
        bench
            .kernels
            .draw(&bench.put(&logits), &bench.put(&how), &tokens, rows);
        assert_eq!(bench.get::<u32>(&tokens), expected, "{vocabulary}");
    }
}

/// Rows of few different logits, so that there are ties, some of which say nothing.
fn logit_rows(bench: &mut Bench, rows: usize) -> Vec<f32> {
    let vocabulary = bench.kernels.shape.vocabulary;
    let logits = bench.random(rows * vocabulary);
    let mut logits: Vec<f32> = logits.iter().map(|x| (x * 20.0).round() / 2.0).collect();
    for index in (0..logits.len()).step_by(7) {
        logits[index] = f32::NEG_INFINITY;
    }
    logits
}

#[test]
fn penalised_logits_are_those_of_the_host() {
    let Some(device) = device() else { return };
    for vocabulary in [5, 1_000, 5_003] {
        let shape = KernelShape {
            vocabulary,
            ..SHAPE
        };
        let mut bench = Bench::new(&device, shape, 8);
        let logits = logit_rows(&mut bench, 6);
        let (mut rows, mut numbers, mut seen) = (Vec::new(), Vec::new(), Vec::new());
        let mut expected = Vec::new();
        // Some rows, not in order, one of which has seen nothing.
        for (row, outputs) in [(4, 3_000), (0, 0), (2, 40)] {
            let sampling = Sampling::GREEDY.with_repetition_penalty(1.0 + row as f32 / 3.0);
            let sampling = sampling.unwrap().with_frequency_penalty(0.3).unwrap();
            let sampling = sampling.with_presence_penalty(-0.7).unwrap();
            let mut history = History::of(&sampling, &[], outputs).unwrap();
            (0..outputs).for_each(|_| history.push(bench.below(vocabulary) as u32));
            let start = seen.len() as u32 / 2;
            seen.extend(history.seen().iter().flat_map(|s| [s.token, s.outputs]));
            rows.extend([row as u32, start, seen.len() as u32 / 2]);
            numbers.extend([sampling.repetition_penalty(), 0.3, -0.7]);
            let mut own = logits[row * vocabulary..][..vocabulary].to_vec();
            penalise_on_host(&mut own, &sampling, history.seen());
            expected.extend(own);
        }
        let how = Penalties {
            count: 3,
            rows: bench.put(&rows),
            numbers: bench.put::<f32>(&numbers),
            seen: bench.put(&seen),
        };
        let out = bench.put(&vec![0.0_f32; 3 * vocabulary]);
        bench.kernels.penalise(&bench.put(&logits), &how, &out);
        let finite = |logits: Vec<f32>| logits.into_iter().map(|x| x.max(-1e9)).collect::<Vec<_>>();
        let found = finite(bench.get::<f32>(&out));
        assert_close(&found, &finite(expected), "penalised logits");
        let tokens = bench.put(&[100_u32, 101, 102, 103, 104, 105]);
        bench
            .kernels
            .put_back(&bench.put(&[7_u32, 8, 9]), &how, &tokens);
        assert_eq!(bench.get::<u32>(&tokens), [8, 101, 9, 103, 7, 105]);
    }
}

#[test]
fn log_probabilities_are_those_of_the_host() {
    let Some(device) = device() else { return };
    for (vocabulary, wanted) in [(1, 1), (3, 20), (256, 5), (1_000, 20), (5_003, 20)] {
        let shape = KernelShape {
            vocabulary,
            ..SHAPE
        };
        let mut bench = Bench::new(&device, shape, 9);
        let mut logits = logit_rows(&mut bench, 5);
        if vocabulary == 1 {
            logits.fill(-3.0);
        }
        let chosen: Vec<u32> = (0..5).map(|_| bench.below(vocabulary) as u32).collect();
        let told_rows = [3_u32, 0, 4];
        let parts = TellParts {
            values: bench.put(&[0.0_f32; 3 * PARTS * FOUND]),
            places: bench.put(&[0_u32; 3 * PARTS * FOUND]),
            sums: bench.put(&[0.0_f32; 3 * PARTS]),
        };
        let out = bench.put(&[0_u32; 3 * TOLD_WORDS]);
        bench.kernels.tell(
            (&bench.put(&logits), &bench.put(&chosen)),
            (&bench.put(&told_rows), 3),
            wanted,
            &parts,
            &out,
        );
        let out = bench.get::<u32>(&out);
        for (told, row) in out.chunks_exact(TOLD_WORDS).zip(told_rows) {
            let row = row as usize;
            let token = TokenId::new(chosen[row]);
            let logits = &logits[row * vocabulary..][..vocabulary];
            let possible = |entry: &TokenLogprob| entry.logprob.is_finite();
            let expected: Vec<_> = logprobs(logits, token, wanted as u8).skip(1).collect();
            let expected: Vec<_> = expected.into_iter().filter(possible).collect();
            let mut found = told_entries(token, wanted as u8, told);
            let own = found.next().unwrap();
            let found: Vec<_> = found.collect();
            let ids = |all: &[TokenLogprob]| all.iter().map(|e| e.token.get()).collect::<Vec<_>>();
            assert_eq!(ids(&found), ids(&expected), "{vocabulary}");
            let numbers = |all: &[TokenLogprob]| all.iter().map(|e| e.logprob).collect::<Vec<_>>();
            assert_close(&numbers(&found), &numbers(&expected), "log-probabilities");
            let expected = logprobs(logits, token, 0).next().unwrap();
            let least = |entry: TokenLogprob| entry.logprob.max(-1e9);
            assert_close(&[least(own)], &[least(expected)], "its own");
        }
    }
}

/// What attention needs, on the host and on the device.
struct Paged {
    bench: Bench,
    /// `[positions, kv_heads, head_dim]` of each sequence.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    tables: Vec<Vec<u32>>,
    cache: Cache,
}

impl Paged {
    /// Sequences of these lengths, whose keys and values the rope kernel has written into shuffled
    /// blocks.
    fn new(
        device: &Device,
        shape: KernelShape,
        lengths: &[usize],
        norms: bool,
        bias: bool,
    ) -> Self {
        let mut bench = Bench::new(device, shape, 5 + lengths.len() as u64);
        let blocks_of = |length: usize| length.div_ceil(shape.block_size);
        let blocks = 1 + lengths.iter().copied().map(blocks_of).sum::<usize>();
        let mut free: Vec<u32> = (1..blocks as u32).collect();
        let mut tables = Vec::new();
        for &length in lengths {
            let take = |_| free.swap_remove(bench.below(free.len()));
            tables.push((0..blocks_of(length)).map(take).collect::<Vec<u32>>());
        }
        let elements = blocks * shape.kv_heads * shape.block_size * shape.head_dim;
        let garbage = vec![f32::NAN; elements];
        let cache = Cache {
            keys: bench.put(&garbage),
            values: bench.put(&garbage),
        };
        let mut paged = Self {
            bench,
            keys: Vec::new(),
            values: Vec::new(),
            tables,
            cache,
        };
        paged.write(lengths, norms, bias);
        paged
    }

    /// Also checks the queries.
    fn write(&mut self, lengths: &[usize], norms: bool, bias: bool) {
        let bench = &mut self.bench;
        let shape = bench.kernels.shape;
        let (dim, heads) = (shape.head_dim, shape.heads + 2 * shape.kv_heads);
        let rows: usize = lengths.iter().sum();
        let qkv = bench.random(rows * heads * dim);
        let (row_bias, angles) = (
            bench.random(heads * dim),
            bench.random(shape.context_max * dim),
        );
        let (query_norm, key_norm) = (bench.random(dim), bench.random(dim));
        let places = lengths
            .iter()
            .zip(&self.tables)
            .flat_map(|(&length, table)| {
                (0..length).map(|position| (position, table[position / shape.block_size] as usize))
            });
        let places: Vec<(usize, usize)> = places.collect();
        let mut words = vec![11_u32];
        words.extend(places.iter().map(|&(position, _)| position as u32));
        let slot = |&(position, block): &(usize, usize)| {
            (block * shape.block_size + position % shape.block_size) as u32
        };
        words.extend(places.iter().map(slot));
        let words = bench.put(&words);
        let inputs = Inputs {
            positions_at: 1,
            slots_at: 1 + rows,
            ..inputs(&words)
        };
        let put = [&qkv, &row_bias, &query_norm, &key_norm, &angles].map(|x| bench.put(x));
        let queries = bench.put(&vec![0.0_f32; rows * shape.heads * dim]);
        let from = RopeInputs {
            qkv: &put[0],
            bias: bias.then_some(&put[1]),
            norms: norms.then_some((&put[2], &put[3])),
            angles: &put[4],
        };
        bench
            .kernels
            .rope_write(&from, inputs, &queries, &self.cache, rows);

        let mut expected_queries = Vec::new();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (row, &(position, _)) in qkv.chunks(heads * dim).zip(&places) {
            for (index, head) in row.chunks(dim).enumerate() {
                let mut head = head.to_vec();
                if bias {
                    let bias = &row_bias[index * dim..][..dim];
                    head.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
                }
                let is_value = index >= shape.heads + shape.kv_heads;
                if norms && !is_value {
                    let weight = if index < shape.heads {
                        &query_norm
                    } else {
                        &key_norm
                    };
                    head = normed(&head, weight, 1e-5);
                }
                if !is_value {
                    let (cos, sin) = angles[position * dim..][..dim].split_at(dim / 2);
                    let (low, high) = head.split_at(dim / 2);
                    let pairs = low.iter().zip(high).zip(cos.iter().zip(sin));
                    let turned = pairs.map(|((a, b), (c, s))| (a * c - b * s, b * c + a * s));
                    let (low, high): (Vec<f32>, Vec<f32>) = turned.unzip();
                    head = [low, high].concat();
                }
                match index {
                    _ if index < shape.heads => expected_queries.extend(head),
                    _ if is_value => values.extend(head),
                    _ => keys.extend(head),
                }
            }
        }
        assert_close(&bench.get(&queries), &expected_queries, "queries");
        let per_row = shape.kv_heads * dim;
        let (mut keys, mut values) = (&keys[..], &values[..]);
        for length in lengths {
            let (own, rest) = keys.split_at(length * per_row);
            self.keys.push(own.to_vec());
            keys = rest;
            let (own, rest) = values.split_at(length * per_row);
            self.values.push(own.to_vec());
            values = rest;
        }
    }

    /// What a query of `sequence` at `position` sees, in f64.
    fn expected(&self, sequence: usize, position: usize, query: &[f32]) -> Vec<f32> {
        let shape = self.bench.kernels.shape;
        let (dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
        let row = shape.kv_heads * dim;
        let mut out = Vec::new();
        for (head, query) in query.chunks(dim).enumerate() {
            let at = head / group * dim;
            let score = |key: &[f32]| {
                let pairs = query.iter().zip(&key[at..at + dim]);
                let dot: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                (dot / (dim as f64).sqrt()).exp()
            };
            let visible = (position + 1) * row;
            let weights = self.keys[sequence][..visible].chunks(row).map(score);
            let weights: Vec<f64> = weights.collect();
            let sum: f64 = weights.iter().sum();
            for index in at..at + dim {
                let values = self.values[sequence].chunks(row).zip(&weights);
                let seen: f64 = values
                    .map(|(value, w)| w / sum * f64::from(value[index]))
                    .sum();
                out.push(seen as f32);
            }
        }
        out
    }

    fn partial(&self, rows: usize) -> Partial {
        let shape = self.bench.kernels.shape;
        let splits = rows * shape.heads * shape.splits_max();
        Partial {
            seen: self
                .bench
                .put(&vec![f32::NAN; (splits * shape.head_dim).max(4)]),
            sums: self.bench.put(&vec![f32::NAN; (splits * 2).max(1)]),
        }
    }

    /// The last position of every sequence, split over the context.
    fn check_split(&mut self, lengths: &[usize]) {
        let shape = self.bench.kernels.shape;
        let (rows, query_size) = (lengths.len(), shape.heads * shape.head_dim);
        let queries = self.bench.random(rows * query_size);
        let mut words: Vec<u32> = lengths.iter().map(|&length| length as u32 - 1).collect();
        let mut table = rows + 4 * rows;
        for (row, &length) in lengths.iter().enumerate() {
            words.extend([row as u32, 1, length as u32 - 1, table as u32]);
            table += self.tables[row].len();
        }
        words.extend(self.tables.iter().flatten());
        let words = self.bench.put(&words);
        let inputs = Inputs {
            units_at: rows,
            ..inputs(&words)
        };
        let out = self.bench.put(&vec![0.0_f32; rows * query_size]);
        let window = lengths.iter().max().unwrap() + 300;
        let window = window.min(shape.context_max);
        self.bench.kernels.attend_split(
            &self.bench.put(&queries),
            &self.cache,
            inputs,
            &out,
            &self.partial(rows),
            rows,
            window,
        );
        let found = self.bench.get::<f32>(&out);
        for (row, &length) in lengths.iter().enumerate() {
            let at = row * query_size..(row + 1) * query_size;
            let expected = self.expected(row, length - 1, &queries[at.clone()]);
            assert_close(
                &found[at],
                &expected,
                &format!("{shape:?}, length {length}"),
            );
        }
    }

    /// The positions of every sequence from `first` on, without splits.
    fn check_whole(&mut self, lengths: &[usize], first: usize) {
        let shape = self.bench.kernels.shape;
        let query_size = shape.heads * shape.head_dim;
        let counts: Vec<usize> = lengths.iter().map(|length| length - first).collect();
        let rows: usize = counts.iter().sum();
        let queries = self.bench.random(rows * query_size);
        let unit_rows = shape.unit_rows();
        let units: usize = counts.iter().map(|count| count.div_ceil(unit_rows)).sum();
        let (mut words, mut table, mut row) = (Vec::new(), 4 * units, 0);
        for (sequence, &count) in counts.iter().enumerate() {
            for start in (0..count).step_by(unit_rows) {
                let size = unit_rows.min(count - start);
                let numbers = [row + start, size, first + start, table];
                words.extend(numbers.map(|number| number as u32));
            }
            row += count;
            table += self.tables[sequence].len();
        }
        words.extend(self.tables.iter().flatten());
        let words = self.bench.put(&words);
        let out = self.bench.put(&vec![0.0_f32; rows * query_size]);
        self.bench.kernels.attend_whole(
            &self.bench.put(&queries),
            &self.cache,
            inputs(&words),
            &out,
            &self.partial(0),
            units,
        );
        let found = self.bench.get::<f32>(&out);
        let mut rows = queries.chunks(query_size).zip(found.chunks(query_size));
        for (sequence, &count) in counts.iter().enumerate() {
            for position in first..first + count {
                let (query, found) = rows.next().unwrap();
                let expected = self.expected(sequence, position, query);
                assert_close(found, &expected, &format!("{shape:?}, position {position}"));
            }
        }
    }
}

/// Heads of several models, and what they do not have: one KV head, one query head for each, heads
/// that 4 does not divide, blocks of one position.
const SHAPES: [KernelShape; 5] = [
    SHAPE,
    KernelShape {
        heads: 14,
        kv_heads: 2,
        head_dim: 64,
        block_size: 16,
        ..SHAPE
    },
    KernelShape {
        heads: 3,
        kv_heads: 3,
        head_dim: 6,
        block_size: 1,
        ..SHAPE
    },
    KernelShape {
        heads: 4,
        kv_heads: 1,
        head_dim: 128,
        block_size: 32,
        ..SHAPE
    },
    // Two chunks in a split.
    KernelShape {
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        context_max: 20_000,
        ..SHAPE
    },
];

#[test]
fn queries_keys_and_values_are_prepared_and_stored() {
    let Some(device) = device() else { return };
    for shape in SHAPES {
        for (norms, bias) in [(false, false), (true, false), (false, true), (true, true)] {
            let lengths = [5, 1, 17];
            let mut paged = Paged::new(&device, shape, &lengths, norms, bias);
            paged.check_split(&lengths);
        }
    }
}

#[test]
fn split_contexts_give_what_whole_ones_give() {
    let Some(device) = device() else { return };
    for shape in SHAPES {
        let lengths = [1, 127, 128, 129, 400, 256, 33, 257];
        let mut paged = Paged::new(&device, shape, &lengths, false, false);
        paged.check_split(&lengths);
    }
}

#[test]
fn chunks_of_prompts_see_what_is_before_them() {
    let Some(device) = device() else { return };
    for shape in SHAPES {
        for (lengths, first) in [(&[40, 3, 7][..], 0), (&[300, 131], 120), (&[200], 199)] {
            let mut paged = Paged::new(&device, shape, lengths, false, false);
            paged.check_whole(lengths, first);
        }
    }
}
