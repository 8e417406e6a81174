//! Shapes of published models, for random weights where the real ones cannot be downloaded.
//!
//! Each is what the `config.json` of the named repository on the Hugging Face hub says, without the
//! keys that change nothing here.

use std::str::FromStr;

use thiserror::Error;

/// The shape of a model, without its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What it is asked for by.
    pub name: &'static str,
    /// The model that has this shape.
    pub origin: &'static str,
    /// Its `config.json`.
    pub config: &'static str,
}

/// There is no shape of this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no shape {name:?}; random weights are made for {}", known())]
pub struct UnknownShape {
    /// The name given.
    pub name: String,
}

impl Shape {
    /// What stands before a shape's name where a model is asked for, as in `random:qwen2.5-0.5b`.
    pub const PREFIX: &str = "random:";

    /// All shapes.
    pub const ALL: [Self; 4] = [
        Self {
            name: "qwen2.5-0.5b",
            origin: "Qwen/Qwen2.5-0.5B-Instruct",
            config: r#"{
                "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
                "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                "num_attention_heads": 14, "num_key_value_heads": 2, "hidden_act": "silu",
                "vocab_size": 151936, "tie_word_embeddings": true,
                "max_position_embeddings": 32768, "rope_theta": 1000000.0,
                "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 21,
                "rms_norm_eps": 1e-06, "bos_token_id": 151643, "eos_token_id": 151645,
                "torch_dtype": "bfloat16"
            }"#,
        },
        Self {
            name: "qwen2.5-1.5b",
            origin: "Qwen/Qwen2.5-1.5B-Instruct",
            config: r#"{
                "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
                "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
                "num_attention_heads": 12, "num_key_value_heads": 2, "hidden_act": "silu",
                "vocab_size": 151936, "tie_word_embeddings": true,
                "max_position_embeddings": 32768, "rope_theta": 1000000.0,
                "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 21,
                "rms_norm_eps": 1e-06, "bos_token_id": 151643, "eos_token_id": 151645,
                "torch_dtype": "bfloat16"
            }"#,
        },
        Self {
            name: "qwen2.5-7b",
            origin: "Qwen/Qwen2.5-7B-Instruct",
            config: r#"{
                "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
                "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_act": "silu",
                "vocab_size": 152064, "tie_word_embeddings": false,
                "max_position_embeddings": 32768, "rope_theta": 1000000.0,
                "use_sliding_window": false, "sliding_window": 131072, "max_window_layers": 28,
                "rms_norm_eps": 1e-06, "bos_token_id": 151643, "eos_token_id": 151645,
                "torch_dtype": "bfloat16"
            }"#,
        },
        Self {
            name: "qwen3-0.6b",
            origin: "Qwen/Qwen3-0.6B",
            config: r#"{
                "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
                "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
                "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
                "hidden_act": "silu", "attention_bias": false,
                "vocab_size": 151936, "tie_word_embeddings": true,
                "max_position_embeddings": 40960, "rope_theta": 1000000, "rope_scaling": null,
                "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28,
                "rms_norm_eps": 1e-06, "bos_token_id": 151643, "eos_token_id": 151645,
                "torch_dtype": "bfloat16"
            }"#,
        },
    ];

    /// The shape that `model` asks for; `None` if it asks for a model that has weights.
    pub fn asked(model: &str) -> Option<Result<Self, UnknownShape>> {
        model.strip_prefix(Self::PREFIX).map(str::parse)
    }
}

impl FromStr for Shape {
    type Err = UnknownShape;

    fn from_str(name: &str) -> Result<Self, UnknownShape> {
        let found = Self::ALL.into_iter().find(|shape| shape.name == name);
        found.ok_or_else(|| UnknownShape {
            name: name.to_owned(),
        })
    }
}

fn known() -> String {
    Shape::ALL.map(|shape| shape.name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_random_shape_is_told_the_known_ones() {
        assert_eq!(Shape::asked("models/random"), None);
        assert_eq!(Shape::asked("random:qwen3-0.6b"), Some(Ok(Shape::ALL[3])));
        let error = Shape::asked("random:gpt-5").unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no shape \"gpt-5\"; random weights are made for qwen2.5-0.5b, qwen2.5-1.5b, \
             qwen2.5-7b, qwen3-0.6b"
        );
    }
}
