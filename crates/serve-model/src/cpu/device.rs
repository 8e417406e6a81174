//! The decoder in host memory: a [`DecoderDevice`] in plain Rust on the crate's own kernels.
//!
//! Nothing is allocated in a step that is no larger than one before it.

use std::fmt;
use std::num::NonZeroUsize;

use serve_core::{Logprobs, TokenId};

use super::attention::{Attention, Prepare, Units};
use super::kernels::{Instructions, Kernel, Lanes, Layout, Matrix, Packed, ReadSpeed, Team};
use super::memory::CpuMemory;
use crate::config::ModelConfig;
use crate::decode::{
    Batch, DecoderDevice, DeviceError, Draws, KvPool, KvShape, RopeTable, Sampler,
};
use crate::numbers::{Precision, Quantization};
use crate::weights::{DecoderWeights, LayerWeights, TensorSource, WeightsError};

/// A decoder on the processor's cores.
pub struct CpuDevice {
    weights: DecoderWeights<Matrix, Vec<f32>>,
    shape: Shape,
    pool: KvPool,
    rope: RopeTable,
    instructions: Instructions,
    precision: Precision,
    team: Team,
    buffers: Buffers,
    sampler: Sampler,
}

/// How a [`CpuDevice`] works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Makes matrices smaller; without it they stay as they are stored.
    pub quantization: Option<Quantization>,
    /// Instructions that the kernels use: the fastest, unless they are being compared.
    pub instructions: Instructions,
    /// Threads that share the work; without it as many as there are cores, or `RAYON_NUM_THREADS`.
    pub threads: Option<NonZeroUsize>,
}

/// What the arithmetic needs to know of a configuration.
#[derive(Clone, Copy, Debug)]
struct Shape {
    hidden: usize,
    middle: usize,
    vocabulary: usize,
    query_heads: usize,
    query: usize,
    qkv: usize,
    eps: f32,
}

/// Buffers of a step, row by row; they grow to the largest step and stay.
#[derive(Debug, Default)]
struct Buffers {
    /// `[rows, hidden]`
    residual: Vec<f32>,
    /// Inputs of the product that is next.
    packed: Packed,
    /// `[rows, queries, keys and values]`
    qkv: Vec<f32>,
    /// `[rows, heads * head_dim]`
    seen: Vec<f32>,
    /// `[rows, 2 * intermediate]`
    gated: Vec<f32>,
    /// `[wanted rows, vocabulary]`
    logits: Vec<f32>,
    /// Of the logits.
    wanted: usize,
    units: Units,
}

impl fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuDevice")
            .field("shape", &self.shape)
            .field("kv", self.pool.shape())
            .field("instructions", &self.instructions)
            .field("threads", &self.team.threads())
            .finish_non_exhaustive()
    }
}

impl CpuDevice {
    /// Reads all weights and makes the cache: `kv` blocks for positions up to `context_max`. The
    /// factors of matrix products are rounded to `precision`, which goes with the
    /// [quantisation](Precision::with); sums, what lies between the products and the cache have 32 bits
    /// in any case. `progress` is told the bytes read so far.
    ///
    /// # Errors
    ///
    /// [`WeightsError`], naming the tensor.
    pub fn load(
        config: &ModelConfig,
        source: &dyn TensorSource,
        kv: KvShape,
        context_max: u32,
        precision: Precision,
        options: CpuOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, WeightsError> {
        let CpuOptions {
            quantization,
            instructions,
            threads,
        } = options;
        let threads = threads.map_or_else(rayon::current_num_threads, NonZeroUsize::get);
        let team = Team::new(threads);
        let mut memory = CpuMemory {
            quantization,
            precision,
            read: None,
        };
        Ok(Self {
            weights: DecoderWeights::load(config, source, &mut memory, progress)?,
            shape: Shape {
                hidden: config.hidden_size,
                middle: config.intermediate_size,
                vocabulary: config.vocab_size,
                query_heads: config.heads,
                query: config.query_size(),
                qkv: config.query_size() + 2 * config.kv_size(),
                eps: config.rms_norm_eps,
            },
            pool: KvPool::new(kv),
            rope: RopeTable::new(&config.rope, config.head_dim, context_max),
            instructions,
            precision,
            team,
            buffers: Buffers::default(),
            sampler: Sampler::new(),
        })
    }

    /// Threads that share the work.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    fn layout(&self) -> Layout {
        self.instructions.layout(self.precision)
    }
}

