//! The weights of a decoder, layer by layer, wherever a device keeps them.
//!
//! [`DecoderWeights::load`] knows which tensors there are and which lie side by side; a [`Place`]
//! knows what a matrix or a vector becomes on its device.

use super::{Rows, TensorSource, WeightsError};
use crate::config::ModelConfig;
use crate::kernels::{Kept, Precision, Quantization};

/// Turns what was read into what a device keeps.
pub trait Place {
    /// A matrix on the device.
    type Matrix;
    /// A vector on the device.
    type Vector;

    /// Keeps a matrix, whose rows it reads.
    ///
    /// # Errors
    ///
    /// [`WeightsError`] when a row cannot be read.
    fn matrix(&mut self, role: Role, rows: &mut Rows<'_>) -> Result<Self::Matrix, WeightsError>;

    /// Keeps a vector.
    fn vector(&mut self, elements: Vec<f32>) -> Self::Vector;
}

/// What a matrix is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its rows are looked up by token.
    Embedding,
    /// Looked up by token, and multiplied for the logits as well.
    TiedEmbedding,
    /// Multiplied in a layer.
    Projection,
    /// Multiplied for the logits.
    Head,
}

impl Role {
    /// What the embedding is for.
    pub(super) fn of_embedding(config: &ModelConfig) -> Self {
        match config.tie_word_embeddings {
            true => Self::TiedEmbedding,
            false => Self::Embedding,
        }
    }

    /// What the CPU keeps a matrix in. The vocabulary has 8 bits at least: its rows decide which token is
    /// chosen, and looking up a token reads one row only.
    pub fn kept(self, quantization: Option<Quantization>, precision: Precision) -> Kept {
        match (self, quantization, precision) {
            (Self::Embedding, ..) => Kept::AsStored,
            (Self::TiedEmbedding | Self::Head, Some(_), _) => Kept::Quantized(Quantization::Q8),
            (Self::Projection, Some(to), _) => Kept::Quantized(to),
            (_, None, Precision::Bf16) => Kept::Rounded,
            (_, None, Precision::F32 | Precision::Int8) => Kept::AsStored,
        }
    }
}

/// All weights of a decoder.
#[derive(Debug)]
pub struct DecoderWeights<M, V> {
    /// `[vocabulary, hidden]`
    pub embedding: M,
    /// In the order in which they run.
    pub layers: Vec<LayerWeights<M, V>>,
    /// Of the final norm, `[hidden]`.
    pub norm: V,
    /// `[vocabulary, hidden]`; without it the embedding serves.
    pub head: Option<M>,
}

/// The weights of one layer.
#[derive(Debug)]
pub struct LayerWeights<M, V> {
    /// `[hidden]`
    pub attention_norm: V,
    /// `[(heads + 2 * kv_heads) * head_dim, hidden]`: queries, keys, values.
    pub qkv: Projection<M, V>,
    /// Norms of each query and key head.
    pub head_norms: Option<HeadNorms<V>>,
    /// `[hidden, heads * head_dim]`
    pub output: Projection<M, V>,
    /// `[hidden]`
    pub mlp_norm: V,
    /// `[2 * intermediate, hidden]`: gate, up.
    pub gate_up: Projection<M, V>,
    /// `[hidden, intermediate]`
    pub down: Projection<M, V>,
}

/// A matrix and what is added to its products.
#[derive(Debug)]
pub struct Projection<M, V> {
    /// `[outputs, inputs]`
    pub weight: M,
    /// `[outputs]`
    pub bias: Option<V>,
}

/// RMS norm weights, `[head_dim]` each.
#[derive(Debug)]
pub struct HeadNorms<V> {
    /// For the heads of Q.
    pub query: V,
    /// For the heads of K.
    pub key: V,
}

