//! The decoder: one forward pass over a ragged batch.
//!
//! What devices do differently lies behind [`Attention`] and `Linear`. Projections keep the
//! checkpoint's `[outputs, inputs]` layout and its type. Q, K and V are one projection, and so are
//! gate and up.

mod linear;

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, Int, Tensor, TensorData, activation};

use crate::attention::{Attention, DeviceError, HeadNorms};
use crate::batch::Batch;
use crate::config::ModelConfig;
use crate::kernels::{Elements, Instructions, Matrix, Scratch};
use crate::weights::{Stored, TensorSource, WeightsError};
use linear::{Linear, Products};

/// The weights of a decoder on a device.
#[derive(Debug)]
pub struct Decoder {
    config: ModelConfig,
    device: Device,
    embedding: Arc<Matrix>,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    instructions: Instructions,
    /// Reused from step to step; only one runs at a time.
    scratch: Mutex<Scratch>,
}

#[derive(Debug)]
struct Layer {
    attention_norm: RmsNorm,
    qkv: Linear,
    output: Linear,
    mlp_norm: RmsNorm,
    gate_up: Linear,
    down: Linear,
}

/// Logits of the wanted rows, in order.
#[derive(Clone, Debug, Default)]
pub struct LogitRows {
    data: Option<TensorData>,
    vocab_size: usize,
}

impl LogitRows {
    /// One slice of `vocab_size` logits for each row.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] when the device gave back something else than f32.
    pub fn rows(&self) -> Result<std::slice::ChunksExact<'_, f32>, DeviceError> {
        let all = match &self.data {
            Some(data) => data.as_slice::<f32>().map_err(|e| DeviceError::new(&e))?,
            None => &[],
        };
        Ok(all.chunks_exact(self.vocab_size.max(1)))
    }
}