impl DecoderDevice for CpuDevice {
    fn embed(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let (rows, shape) = (batch.tokens().len(), &self.shape);
        let buffers = &mut self.buffers;
        grow(&mut buffers.residual, rows * shape.hidden);
        grow(&mut buffers.qkv, rows * shape.qkv);
        grow(&mut buffers.seen, rows * shape.query);
        grow(&mut buffers.gated, rows * 2 * shape.middle);
        let residual = buffers.residual.chunks_exact_mut(shape.hidden);
        for (&token, row) in batch.tokens().iter().zip(residual) {
            self.weights.embedding.copy_row(token as usize, row);
        }
        buffers
            .units
            .lay_out(batch, self.pool.shape(), shape.query_heads);
        Ok(())
    }

    fn project_qkv(&mut self, layer: usize, batch: &Batch) -> Result<(), DeviceError> {
        let (rows, shape) = (batch.tokens().len(), self.shape);
        let LayerWeights {
            attention_norm,
            qkv,
            head_norms,
            ..
        } = &self.weights.layers[layer];
        let layout = self.layout();
        let buffers = &mut self.buffers;
        self.instructions.run(PackNormed {
            rows: buffers.residual[..rows * shape.hidden].chunks_exact(shape.hidden),
            weight: attention_norm,
            eps: shape.eps,
            layout,
            packed: &mut buffers.packed,
        });
        let on = (self.instructions, &mut self.team);
        let out = &mut buffers.qkv[..rows * shape.qkv];
        qkv.weight
            .multiply(on, &buffers.packed, qkv.bias.as_deref(), false, out);
        let prepare = Prepare {
            rope: &self.rope,
            norms: head_norms.as_ref(),
            eps: shape.eps,
            dim: self.pool.shape().head_dim,
            query_heads: shape.query_heads,
            heads: shape.query_heads + self.pool.shape().heads,
        };
        prepare.all(
            (self.instructions, &mut self.team),
            out,
            batch.positions(),
            &buffers.units,
        );
        self.pool.write_batch(layer, batch, out, shape.query);
        Ok(())
    }

    fn attend(&mut self, layer: usize, batch: &Batch) -> Result<(), DeviceError> {
        let (rows, shape) = (batch.tokens().len(), self.shape);
        let attention = Attention {
            pool: &self.pool,
            layer,
            batch,
            qkv: &self.buffers.qkv[..rows * shape.qkv],
            row_size: shape.qkv,
            query_heads: shape.query_heads,
        };
        let seen = &mut self.buffers.seen[..rows * shape.query];
        let on = (self.instructions, &mut self.team);
        attention.all(on, &self.buffers.units, seen);
        Ok(())
    }

    fn project_output(&mut self, layer: usize, batch: &Batch) -> Result<(), DeviceError> {
        let (rows, shape) = (batch.tokens().len(), self.shape);
        let layout = self.layout();
        let output = &self.weights.layers[layer].output;
        let buffers = &mut self.buffers;
        let packed = &mut buffers.packed;
        self.instructions.run(PackSeen {
            rows: &buffers.seen[..rows * shape.query],
            columns: shape.query,
            layout,
            packed,
        });
        let on = (self.instructions, &mut self.team);
        let out = &mut buffers.residual[..rows * shape.hidden];
        output
            .weight
            .multiply(on, packed, output.bias.as_deref(), true, out);
        Ok(())
    }

    fn feed_forward(&mut self, layer: usize, batch: &Batch) -> Result<(), DeviceError> {
        let (rows, shape) = (batch.tokens().len(), self.shape);
        let LayerWeights {
            mlp_norm,
            gate_up,
            down,
            ..
        } = &self.weights.layers[layer];
        let layout = self.layout();
        let buffers = &mut self.buffers;
        self.instructions.run(PackNormed {
            rows: buffers.residual[..rows * shape.hidden].chunks_exact(shape.hidden),
            weight: mlp_norm,
            eps: shape.eps,
            layout,
            packed: &mut buffers.packed,
        });
        let gated = &mut buffers.gated[..rows * 2 * shape.middle];
        let on = (self.instructions, &mut self.team);
        gate_up
            .weight
            .multiply_gated(on, &buffers.packed, gate_up.bias.as_deref(), gated);
        self.instructions.run(PackGated {
            rows: gated,
            columns: shape.middle,
            layout,
            packed: &mut buffers.packed,
        });
        let on = (self.instructions, &mut self.team);
        let out = &mut buffers.residual[..rows * shape.hidden];
        down.weight
            .multiply(on, &buffers.packed, down.bias.as_deref(), true, out);
        Ok(())
    }

