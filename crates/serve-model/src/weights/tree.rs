//! The weights of a decoder, layer by layer, and the names and shapes of their tensors in a checkpoint,
//! which stand nowhere else.
//!
//! [`DecoderWeights::visit`] shows each to a [`Visitor`]: to read it, or to list it.

use crate::config::ModelConfig;

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
    fn of_embedding(config: &ModelConfig) -> Self {
        match config.tie_word_embeddings {
            true => Self::TiedEmbedding,
            false => Self::Embedding,
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

/// A tensor among those that lie side by side: its name, and its rows or elements.
pub(super) type Part = (String, usize);

/// Is shown every tensor of a decoder, in the order in which a decoder uses them.
pub(super) trait Visitor {
    /// What it makes of a matrix.
    type Matrix;
    /// What it makes of a vector.
    type Vector;
    /// Why it makes nothing of one.
    type Error;

    /// Matrices of so many columns, one below the other.
    fn matrix(
        &mut self,
        role: Role,
        parts: &[Part],
        columns: usize,
    ) -> Result<Self::Matrix, Self::Error>;

    /// Vectors, one after the other.
    fn vector(&mut self, parts: &[Part]) -> Result<Self::Vector, Self::Error>;
}

impl<M, V> DecoderWeights<M, V> {
    /// Shows the tensors of a model of this shape to `visitor`, and keeps what it makes of them.
    pub(super) fn visit<T: Visitor<Matrix = M, Vector = V>>(
        config: &ModelConfig,
        visitor: &mut T,
    ) -> Result<Self, T::Error> {
        let (hidden, vocabulary) = (config.hidden_size, config.vocab_size);
        let one = |name: &str, size| [(name.to_owned(), size)];
        let embedding = one("model.embed_tokens.weight", vocabulary);
        Ok(Self {
            embedding: visitor.matrix(Role::of_embedding(config), &embedding, hidden)?,
            layers: (0..config.layers)
                .map(|index| LayerWeights::visit(config, index, visitor))
                .collect::<Result<_, _>>()?,
            norm: visitor.vector(&one("model.norm.weight", hidden))?,
            head: match config.tie_word_embeddings {
                true => None,
                false => {
                    let head = one("lm_head.weight", vocabulary);
                    Some(visitor.matrix(Role::Head, &head, hidden)?)
                }
            },
        })
    }
}

impl<M, V> LayerWeights<M, V> {
    fn visit<T: Visitor<Matrix = M, Vector = V>>(
        config: &ModelConfig,
        index: usize,
        visitor: &mut T,
    ) -> Result<Self, T::Error> {
        let (hidden, middle) = (config.hidden_size, config.intermediate_size);
        let (query, kv) = (config.query_size(), config.kv_size());
        let part = |part: &str, size| (format!("model.layers.{index}.{part}"), size);
        let qkv = [
            part("self_attn.q_proj", query),
            part("self_attn.k_proj", kv),
            part("self_attn.v_proj", kv),
        ];
        let output = [part("self_attn.o_proj", hidden)];
        let gate_up = [part("mlp.gate_proj", middle), part("mlp.up_proj", middle)];
        let down = [part("mlp.down_proj", hidden)];
        Ok(Self {
            attention_norm: visitor.vector(&[part("input_layernorm.weight", hidden)])?,
            qkv: Projection::visit(&qkv, hidden, config.qkv_bias, visitor)?,
            head_norms: match config.qk_norm {
                true => Some(HeadNorms {
                    query: visitor.vector(&[part("self_attn.q_norm.weight", config.head_dim)])?,
                    key: visitor.vector(&[part("self_attn.k_norm.weight", config.head_dim)])?,
                }),
                false => None,
            },
            output: Projection::visit(&output, query, config.output_bias, visitor)?,
            mlp_norm: visitor.vector(&[part("post_attention_layernorm.weight", hidden)])?,
            gate_up: Projection::visit(&gate_up, hidden, config.mlp_bias, visitor)?,
            down: Projection::visit(&down, middle, config.mlp_bias, visitor)?,
        })
    }
}

impl<M, V> Projection<M, V> {
    fn visit<T: Visitor<Matrix = M, Vector = V>>(
        parts: &[Part],
        inputs: usize,
        bias: bool,
        visitor: &mut T,
    ) -> Result<Self, T::Error> {
        let named = |suffix: &str| -> Vec<Part> {
            let name = |(part, size): &Part| (format!("{part}.{suffix}"), *size);
            parts.iter().map(name).collect()
        };
        Ok(Self {
            weight: visitor.matrix(Role::Projection, &named("weight"), inputs)?,
            bias: match bias {
                true => Some(visitor.vector(&named("bias"))?),
                false => None,
            },
        })
    }
}
