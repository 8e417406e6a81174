//! The decoder on Burn's own tensor operations: a [`DecoderDevice`] for every device that Burn has.
//!
//! It is the plain version: nothing is fused, keys and values are gathered for each sequence, and
//! every operation makes a new tensor. Faster devices are compared with it, and it shares their
//! padded layout.

use std::fmt;

use burn::tensor::{Device, IndexingUpdateOp, Tensor, TensorData};
use serve_core::{Limits, Logprobs, TokenId};

use crate::config::ModelConfig;
use crate::decode::{
    Batch, Buckets, DecoderDevice, DeviceError, Draws, Layout, RopeTable, Sampler,
};
use crate::weights::{DecoderWeights, Place, Role, Rows, TensorSource, WeightsError};

use super::operations::{attend, gate, indices, linear, norm_heads, rms_norm, rotate};

/// A decoder of Burn's tensors, in f32.
pub(crate) struct FlexDevice {
    config: ModelConfig,
    device: Device,
    weights: DecoderWeights<Tensor<2>, Tensor<1>>,
    caches: Vec<Cache>,
    /// `[positions, head_dim]`: cosines, then sines.
    angles: Tensor<2>,
    block_size: usize,
    buckets: Buckets,
    layout: Layout,
    /// `[rows, hidden]`
    residual: Tensor<2>,
    /// `[rows, heads, head_dim]`
    queries: Tensor<3>,
    /// `[rows, heads * head_dim]`
    seen: Tensor<2>,
    /// Of the wanted rows.
    logits: Vec<f32>,
    sampler: Sampler,
}

/// Keys and values of one layer, `[blocks * block_size, kv_heads, head_dim]`.
struct Cache {
    keys: Tensor<3>,
    values: Tensor<3>,
}

impl fmt::Debug for FlexDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlexDevice")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl FlexDevice {
    /// Reads all weights onto `device` and makes the cache of `limits.blocks` blocks. `progress` is
    /// told the bytes read so far.
    ///
    /// # Errors
    ///
    /// [`WeightsError`], naming the tensor.
    pub(crate) fn load(
        config: &ModelConfig,
        source: &dyn TensorSource,
        limits: &Limits,
        device: &Device,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, WeightsError> {
        let weights = DecoderWeights::load(config, source, &mut OnDevice(device), progress)?;
        let slots = (limits.blocks * limits.block_size) as usize;
        let cache = || Tensor::zeros([slots, config.kv_heads, config.head_dim], device);
        let caches = (0..config.layers).map(|_| Cache {
            keys: cache(),
            values: cache(),
        });
        let table = RopeTable::new(&config.rope, config.head_dim, limits.context_max);
        let angles = TensorData::new(
            table.into_angles(),
            [limits.context_max as usize, config.head_dim],
        );
        Ok(Self {
            weights,
            caches: caches.collect(),
            angles: Tensor::from_data(angles, device),
            block_size: limits.block_size as usize,
            buckets: Buckets::new(limits),
            layout: Layout::default(),
            residual: Tensor::empty([0, config.hidden_size], device),
            queries: Tensor::empty([0, config.heads, config.head_dim], device),
            seen: Tensor::empty([0, config.query_size()], device),
            logits: Vec::new(),
            sampler: Sampler::new(),
            config: config.clone(),
            device: device.clone(),
        })
    }

    fn words(&self, start: usize, count: usize) -> impl Iterator<Item = u32> {
        self.layout.words()[start..start + count].iter().copied()
    }

    /// The slots of a sequence's first positions.
    fn slots(&self, blocks: &[u32], positions: usize) -> impl Iterator<Item = u32> {
        let size = self.block_size as u32;
        let all = blocks
            .iter()
            .flat_map(move |block| block * size..(block + 1) * size);
        all.take(positions)
    }

    fn normed(&self, weight: &Tensor<1>) -> Tensor<2> {
        rms_norm(self.residual.clone(), weight, self.config.rms_norm_eps)
    }
}

impl DecoderDevice for FlexDevice {
    fn embed(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        self.layout.fill(batch, &self.buckets, self.block_size, 1);
        let tokens = self.words(self.layout.tokens_at, self.layout.rows());
        let tokens = indices(tokens, &self.device);
        self.residual = self.weights.embedding.clone().select(0, tokens);
        Ok(())
    }

