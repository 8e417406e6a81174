//! A decoder on a GPU: the kernels of this module, and Burn's matrix products where rows are many, over buffers that are
//! made once.
//!
//! A step is one transfer of its words, a fixed sequence of launches and one read of the chosen
//! tokens. A decode step whose bucket was recorded is one launch instead, of the recorded graph.

use std::collections::BTreeMap;
use std::fmt;

use burn_cubecl::CubeDevice;
use burn_std::id::StreamId;
use cubecl::bytes::Bytes;
use cubecl::server::Handle;
use cubecl::std::throughput::measure_peak_throughput;
use cubecl::throughput::{MemoryAccess, ThroughputKey, ThroughputMode};
use serve_core::{Limits, Logprobs, Sampling, TokenId};

use super::float::Float;
use super::graph::{Graph, record};
use super::kernels::{Buffer, Cache, KernelShape, Kernels};
use super::machine::Gpu;
use super::memory::{Buffers, Matrix, Memory, Room};
use crate::config::ModelConfig;
use crate::decode::{
    Batch, Bucket, Buckets, DecoderDevice, DeviceError, Draws, History, Layout, Logits, RopeTable,
    WINDOW_MIN,
};
use crate::weights::{DecoderWeights, TensorSource, WeightsError};

/// A decoder on a GPU.
pub(crate) struct GpuDevice {
    /// First, as they point into the buffers.
    graphs: BTreeMap<Bucket, Graph>,
    pub(super) buffers: Buffers,
    pub(super) weights: DecoderWeights<Matrix, Buffer>,
    pub(super) caches: Vec<Cache>,
    pub(super) angles: Buffer,
    pub(super) kernels: Kernels,
    pub(super) memory: Memory,
    /// All work goes here, whichever thread asks for it, so that it stays in order.
    stream: StreamId,
    pub(super) tuned: bool,
    /// Whether products of few rows are this module's own.
    pub(super) own_products: bool,
    recording: Recording,
    buckets: Buckets,
    pub(super) layout: Layout,
    pub(super) bucket: Bucket,
    /// Whether `buffers.delta` is still to be added to the residual stream.
    pub(super) pending: bool,
}

impl fmt::Debug for GpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuDevice")
            .field("device", &self.memory.device)
            .field("float", &self.memory.float)
            .field("room", &self.buffers.room)
            .field("graphs", &self.graphs.len())
            .finish_non_exhaustive()
    }
}

/// What a decoder on a GPU is made of.
pub(crate) struct GpuParts<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) float: Float,
    pub(crate) config: &'a ModelConfig,
    pub(crate) limits: &'a Limits,
    pub(crate) source: &'a dyn TensorSource,
    /// Whether decode steps are recorded and replayed.
    pub(crate) graphs: bool,
    /// Whether products of few rows are Burn's, of which a GPU decides by timing which is used.
    pub(crate) tuned_decode: bool,
}

/// What becomes of decode steps.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Recording {
    /// Each operation is launched.
    Off,
    /// A step is recorded when it is first met, and replayed from then on.
    On,
    /// The same as off: the device would not record.
    Refused(DeviceError),
}