    fn head(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let shape = self.shape;
        let layout = self.layout();
        let buffers = &mut self.buffers;
        buffers.wanted = batch.logit_rows().len();
        let logits = buffers.wanted * shape.vocabulary;
        grow(&mut buffers.logits, logits);
        let residual = &buffers.residual;
        let row = |&row: &u32| &residual[row as usize * shape.hidden..][..shape.hidden];
        self.instructions.run(PackNormed {
            rows: batch.logit_rows().iter().map(row),
            weight: &self.weights.norm,
            eps: shape.eps,
            layout,
            packed: &mut buffers.packed,
        });
        let head = self.weights.head.as_ref();
        let head = head.unwrap_or(&self.weights.embedding);
        let on = (self.instructions, &mut self.team);
        let out = &mut buffers.logits[..logits];
        head.multiply(on, &buffers.packed, None, false, out);
        Ok(())
    }

    fn sample(
        &mut self,
        draws: &Draws,
        tokens: &mut Vec<TokenId>,
        logprobs: &mut Logprobs,
    ) -> Result<(), DeviceError> {
        let rows = self.buffers.logits.chunks_exact(self.shape.vocabulary);
        let rows = rows.take(self.buffers.wanted);
        self.sampler.sample_all(rows, draws, tokens, logprobs);
        Ok(())
    }

    fn logits(&mut self, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        let logits = self.buffers.wanted * self.shape.vocabulary;
        out.extend_from_slice(&self.buffers.logits[..logits]);
        Ok(())
    }

    fn bandwidth(&mut self) -> Result<Option<f64>, DeviceError> {
        // More than caches hold; the fastest pass counts, since others only disturb.
        const BYTES: usize = 512 << 20;
        const PASSES: usize = 7;
        let mut speed = ReadSpeed::new(BYTES, self.instructions, self.team.threads());
        let passes = (0..PASSES).map(|_| speed.measure());
        Ok(passes.reduce(f64::max))
    }
}

/// Packs normed rows for a product.
struct PackNormed<'a, R> {
    rows: R,
    weight: &'a [f32],
    eps: f32,
    layout: Layout,
    packed: &'a mut Packed,
}

impl<'a, R: ExactSizeIterator<Item = &'a [f32]>> Kernel for PackNormed<'_, R> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let columns = self.weight.len();
        self.packed.start(self.rows.len(), columns, self.layout);
        for (input, row) in self.rows.enumerate() {
            self.packed.set_normed(input, row, self.weight, self.eps);
        }
    }
}

/// Packs what the heads saw.
struct PackSeen<'a> {
    /// `[rows, columns]`
    rows: &'a [f32],
    columns: usize,
    layout: Layout,
    packed: &'a mut Packed,
}

impl Kernel for PackSeen<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let rows = self.rows.chunks_exact(self.columns);
        self.packed.start(rows.len(), self.columns, self.layout);
        for (input, row) in rows.enumerate() {
            self.packed.set(input, row);
        }
    }
}

/// Packs gated rows.
struct PackGated<'a> {
    /// `[rows, 2 * columns]`
    rows: &'a [f32],
    columns: usize,
    layout: Layout,
    packed: &'a mut Packed,
}

impl Kernel for PackGated<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let rows = self.rows.chunks_exact(2 * self.columns);
        self.packed.start(rows.len(), self.columns, self.layout);
        for (input, row) in rows.enumerate() {
            let run = Matrix::GATED_RUN;
            self.packed.set_every_other(input, row, run);
        }
    }
}

fn grow(buffer: &mut Vec<f32>, size: usize) {
    if buffer.len() < size {
        buffer.resize(size, 0.0);
    }
}