    fn project_qkv(&mut self, layer: usize, _batch: &Batch) -> Result<(), DeviceError> {
        let (rows, config) = (self.layout.rows(), &self.config);
        let (heads, kv_heads, dim) = (config.heads, config.kv_heads, config.head_dim);
        let weights = &self.weights.layers[layer];
        let qkv = linear(
            self.normed(&weights.attention_norm),
            &weights.qkv.weight,
            weights.qkv.bias.as_ref(),
        );
        let all = qkv.reshape([rows, heads + 2 * kv_heads, dim]);
        let mut queries = all.clone().narrow(1, 0, heads);
        let mut keys = all.clone().narrow(1, heads, kv_heads);
        let values = all.narrow(1, heads + kv_heads, kv_heads);
        if let Some(norms) = &weights.head_norms {
            queries = norm_heads(queries, &norms.query, config.rms_norm_eps);
            keys = norm_heads(keys, &norms.key, config.rms_norm_eps);
        }
        let positions = self.words(self.layout.positions_at, rows);
        let angles = self
            .angles
            .clone()
            .select(0, indices(positions, &self.device));
        self.queries = rotate(queries, &angles);
        let keys = rotate(keys, &angles);
        let slots = indices(self.words(self.layout.slots_at, rows), &self.device);
        let slots = slots.reshape([rows, 1]);
        let cache = &mut self.caches[layer];
        let write = |into: &Tensor<3>, what| {
            let into = into.clone();
            into.scatter_nd(slots.clone(), what, IndexingUpdateOp::Assign)
        };
        cache.keys = write(&cache.keys, keys);
        cache.values = write(&cache.values, values);
        Ok(())
    }

    fn attend(&mut self, layer: usize, batch: &Batch) -> Result<(), DeviceError> {
        let cache = &self.caches[layer];
        let mut seen = Vec::with_capacity(batch.sequences().len() + 1);
        for sequence in batch.sequences() {
            let (start, rows) = (sequence.start as usize, sequence.rows.len());
            let slots = self.slots(batch.blocks(sequence), start + rows);
            let slots = indices(slots, &self.device);
            seen.push(attend(
                self.queries.clone().narrow(0, sequence.rows.start, rows),
                cache.keys.clone().select(0, slots.clone()),
                cache.values.clone().select(0, slots),
                start,
                &self.device,
            ));
        }
        let padding = self.layout.rows() - batch.tokens().len();
        if padding > 0 {
            let shape = [padding, self.config.query_size()];
            seen.push(Tensor::zeros(shape, &self.device));
        }
        self.seen = Tensor::cat(seen, 0);
        Ok(())
    }

    fn project_output(&mut self, layer: usize, _batch: &Batch) -> Result<(), DeviceError> {
        let output = &self.weights.layers[layer].output;
        let delta = linear(self.seen.clone(), &output.weight, output.bias.as_ref());
        self.residual = self.residual.clone() + delta;
        Ok(())
    }

    fn feed_forward(&mut self, layer: usize, _batch: &Batch) -> Result<(), DeviceError> {
        let weights = &self.weights.layers[layer];
        let (gate_up, down) = (&weights.gate_up, &weights.down);
        let x = self.normed(&weights.mlp_norm);
        let gated = gate(linear(x, &gate_up.weight, gate_up.bias.as_ref()));
        let delta = linear(gated, &down.weight, down.bias.as_ref());
        self.residual = self.residual.clone() + delta;
        Ok(())
    }

    fn head(&mut self, _batch: &Batch) -> Result<(), DeviceError> {
        let wanted = self.words(self.layout.wanted_at, self.layout.wanted());
        let rows = self
            .residual
            .clone()
            .select(0, indices(wanted, &self.device));
        let x = rms_norm(rows, &self.weights.norm, self.config.rms_norm_eps);
        let head = self.weights.head.as_ref();
        let logits = linear(x, head.unwrap_or(&self.weights.embedding), None);
        let data = logits.try_into_data().map_err(|e| DeviceError::new(&e))?;
        let numbers = data.as_slice::<f32>().map_err(|e| DeviceError::new(&e))?;
        let unpadded = self.layout.wanted_unpadded() * self.config.vocab_size;
        self.logits.clear();
        self.logits.extend_from_slice(&numbers[..unpadded]);
        Ok(())
    }

    fn sample(
        &mut self,
        draws: &Draws,
        tokens: &mut Vec<TokenId>,
        logprobs: &mut Logprobs,
    ) -> Result<(), DeviceError> {
        let rows = self.logits.chunks_exact(self.config.vocab_size);
        self.sampler.sample_all(rows, draws, tokens, logprobs);
        Ok(())
    }

    fn logits(&mut self, out: &mut Vec<f32>) -> Result<(), DeviceError> {
        out.extend_from_slice(&self.logits);
        Ok(())
    }
}

/// Makes tensors on a device.
struct OnDevice<'a>(&'a Device);

impl Place for OnDevice<'_> {
    type Matrix = Tensor<2>;
    type Vector = Tensor<1>;

    fn matrix(&mut self, _role: Role, rows: &mut Rows<'_>) -> Result<Tensor<2>, WeightsError> {
        let shape = [rows.count(), rows.columns()];
        let numbers = rows.read_all()?.into_f32();
        Ok(Tensor::from_data(TensorData::new(numbers, shape), self.0))
    }

    fn vector(&mut self, elements: Vec<f32>) -> Tensor<1> {
        let count = elements.len();
        Tensor::from_data(TensorData::new(elements, [count]), self.0)
    }
}