impl GpuDevice {
    /// Reads all weights onto the device and makes the cache and the buffers of a step. `progress` is
    /// told the bytes read so far.
    ///
    /// # Errors
    ///
    /// [`WeightsError`], naming the tensor.
    pub(crate) fn load(
        parts: &GpuParts<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, WeightsError> {
        let stream = StreamId::current();
        let GpuParts { config, limits, .. } = parts;
        let shape = KernelShape {
            hidden: config.hidden_size,
            middle: config.intermediate_size,
            vocabulary: config.vocab_size,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            block_size: limits.block_size as usize,
            context_max: limits.context_max as usize,
        };
        let device = &parts.gpu.device;
        let client = device.client();
        let mut memory = Memory {
            client: client.clone(),
            device: device.clone(),
            float: parts.float,
        };
        let weights = DecoderWeights::load(config, parts.source, &mut memory, progress)?;
        let cache = |_| memory.cache(&shape, limits.blocks as usize);
        let caches = (0..config.layers).map(cache).collect();
        let table = RopeTable::new(&config.rope, config.head_dim, limits.context_max);
        let angles = memory.numbers(table.into_angles());
        let buckets = Buckets::new(limits);
        let buffers = Buffers::new(&memory, &shape, room(&buckets, limits, &shape));
        Ok(Self {
            graphs: BTreeMap::new(),
            buffers,
            weights,
            caches,
            angles,
            kernels: Kernels {
                client,
                shape,
                element: parts.float.element(),
                eps: config.rms_norm_eps,
            },
            tuned: matches!(device, CubeDevice::Cuda(_)),
            own_products: matches!(device, CubeDevice::Cuda(_)) && !parts.tuned_decode,
            memory,
            stream,
            recording: match parts.graphs {
                true => Recording::On,
                false => Recording::Off,
            },
            buckets,
            layout: Layout::default(),
            bucket: Bucket {
                rows: 0,
                wanted: 0,
                window: None,
            },
            pending: false,
        })
    }

    /// Takes a batch in: its words go to the device.
    fn take(&mut self, batch: &Batch) {
        let shape = &self.kernels.shape;
        let (block_size, unit_rows) = (shape.block_size, shape.unit_rows());
        self.bucket = self
            .layout
            .fill(batch, &self.buckets, block_size, unit_rows);
        let words = self.layout.words();
        let needed = Room {
            rows: self.bucket.rows,
            wanted: self.bucket.wanted,
            split_rows: self.bucket.window.map_or(0, |_| self.bucket.rows),
            words: words.len(),
        };
        if !self.buffers.room.holds(&needed) {
            // A check that wants the logits of a whole prompt. Graphs point into the old buffers.
            self.graphs.clear();
            let room = self.buffers.room.and(&needed);
            self.buffers = Buffers::new(&self.memory, shape, room);
        }
        let bytes = Bytes::from_elems(words.to_vec());
        self.memory.client.write(&self.buffers.words.handle, bytes);
        self.pending = false;
    }

    /// Waits for all work.
    fn sync(&self) -> Result<(), DeviceError> {
        let done = cubecl::future::block_on(self.memory.client.sync());
        done.map_err(|error| DeviceError::new(&error))
    }

    /// The first bytes of a buffer.
    pub(super) fn start_of(&self, buffer: &Buffer, bytes: usize) -> Handle {
        let handle = buffer.handle.clone();
        let rest = handle.size_in_used().saturating_sub(bytes as u64);
        handle.offset_end(rest)
    }

    /// A batch of a bucket in the null block.
    fn padding(&self, bucket: Bucket) -> Batch {
        let context = self.kernels.shape.context_max;
        let blocks = |positions: usize| {
            let count = positions.div_ceil(self.kernels.shape.block_size);
            std::iter::repeat_n(0, count)
        };
        let mut batch = Batch::new();
        match bucket.window {
            Some(window) => {
                let last = window.min(context) - 1;
                batch.push(&[0], last as u32, blocks(last + 1), Logits::Last);
                for _ in 1..bucket.rows {
                    batch.push(&[0], 0, blocks(1), Logits::Last);
                }
            }
            None => {
                let mut left = bucket.rows;
                while left > 0 {
                    let rows = left.min(context);
                    left -= rows;
                    let logits = if left == 0 {
                        Logits::Last
                    } else {
                        Logits::None
                    };
                    batch.push(&vec![0; rows], 0, blocks(rows), logits);
                }
            }
        }
        batch
    }

    /// Records the launches of a decode step, if decode steps are to be recorded and this one has not
    /// been. It is rehearsed in the null block, so no request is the worse for it.
    fn record(&mut self, bucket: Bucket, layers: usize) {
        let wanted = self.recording == Recording::On && bucket.window.is_some();
        if !wanted || self.graphs.contains_key(&bucket) {
            return;
        }
        let batch = self.padding(bucket);
        self.take(&batch);
        let client = self.memory.client.clone();
        let recorded = record(
            &client,
            self,
            |device| {
                device.launch(layers)?;
                device.sync()
            },
            |device| device.launch(layers),
        );
        match recorded {
            Ok(graph) => {
                self.graphs.insert(bucket, graph);
            }
            Err(error) => self.recording = Recording::Refused(error),
        }
    }

    /// Runs every kernel that steps under the limits need, so that none is compiled, tuned or recorded
    /// while a request waits. `progress` is told how many of how many steps were run.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] when the device fails.
    pub(crate) fn warm(
        &mut self,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), DeviceError> {
        let stream = self.stream;
        let layers = self.weights.layers.len();
        let mut all = self.buckets.decode();
        all.extend(self.buckets.prefill());
        let total = all.len();
        let kinds = [self.buckets.decode(), self.buckets.prefill()];
        for bucket in kinds.iter().filter_map(|buckets| buckets.first()) {
            stream.executes(|| self.try_out(*bucket))?;
        }
        for (index, bucket) in all.into_iter().enumerate() {
            let batch = self.padding(bucket);
            stream.executes(|| {
                self.run(layers, &batch)?;
                self.sync()
            })?;
            progress(index + 1, total);
        }
        stream.executes(|| self.warm_draws())
    }

    /// Runs one layer of a step and reads a token of it. A kernel that does not compile is an error here and now: neither
    /// launches nor waits report it, only reading what it should have written does.
    fn try_out(&mut self, bucket: Bucket) -> Result<(), DeviceError> {
        let batch = self.padding(bucket);
        self.take(&batch);
        self.launch(1)?;
        let token = self.start_of(&self.buffers.tokens, size_of::<u32>());
        let read = self.memory.client.read_one(token);
        read.map(drop).map_err(|error| DeviceError::new(&error))
    }

    /// Chooses a token in all ways from what the last step has left.
    fn warm_draws(&self) -> Result<(), DeviceError> {
        let drawn = Sampling::GREEDY.with_temperature(1.0).unwrap_or_default();
        let penalised = drawn.with_presence_penalty(1.0).unwrap_or_default();
        for sampling in [drawn, penalised] {
            let mut draws = Draws::new();
            let history = History::of(&sampling, &[], 0);
            draws.push(sampling, 0, history.as_ref(), Some(0));
            self.choose(&draws, &mut Vec::new(), &mut Logprobs::new())?;
        }
        Ok(())
    }

    /// Decode steps that were recorded.
    pub(crate) fn graphs(&self) -> usize {
        self.graphs.len()
    }

    /// Why decode steps are not recorded, if they were to be.
    pub(crate) fn refused(&self) -> Option<&DeviceError> {
        match &self.recording {
            Recording::Refused(error) => Some(error),
            Recording::Off | Recording::On => None,
        }
    }

    fn run(&mut self, layers: usize, batch: &Batch) -> Result<(), DeviceError> {
        if batch.tokens().is_empty() {
            return Ok(());
        }
        let bucket = self.buckets.of(batch);
        self.record(bucket, layers);
        self.take(batch);
        match self.graphs.get(&bucket) {
            Some(graph) => graph.replay(),
            None => self.launch(layers),
        }
    }

    fn read_logits(&self, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        let wanted = self.layout.wanted_unpadded();
        let numbers = wanted * self.kernels.shape.vocabulary;
        let float = self.memory.float;
        let logits = self.start_of(&self.buffers.logits, numbers * float.bytes());
        let read = self.memory.client.read_one(logits);
        let bytes = read.map_err(|error| DeviceError::new(&error))?;
        float.decode(&bytes, out);
        Ok(())
    }
}

/// What the steps of a scheduler under these limits need at most.
fn room(buckets: &Buckets, limits: &Limits, shape: &KernelShape) -> Room {
    let largest = |all: Vec<Bucket>| all.iter().map(|bucket| bucket.rows).max().unwrap_or(1);
    let split_rows = largest(buckets.decode());
    let rows = largest(buckets.prefill()).max(split_rows);
    let window = shape.context_max.next_multiple_of(shape.split());
    let blocks = (window + WINDOW_MIN).div_ceil(limits.block_size as usize);
    Room {
        rows,
        wanted: split_rows,
        split_rows,
        words: 8 * rows + split_rows * (blocks + 1),
    }
}

impl DecoderDevice for GpuDevice {
    fn embed(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let stream = self.stream;
        stream.executes(|| {
            self.take(batch);
            self.launch_embed();
        });
        Ok(())
    }