impl Decoder {
    /// Reads all weights onto `device`, and the head norms of each layer for its attention.
    /// `progress` is told the bytes in place so far.
    ///
    /// # Errors
    ///
    /// [`WeightsError`], naming the tensor.
    pub fn load(
        config: &ModelConfig,
        source: &dyn TensorSource,
        device: &Device,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Self, Vec<Option<HeadNorms>>), WeightsError> {
        let mut reader = Reader {
            source,
            device,
            progress,
            read: 0,
        };
        let (hidden, middle) = (config.hidden_size, config.intermediate_size);
        let (query, kv) = (config.query_size(), config.kv_size());
        let norm = |reader: &mut Reader<'_>, name: &str| {
            let weight = reader.vector(&[(name, hidden)])?;
            Ok::<_, WeightsError>(RmsNorm::new(weight, config.rms_norm_eps))
        };
        let embedding =
            reader.matrix(&[("model.embed_tokens.weight", config.vocab_size)], hidden)?;
        let embedding = Arc::new(embedding);
        let mut layers = Vec::with_capacity(config.layers);
        let mut head_norms = Vec::with_capacity(config.layers);
        for index in 0..config.layers {
            let name = |part: &str| format!("model.layers.{index}.{part}");
            let attention_norm = norm(&mut reader, &name("input_layernorm.weight"))?;
            let attention = |part: &str| name(&format!("self_attn.{part}"));
            let mlp = |part: &str| name(&format!("mlp.{part}"));
            let qkv = [
                (attention("q_proj"), query),
                (attention("k_proj"), kv),
                (attention("v_proj"), kv),
            ];
            let gate_up = [(mlp("gate_proj"), middle), (mlp("up_proj"), middle)];
            layers.push(Layer {
                attention_norm,
                qkv: reader.linear(&qkv, hidden, config.qkv_bias)?,
                output: reader.linear(
                    &[(attention("o_proj"), hidden)],
                    query,
                    config.output_bias,
                )?,
                mlp_norm: norm(&mut reader, &name("post_attention_layernorm.weight"))?,
                gate_up: reader.linear(&gate_up, hidden, config.mlp_bias)?,
                down: reader.linear(&[(mlp("down_proj"), hidden)], middle, config.mlp_bias)?,
            });
            head_norms.push(if config.qk_norm {
                let norm = |reader: &mut Reader<'_>, part| {
                    reader.read(&[(&attention(part), config.head_dim)], 1)
                };
                Some(HeadNorms {
                    query: norm(&mut reader, "q_norm.weight")?,
                    key: norm(&mut reader, "k_norm.weight")?,
                    eps: config.rms_norm_eps,
                })
            } else {
                None
            });
        }
        let final_norm = norm(&mut reader, "model.norm.weight")?;
        let head = if config.tie_word_embeddings {
            embedding.clone()
        } else {
            Arc::new(reader.matrix(&[("lm_head.weight", config.vocab_size)], hidden)?)
        };
        let decoder = Self {
            config: config.clone(),
            device: device.clone(),
            embedding,
            layers,
            norm: final_norm,
            head: Linear::new(head, None),
            instructions: Instructions::best(),
            scratch: Mutex::default(),
        };
        Ok((decoder, head_norms))
    }

    /// The shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Makes the kernels use these instructions instead of the fastest.
    pub(crate) fn set_instructions(&mut self, instructions: Instructions) {
        self.instructions = instructions;
    }

    /// Runs a batch: KV of all its rows goes into `attention`'s cache, and the logits of
    /// [`Batch::logit_rows`] come back.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] when the device fails.
    pub fn forward(
        &self,
        batch: &Batch,
        attention: &mut dyn Attention,
    ) -> Result<LogitRows, DeviceError> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut products = Products {
            instructions: self.instructions,
            scratch: &mut scratch,
            device: &self.device,
        };
        // Inside the pool, so that a product does not have to wake it.
        rayon::scope(|_| self.run(batch, attention, &mut products))
    }

    fn run(
        &self,
        batch: &Batch,
        attention: &mut dyn Attention,
        products: &mut Products<'_>,
    ) -> Result<LogitRows, DeviceError> {
        let mut out = LogitRows {
            data: None,
            vocab_size: self.config.vocab_size,
        };
        if batch.tokens().is_empty() {
            return Ok(out);
        }
        let mut x = self.embed(batch.tokens());
        for (index, layer) in self.layers.iter().enumerate() {
            let hidden = layer.attention_norm.forward(x.clone());
            let qkv = layer.qkv.forward(hidden, products)?;
            let seen = attention.attend(index, qkv, batch)?;
            x = x + layer.output.forward(seen, products)?;
            let hidden = layer.mlp_norm.forward(x.clone());
            let hidden = gate(layer.gate_up.forward(hidden, products)?);
            x = x + layer.down.forward(hidden, products)?;
        }
        if batch.logit_rows().is_empty() {
            return Ok(out);
        }
        let rows = x.select(0, self.indices(batch.logit_rows()));
        let logits = self.head.forward(self.norm.forward(rows), products)?;
        out.data = Some(logits.try_into_data().map_err(|e| DeviceError::new(&e))?);
        Ok(out)
    }

    fn embed(&self, tokens: &[u32]) -> Tensor<2> {
        let hidden = self.config.hidden_size;
        let mut rows = vec![0.0; tokens.len() * hidden];
        for (&token, row) in tokens.iter().zip(rows.chunks_exact_mut(hidden)) {
            self.embedding.copy_row(token as usize, row);
        }
        let rows = TensorData::new(rows, [tokens.len(), hidden]);
        Tensor::from_data(rows, &self.device)
    }

    fn indices(&self, indices: &[u32]) -> Tensor<1, Int> {
        let indices: Vec<i64> = indices.iter().map(|&index| i64::from(index)).collect();
        let count = indices.len();
        Tensor::from_data(TensorData::new(indices, [count]), &self.device)
    }
}

