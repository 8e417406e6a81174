//! What `config.json` of a Hugging Face folder says about a model's shape.
//!
//! Both key styles are read: the older one (`rope_theta`, `rope_scaling`, `torch_dtype`, `type`) and
//! the newer one (`rope_parameters`, `dtype`, `rope_type`). A feature that the decoder does not have
//! is refused by name; nothing that would change the output is ignored.

mod architecture;
mod error;
mod keys;
mod rope;
mod shapes;
mod supported;

use std::path::Path;

use serde_json::{Map, Value};

pub use architecture::Architecture;
pub use error::ConfigError;
pub use rope::{Rope, RopeScaling};
pub use shapes::{Shape, UnknownShape};

use architecture::Family;
use keys::Keys;
use rope::{rope_scaling, rope_theta, rope_warning};
use supported::refuse_unsupported;

use crate::plain_file::{self, CONFIG_BYTES_MAX};

/// The shape of a decoder and everything else that its arithmetic depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated feed-forward part.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Positions that the model was made for, an extension by YaRN included.
    pub context_max: u32,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f32,
    /// The rotary embedding.
    pub rope: Rope,
    /// Whether the output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether Q, K and V have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward projections have biases.
    pub mlp_bias: bool,
    /// Whether each head of Q and K is normed.
    pub qk_norm: bool,
    /// Tokens that end a text.
    pub eos_tokens: Vec<u32>,
    /// What is done otherwise than the file may be meant, a line each.
    pub warnings: Vec<String>,
}