    fn project_qkv(&mut self, layer: usize, _batch: &Batch) -> Result<(), DeviceError> {
        let stream = self.stream;
        stream.executes(|| self.launch_qkv(layer))
    }

    fn attend(&mut self, layer: usize, _batch: &Batch) -> Result<(), DeviceError> {
        let stream = self.stream;
        stream.executes(|| self.launch_attend(layer));
        Ok(())
    }

    fn project_output(&mut self, layer: usize, _batch: &Batch) -> Result<(), DeviceError> {
        let stream = self.stream;
        stream.executes(|| self.launch_output(layer))
    }

    fn feed_forward(&mut self, layer: usize, _batch: &Batch) -> Result<(), DeviceError> {
        let stream = self.stream;
        stream.executes(|| self.launch_feed_forward(layer))
    }

    fn head(&mut self, _batch: &Batch) -> Result<(), DeviceError> {
        let stream = self.stream;
        stream.executes(|| self.launch_head())
    }

    fn sample(
        &mut self,
        draws: &Draws,
        tokens: &mut Vec<TokenId>,
        logprobs: &mut Logprobs,
    ) -> Result<(), DeviceError> {
        if draws.is_empty() {
            return Ok(());
        }
        let stream = self.stream;
        stream.executes(|| self.choose(draws, tokens, logprobs))
    }

    fn logits(&mut self, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        let stream = self.stream;
        stream.executes(|| self.read_logits(out))
    }

    fn bandwidth(&mut self) -> Result<Option<f64>, DeviceError> {
        let mode = ThroughputMode::memory(MemoryAccess::Read);
        let key = ThroughputKey { mode };
        let measured = measure_peak_throughput(&self.memory.client, key);
        Ok(measured.ok().map(|peak| peak.bytes_per_s(&key)))
    }

    fn forward(&mut self, layers: usize, batch: &Batch) -> Result<(), DeviceError> {
        let stream = self.stream;
        stream.executes(|| self.run(layers, batch))
    }
}