/// `silu(gate) * up` for `[rows, gate and up]`.
fn gate(gate_up: Tensor<2>) -> Tensor<2> {
    let [_, both] = gate_up.dims();
    let gate = gate_up.clone().narrow(1, 0, both / 2);
    let up = gate_up.narrow(1, both / 2, both / 2);
    activation::silu(gate) * up
}

#[derive(Debug)]
struct RmsNorm {
    weight: Tensor<1>,
    eps: f32,
}

impl RmsNorm {
    fn new(weight: Tensor<1>, eps: f32) -> Self {
        Self { weight, eps }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let mean_square = x.clone().square().mean_dim(1);
        let scale = (mean_square + self.eps).sqrt();
        x / scale * self.weight.clone().unsqueeze()
    }
}

/// Reads tensors that the device keeps side by side into one buffer.
struct Reader<'a> {
    source: &'a dyn TensorSource,
    device: &'a Device,
    progress: &'a mut dyn FnMut(u64),
    read: u64,
}

impl Reader<'_> {
    /// Concatenates tensors of `(name, rows)` with `columns` elements in a row.
    fn read(&mut self, parts: &[(&str, usize)], columns: usize) -> Result<Vec<f32>, WeightsError> {
        let source = self.source;
        self.concatenate(parts, columns, |name, part| source.fill(name, part))
    }

    fn concatenate<T: Copy + Default>(
        &mut self,
        parts: &[(&str, usize)],
        columns: usize,
        fill: impl Fn(&str, &mut [T]) -> Result<(), WeightsError>,
    ) -> Result<Vec<T>, WeightsError> {
        let rows: usize = parts.iter().map(|(_, rows)| rows).sum();
        let mut buffer = vec![T::default(); rows * columns];
        let mut rest = buffer.as_mut_slice();
        for (name, rows) in parts {
            let (part, tail) = rest.split_at_mut(rows * columns);
            fill(name, part)?;
            rest = tail;
        }
        self.read += size_of_val(buffer.as_slice()) as u64;
        (self.progress)(self.read);
        Ok(buffer)
    }

    /// Keeps the type in which all parts are stored; f32 if they differ.
    fn matrix(&mut self, parts: &[(&str, usize)], columns: usize) -> Result<Matrix, WeightsError> {
        let mut stored = Vec::with_capacity(parts.len());
        for (name, _) in parts {
            stored.push(self.source.stored(name)?);
        }
        let all = |one| stored.iter().all(|&stored| stored == one);
        let source = self.source;
        let bits = |name: &str, part: &mut [u16]| source.fill_bits(name, part);
        let elements = if all(Stored::Bf16) {
            Elements::Bf16(self.concatenate(parts, columns, bits)?)
        } else if all(Stored::F16) {
            Elements::F16(self.concatenate(parts, columns, bits)?)
        } else {
            Elements::F32(self.read(parts, columns)?)
        };
        Ok(Matrix::new(elements, columns))
    }

    fn vector(&mut self, parts: &[(&str, usize)]) -> Result<Tensor<1>, WeightsError> {
        let buffer = self.read(parts, 1)?;
        let size = buffer.len();
        Ok(Tensor::from_data(
            TensorData::new(buffer, [size]),
            self.device,
        ))
    }

    fn linear(
        &mut self,
        parts: &[(String, usize)],
        inputs: usize,
        bias: bool,
    ) -> Result<Linear, WeightsError> {
        let named = |suffix: &str| -> Vec<(String, usize)> {
            let name = |(part, rows): &(String, usize)| (format!("{part}.{suffix}"), *rows);
            parts.iter().map(name).collect()
        };
        fn borrowed(parts: &[(String, usize)]) -> Vec<(&str, usize)> {
            parts
                .iter()
                .map(|(name, rows)| (name.as_str(), *rows))
                .collect()
        }
        let weight = self.matrix(&borrowed(&named("weight")), inputs)?;
        let bias = match bias {
            true => Some(self.read(&borrowed(&named("bias")), 1)?),
            false => None,
        };
        Ok(Linear::new(Arc::new(weight), bias))
    }
}
