//! The decoder: one forward pass over a ragged batch.
//!
//! The same code runs on every device that Burn has; what devices do differently lies behind
//! [`Attention`]. Projections keep the checkpoint's `[outputs, inputs]` layout and are multiplied by
//! the transposed view. Q, K and V are one projection, and so are gate and up.

use burn::tensor::{Device, Int, Tensor, TensorData, activation};

use crate::attention::{Attention, DeviceError, HeadNorms};
use crate::batch::Batch;
use crate::config::ModelConfig;
use crate::weights::{TensorSource, WeightsError};

/// The weights of a decoder on a device.
#[derive(Debug)]
pub struct Decoder {
    config: ModelConfig,
    device: Device,
    embedding: Tensor<2>,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
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
    /// `progress` is told the parameters read so far.
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
            reader.matrix(&[("lm_head.weight", config.vocab_size)], hidden)?
        };
        let decoder = Self {
            config: config.clone(),
            device: device.clone(),
            embedding,
            layers,
            norm: final_norm,
            head: Linear {
                weight: head,
                bias: None,
            },
        };
        Ok((decoder, head_norms))
    }

    /// The shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
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
        let mut out = LogitRows {
            data: None,
            vocab_size: self.config.vocab_size,
        };
        if batch.tokens().is_empty() {
            return Ok(out);
        }
        let mut x = self
            .embedding
            .clone()
            .select(0, self.indices(batch.tokens()));
        for (index, layer) in self.layers.iter().enumerate() {
            let qkv = layer.qkv.forward(layer.attention_norm.forward(x.clone()));
            let seen = attention.attend(index, qkv, batch)?;
            x = x + layer.output.forward(seen);
            let hidden = layer.mlp_norm.forward(x.clone());
            x = x + layer.down.forward(gate(layer.gate_up.forward(hidden)));
        }
        if batch.logit_rows().is_empty() {
            return Ok(out);
        }
        let rows = x.select(0, self.indices(batch.logit_rows()));
        let logits = self.head.forward(self.norm.forward(rows));
        out.data = Some(logits.try_into_data().map_err(|e| DeviceError::new(&e))?);
        Ok(out)
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
struct Linear {
    /// `[outputs, inputs]`
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
}

impl Linear {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let out = x.matmul(self.weight.clone().transpose());
        match &self.bias {
            Some(bias) => out + bias.clone().unsqueeze(),
            None => out,
        }
    }
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
        let rows: usize = parts.iter().map(|(_, rows)| rows).sum();
        let mut buffer = vec![0.0; rows * columns];
        let mut rest = buffer.as_mut_slice();
        for (name, rows) in parts {
            let (part, tail) = rest.split_at_mut(rows * columns);
            self.source.fill(name, part)?;
            rest = tail;
        }
        self.read += buffer.len() as u64;
        (self.progress)(self.read);
        Ok(buffer)
    }

    fn matrix(
        &mut self,
        parts: &[(&str, usize)],
        columns: usize,
    ) -> Result<Tensor<2>, WeightsError> {
        let buffer = self.read(parts, columns)?;
        let rows = buffer.len() / columns;
        let data = TensorData::new(buffer, [rows, columns]);
        Ok(Tensor::from_data(data, self.device))
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
            true => Some(self.vector(&borrowed(&named("bias")))?),
            false => None,
        };
        Ok(Linear { weight, bias })
    }
}
