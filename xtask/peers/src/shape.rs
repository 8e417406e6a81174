//! The tensors of a Qwen2 model: their names in safetensors and in GGUF, and their sizes.

use candle_transformers::models::qwen2::Config;
use serde_json::Value;

use crate::Outcome;

/// A tensor of the model.
pub(crate) struct Entry {
    /// In a checkpoint of the Hugging Face hub.
    pub(crate) name: String,
    /// In a GGUF file.
    pub(crate) gguf: String,
    /// `[outputs, inputs]`, or one number for norms and biases.
    pub(crate) dims: Vec<usize>,
}

impl Entry {
    fn new(name: impl Into<String>, gguf: impl Into<String>, dims: &[usize]) -> Self {
        Self {
            name: name.into(),
            gguf: gguf.into(),
            dims: dims.to_vec(),
        }
    }

    /// Whether this is the head, or the embedding table that may be the head as well.
    pub(crate) fn is_head(&self) -> bool {
        matches!(self.gguf.as_str(), "token_embd.weight" | "output.weight")
    }

    /// How many numbers it has.
    pub(crate) fn len(&self) -> usize {
        self.dims.iter().product()
    }
}

/// Reads the shape.
///
/// # Errors
///
/// When it is not that of a Qwen2 model, which is what candle is measured with.
pub(crate) fn parse(config: &str) -> Outcome<Config> {
    let value: Value = serde_json::from_str(config)?;
    let kind = value["model_type"].as_str().unwrap_or("no model_type");
    if kind != "qwen2" {
        return Err(
            format!("the shape is of {kind}; engines are compared on shapes of qwen2").into(),
        );
    }
    Ok(serde_json::from_value(value)?)
}

/// Every tensor, the small ones among them.
pub(crate) fn entries(config: &Config) -> Vec<Entry> {
    let hidden = config.hidden_size;
    let middle = config.intermediate_size;
    let kv = hidden / config.num_attention_heads * config.num_key_value_heads;
    let table = [config.vocab_size, hidden];
    let mut all = vec![
        Entry::new("model.embed_tokens.weight", "token_embd.weight", &table),
        Entry::new("model.norm.weight", "output_norm.weight", &[hidden]),
    ];
    if !config.tie_word_embeddings {
        all.push(Entry::new("lm_head.weight", "output.weight", &table));
    }
    for layer in 0..config.num_hidden_layers {
        let parts: [(&str, &str, &[usize]); 12] = [
            ("input_layernorm.weight", "attn_norm.weight", &[hidden]),
            (
                "post_attention_layernorm.weight",
                "ffn_norm.weight",
                &[hidden],
            ),
            (
                "self_attn.q_proj.weight",
                "attn_q.weight",
                &[hidden, hidden],
            ),
            ("self_attn.k_proj.weight", "attn_k.weight", &[kv, hidden]),
            ("self_attn.v_proj.weight", "attn_v.weight", &[kv, hidden]),
            ("self_attn.q_proj.bias", "attn_q.bias", &[hidden]),
            ("self_attn.k_proj.bias", "attn_k.bias", &[kv]),
            ("self_attn.v_proj.bias", "attn_v.bias", &[kv]),
            (
                "self_attn.o_proj.weight",
                "attn_output.weight",
                &[hidden, hidden],
            ),
            ("mlp.gate_proj.weight", "ffn_gate.weight", &[middle, hidden]),
            ("mlp.up_proj.weight", "ffn_up.weight", &[middle, hidden]),
            ("mlp.down_proj.weight", "ffn_down.weight", &[hidden, middle]),
        ];
        all.extend(parts.map(|(name, gguf, dims)| {
            Entry::new(
                format!("model.layers.{layer}.{name}"),
                format!("blk.{layer}.{gguf}"),
                dims,
            )
        }));
    }
    all
}