impl ModelConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], naming the key at fault.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            plain_file::read_text(path, CONFIG_BYTES_MAX).map_err(|source| ConfigError::Io {
                path: path.to_owned(),
                source,
            })?;
        Self::parse(&text)
    }

    /// Parses the text of a `config.json`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], naming the key at fault.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let map: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| ConfigError::Json {
                reason: error.to_string(),
            })?;
        let keys = Keys(&map);
        let architecture = Architecture::of(keys)?;
        let family = architecture.family();
        refuse_unsupported(keys, family)?;
        let heads = keys.size("num_attention_heads")?;
        let hidden_size = keys.size("hidden_size")?;
        let rope = Rope {
            theta: rope_theta(keys)?,
            scaling: rope_scaling(keys)?,
        };
        let positions = keys.size("max_position_embeddings")? as u32;
        let attention_bias = keys.flag("attention_bias")?.unwrap_or(false);
        let config = Self {
            architecture,
            vocab_size: keys.size("vocab_size")?,
            hidden_size,
            intermediate_size: keys.size("intermediate_size")?,
            layers: keys.size("num_hidden_layers")?,
            heads,
            kv_heads: match keys.optional_size("num_key_value_heads")? {
                Some(kv_heads) => kv_heads,
                None if family.kv_heads_optional || map.contains_key("num_key_value_heads") => {
                    heads
                }
                None => {
                    return Err(ConfigError::Missing {
                        key: "num_key_value_heads",
                    });
                }
            },
            head_dim: head_dim(keys, family, hidden_size, heads)?,
            context_max: rope.context_max(positions),
            rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope,
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: family.qkv_bias || attention_bias,
            output_bias: family.output_bias && attention_bias,
            mlp_bias: family.mlp_bias && keys.flag("mlp_bias")?.unwrap_or(false),
            qk_norm: family.qk_norm,
            eos_tokens: eos_tokens(keys)?,
            warnings: rope_warning(keys)?.into_iter().collect(),
        };
        config.check_shape()?;
        Ok(config)
    }

    /// Width of all query heads together.
    pub fn query_size(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    pub fn kv_size(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    fn check_shape(&self) -> Result<(), ConfigError> {
        let wrong = |what: String| Err(ConfigError::Shape { what });
        if !self.heads.is_multiple_of(self.kv_heads) {
            return wrong(format!(
                "num_attention_heads ({}) is no multiple of num_key_value_heads ({})",
                self.heads, self.kv_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return wrong(format!(
                "head_dim ({}) is odd; a rotary embedding needs pairs",
                self.head_dim
            ));
        }
        if let Some(token) = self
            .eos_tokens
            .iter()
            .find(|&&token| token as usize >= self.vocab_size)
        {
            return wrong(format!(
                "eos_token_id {token} lies outside the vocabulary of {}",
                self.vocab_size
            ));
        }
        if !(self.rms_norm_eps >= 0.0 && self.rms_norm_eps < 1.0) {
            return wrong(format!(
                "rms_norm_eps ({}) must be at least 0 and less than 1",
                self.rms_norm_eps
            ));
        }
        Ok(())
    }
}

fn head_dim(
    keys: Keys<'_>,
    family: &Family,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, ConfigError> {
    if let Some(head_dim) = keys.optional_size("head_dim")?.or(family.head_dim) {
        return Ok(head_dim);
    }
    if !hidden_size.is_multiple_of(heads) {
        return Err(ConfigError::Shape {
            what: format!(
                "hidden_size ({hidden_size}) is no multiple of num_attention_heads ({heads}) and \
                 head_dim is not given"
            ),
        });
    }
    Ok(hidden_size / heads)
}

fn eos_tokens(keys: Keys<'_>) -> Result<Vec<u32>, ConfigError> {
    const ACCEPTED: &str = "a token id or a list of token ids";
    let Some(value) = keys.get("eos_token_id") else {
        return Ok(Vec::new());
    };
    let items = match value {
        Value::Array(items) => items.as_slice(),
        single => std::slice::from_ref(single),
    };
    let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
    match items.iter().map(id).collect() {
        Some(tokens) => Ok(tokens),
        None => Keys::wrong("eos_token_id", ACCEPTED, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qwen2(change: impl FnOnce(&mut Map<String, Value>)) -> Result<ModelConfig, ConfigError> {
        let mut value = serde_json::json!({
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 384,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "eos_token_id": 383, "tie_word_embeddings": true,
        });
        change(value.as_object_mut().unwrap());
        ModelConfig::parse(&value.to_string())
    }

    fn refusal(change: impl FnOnce(&mut Map<String, Value>)) -> String {
        qwen2(change).unwrap_err().to_string()
    }

    fn set(key: &str, value: impl Into<Value>) -> impl FnOnce(&mut Map<String, Value>) {
        let (key, value) = (key.to_owned(), value.into());
        move |map| {
            map.insert(key, value);
        }
    }

    #[test]
    fn the_families_differ_in_biases_and_norms() {
        let qwen2 = qwen2(|_| ()).unwrap();
        assert_eq!(qwen2.head_dim, 16);
        assert!(qwen2.qkv_bias && !qwen2.output_bias && !qwen2.qk_norm);
        assert_eq!(qwen2.eos_tokens, [383]);
    }

    #[test]
    fn both_key_styles_mean_the_same() {
        let yarn = serde_json::json!({
            "factor": 4.0, "original_max_position_embeddings": 128, "rope_type": "yarn"
        });
        let older = qwen2(|map| {
            let mut yarn = yarn.clone();
            let kind = yarn.as_object_mut().unwrap().remove("rope_type").unwrap();
            yarn["type"] = kind;
            map.insert("rope_scaling".into(), yarn);
            map.insert("rope_theta".into(), 5e5.into());
        });
        let newer = qwen2(|map| {
            let mut yarn = yarn.clone();
            yarn["rope_theta"] = 5e5.into();
            map.insert("rope_parameters".into(), yarn);
            map.remove("rope_theta");
            map.insert("eos_token_id".into(), serde_json::json!([383]));
        });
        assert_eq!(older.unwrap(), newer.unwrap());
    }

    #[test]
    fn the_context_is_as_long_as_its_scaling_is_right() {
        let yarn = serde_json::json!({"type": "yarn", "factor": 4.0});
        let config = qwen2(set("rope_scaling", yarn)).unwrap();
        assert_eq!(config.context_max, 2_048);
        let linear = serde_json::json!({"type": "linear", "factor": 4.0});
        let config = qwen2(set("rope_scaling", linear)).unwrap();
        assert_eq!(config.context_max, 2_048);
        let dynamic = |original: u64| serde_json::json!({"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": original});
        for (original, served) in [(512, 512), (128, 128), (4_096, 512)] {
            let config = qwen2(set("rope_scaling", dynamic(original))).unwrap();
            assert_eq!(config.context_max, served);
        }
    }

    #[test]
    fn a_scaling_without_what_it_needs_is_refused() {
        for kind in ["linear", "llama3"] {
            let message = refusal(set("rope_scaling", serde_json::json!({"type": kind})));
            assert!(message.contains("rope_scaling.factor"), "{message}");
        }
        for factor in [0.0, -1.0, 1e-40, 1e300] {
            let linear = serde_json::json!({"type": "linear", "factor": factor});
            let message = refusal(set("rope_scaling", linear));
            assert!(
                message.contains("`factor` must be a positive number"),
                "{message}"
            );
        }
        let message = refusal(set("rope_theta", 1e-300));
        assert!(
            message.contains("`rope_theta` must be a positive number"),
            "{message}"
        );
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let cases = [
            (
                refusal(set("architectures", vec!["GPT2LMHeadModel"])),
                "architecture GPT2LMHeadModel is not supported; supported: Qwen2ForCausalLM",
            ),
            (refusal(set("model_type", "llama")), "model_type says llama"),
            (refusal(set("hidden_act", "gelu")), "hidden_act \"gelu\""),
            (refusal(set("num_experts", 8)), "num_experts 8"),
            (
                refusal(set("rope_scaling", serde_json::json!({"type": "longrope"}))),
                "rope_type \"longrope\" is not supported; supported: \"default\"",
            ),
            (
                refusal(set(
                    "quantization_config",
                    serde_json::json!({"quant_method": "awq"}),
                )),
                "quantization_config \"awq\"",
            ),
            (
                refusal(set(
                    "layer_types",
                    vec!["full_attention", "sliding_attention"],
                )),
                "layer_types \"sliding_attention\"",
            ),
            (
                refusal(|map| {
                    map.insert("use_sliding_window".into(), true.into());
                    map.insert("sliding_window".into(), 128.into());
                    map.insert("max_window_layers".into(), 2.into());
                }),
                "sliding_window 128",
            ),
            (
                refusal(set("partial_rotary_factor", 0.5)),
                "partial_rotary_factor 0.5",
            ),
        ];
        for (message, part) in cases {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_window_that_no_layer_uses_is_accepted() {
        qwen2(set("sliding_window", 128)).unwrap();
        qwen2(|map| {
            map.insert("use_sliding_window".into(), true.into());
            map.insert("sliding_window".into(), 128.into());
            map.insert("max_window_layers".into(), 3.into());
        })
        .unwrap();
    }

    #[test]
    fn bad_values_name_their_key() {
        let cases = [
            (
                refusal(set("hidden_size", "wide")),
                "`hidden_size` must be a whole number from 1 to 2097152, not \"wide\"",
            ),
            (refusal(set("vocab_size", 0)), "`vocab_size` must be"),
            (refusal(set("num_hidden_layers", -3)), "not -3"),
            (
                refusal(set("num_key_value_heads", 3)),
                "num_attention_heads (4) is no multiple of num_key_value_heads (3)",
            ),
            (refusal(set("head_dim", 15)), "head_dim (15) is odd"),
            (
                refusal(set("hidden_size", 66)),
                "hidden_size (66) is no multiple",
            ),
            (refusal(set("eos_token_id", "x")), "`eos_token_id` must be"),
            (refusal(set("eos_token_id", 384)), "eos_token_id 384"),
            (refusal(set("tie_word_embeddings", 1)), "true or false"),
            (
                refusal(|map| {
                    map.remove("intermediate_size");
                }),
                "has no `intermediate_size`",
            ),
        ];
        for (message, part) in cases {
            assert!(message.contains(part), "{message}");
        }
        let message = ModelConfig::parse("[1]").unwrap_err().to_string();
        assert!(message.starts_with("config.json is no JSON object"));
    }
}