impl<M, V> DecoderWeights<M, V> {
    /// Reads all weights and puts them where `place` says. `progress` is told the bytes read so far.
    ///
    /// # Errors
    ///
    /// [`WeightsError`], naming the tensor.
    pub fn load(
        config: &ModelConfig,
        source: &dyn TensorSource,
        place: &mut dyn Place<Matrix = M, Vector = V>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, WeightsError> {
        let mut reader = Reader {
            source,
            place,
            progress,
            read: 0,
        };
        let hidden = config.hidden_size;
        let vocabulary = config.vocab_size;
        let embedding = [("model.embed_tokens.weight", vocabulary)];
        let embedding = reader.matrix(Role::of_embedding(config), &embedding, hidden)?;
        let layers = (0..config.layers).map(|index| reader.layer(config, index));
        let layers = layers.collect::<Result<_, _>>()?;
        let norm = reader.vector(&[("model.norm.weight", hidden)])?;
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(reader.matrix(Role::Head, &[("lm_head.weight", vocabulary)], hidden)?),
        };
        Ok(Self {
            embedding,
            layers,
            norm,
            head,
        })
    }
}

/// Reads tensors that the device keeps side by side into one buffer.
struct Reader<'a, M, V> {
    source: &'a dyn TensorSource,
    place: &'a mut dyn Place<Matrix = M, Vector = V>,
    progress: &'a mut dyn FnMut(u64),
    read: u64,
}

impl<M, V> Reader<'_, M, V> {
    fn layer(
        &mut self,
        config: &ModelConfig,
        index: usize,
    ) -> Result<LayerWeights<M, V>, WeightsError> {
        let (hidden, middle) = (config.hidden_size, config.intermediate_size);
        let (query, kv) = (config.query_size(), config.kv_size());
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let attention = |part: &str| name(&format!("self_attn.{part}"));
        let mlp = |part: &str| name(&format!("mlp.{part}"));
        let qkv = [
            (attention("q_proj"), query),
            (attention("k_proj"), kv),
            (attention("v_proj"), kv),
        ];
        let output = [(attention("o_proj"), hidden)];
        let gate_up = [(mlp("gate_proj"), middle), (mlp("up_proj"), middle)];
        let down = [(mlp("down_proj"), hidden)];
        Ok(LayerWeights {
            attention_norm: self.vector(&[(&name("input_layernorm.weight"), hidden)])?,
            qkv: self.projection(&qkv, hidden, config.qkv_bias)?,
            head_norms: match config.qk_norm {
                true => Some(HeadNorms {
                    query: self.vector(&[(&attention("q_norm.weight"), config.head_dim)])?,
                    key: self.vector(&[(&attention("k_norm.weight"), config.head_dim)])?,
                }),
                false => None,
            },
            output: self.projection(&output, query, config.output_bias)?,
            mlp_norm: self.vector(&[(&name("post_attention_layernorm.weight"), hidden)])?,
            gate_up: self.projection(&gate_up, hidden, config.mlp_bias)?,
            down: self.projection(&down, middle, config.mlp_bias)?,
        })
    }

    fn projection(
        &mut self,
        parts: &[(String, usize)],
        inputs: usize,
        bias: bool,
    ) -> Result<Projection<M, V>, WeightsError> {
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
        Ok(Projection {
            weight: self.matrix(Role::Projection, &borrowed(&named("weight")), inputs)?,
            bias: match bias {
                true => Some(self.vector(&borrowed(&named("bias")))?),
                false => None,
            },
        })
    }

    fn matrix(
        &mut self,
        role: Role,
        parts: &[(&str, usize)],
        columns: usize,
    ) -> Result<M, WeightsError> {
        let Self {
            source,
            place,
            progress,
            read,
        } = self;
        let mut progress = |bytes| {
            *read += bytes;
            progress(*read);
        };
        let mut rows = Rows::new(*source, parts, columns, &mut progress)?;
        place.matrix(role, &mut rows)
    }

    fn vector(&mut self, parts: &[(&str, usize)]) -> Result<V, WeightsError> {
        let mut out = Vec::new();
        for (name, count) in parts {
            let stored = self.source.stored(name, *count)?;
            let first = out.len();
            out.resize(first + count, 0.0);
            self.source.fill(name, 0, &mut out[first..])?;
            self.read += (count * stored.bytes()) as u64;
        }
        (self.progress)(self.read);
        Ok(self.place.vector(out))
    }
}
