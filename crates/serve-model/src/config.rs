//! What `config.json` of a Hugging Face folder says about a model's shape.
//!
//! Both key styles are read: the older one (`rope_theta`, `rope_scaling`, `torch_dtype`, `type`) and
//! the newer one (`rope_parameters`, `dtype`, `rope_type`). A feature that the decoder does not have
//! is refused by name; nothing that would change the output is ignored.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use thiserror::Error;

use crate::rope::{Rope, RopeScaling};

/// The decoder families that are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen2 and Qwen2.5: biases on Q, K and V.
    Qwen2,
    /// Qwen3, dense: an RMS norm on each head of Q and K.
    Qwen3,
    /// Llama 2 and 3, and the many models of the same shape.
    Llama,
}

impl Architecture {
    const ALL: [Self; 3] = [Self::Qwen2, Self::Qwen3, Self::Llama];
    const ACCEPTED: &'static str = "Qwen2ForCausalLM, Qwen3ForCausalLM and LlamaForCausalLM";

    /// The name in `architectures`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Llama => "LlamaForCausalLM",
        }
    }

    fn model_type(self) -> &'static str {
        match self {
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Llama => "llama",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

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
}

/// A configuration that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not a JSON object.
    #[error("config.json is no JSON object: {reason}")]
    Json {
        /// The parser's own words.
        reason: String,
    },
    /// A key that has no default is missing.
    #[error("config.json has no `{key}`")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A value of the wrong type or out of range.
    #[error("config.json: `{key}` must be {accepted}, not {found}")]
    Value {
        /// The key.
        key: &'static str,
        /// What would do.
        accepted: &'static str,
        /// What is there.
        found: String,
    },
    /// A feature that the decoder does not have.
    #[error("config.json: {feature} {found} is not supported; supported: {accepted}")]
    Unsupported {
        /// The feature.
        feature: &'static str,
        /// What the file asks for.
        found: String,
        /// What would do.
        accepted: &'static str,
    },
    /// Sizes that contradict each other.
    #[error("config.json: {what}")]
    Shape {
        /// The contradiction.
        what: String,
    },
}

impl ModelConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], naming the key at fault.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Io {
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
        let architecture = architecture(keys)?;
        refuse_unsupported(keys, architecture)?;
        let heads = keys.size("num_attention_heads")?;
        let hidden_size = keys.size("hidden_size")?;
        let rope = Rope {
            theta: rope_theta(keys)?,
            scaling: rope_scaling(keys)?,
        };
        let positions = keys.size("max_position_embeddings")? as u32;
        let attention_bias = keys.flag("attention_bias")?.unwrap_or(false);
        let is_llama = architecture == Architecture::Llama;
        let config = Self {
            architecture,
            vocab_size: keys.size("vocab_size")?,
            hidden_size,
            intermediate_size: keys.size("intermediate_size")?,
            layers: keys.size("num_hidden_layers")?,
            heads,
            kv_heads: match keys.optional_size("num_key_value_heads")? {
                Some(kv_heads) => kv_heads,
                None if is_llama || map.contains_key("num_key_value_heads") => heads,
                None => {
                    return Err(ConfigError::Missing {
                        key: "num_key_value_heads",
                    });
                }
            },
            head_dim: head_dim(keys, architecture, hidden_size, heads)?,
            context_max: rope.context_max(positions),
            rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope,
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
            output_bias: architecture != Architecture::Qwen2 && attention_bias,
            mlp_bias: is_llama && keys.flag("mlp_bias")?.unwrap_or(false),
            qk_norm: architecture == Architecture::Qwen3,
            eos_tokens: eos_tokens(keys)?,
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

    /// Trainable numbers in the model; a tied output projection counts once.
    pub fn parameters(&self) -> u64 {
        crate::weights::expected_tensors(self)
            .iter()
            .map(|(_, shape)| shape.iter().map(|&n| n as u64).product::<u64>())
            .sum()
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

/// Typed access to the keys of a JSON object, with errors that name the key.
#[derive(Clone, Copy)]
struct Keys<'a>(&'a Map<String, Value>);

impl<'a> Keys<'a> {
    /// The value, where it is there and not null.
    fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn wrong<T>(
        key: &'static str,
        accepted: &'static str,
        found: &Value,
    ) -> Result<T, ConfigError> {
        Err(ConfigError::Value {
            key,
            accepted,
            found: found.to_string(),
        })
    }

    fn optional_size(self, key: &'static str) -> Result<Option<usize>, ConfigError> {
        // Products of three sizes then still fit in 64 bits.
        const MAX: u64 = 1 << 21;
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(size) if (1..=MAX).contains(&size) => Ok(Some(size as usize)),
            _ => Self::wrong(key, "a whole number from 1 to 2097152", value),
        }
    }

    fn size(self, key: &'static str) -> Result<usize, ConfigError> {
        self.optional_size(key)?.ok_or(ConfigError::Missing { key })
    }

    fn number(self, key: &'static str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Self::wrong(key, "a number", value),
        }
    }

    fn positive(self, key: &'static str) -> Result<Option<f64>, ConfigError> {
        match self.number(key)? {
            Some(number) if number > 0.0 => Ok(Some(number)),
            None => Ok(None),
            Some(number) => Self::wrong(key, "a positive number", &Value::from(number)),
        }
    }

    fn flag(self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => Self::wrong(key, "true or false", value),
        }
    }

    fn object(self, key: &'static str) -> Result<Option<Keys<'a>>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_object() {
            Some(map) => Ok(Some(Keys(map))),
            None => Self::wrong(key, "an object", value),
        }
    }
}

fn architecture(keys: Keys<'_>) -> Result<Architecture, ConfigError> {
    let unsupported = |found: &str| ConfigError::Unsupported {
        feature: "architecture",
        found: found.to_owned(),
        accepted: Architecture::ACCEPTED,
    };
    let by_class = match keys.get("architectures").and_then(|list| list.get(0)) {
        Some(name) => {
            let name = name.as_str().unwrap_or_default();
            let known = Architecture::ALL.into_iter().find(|a| a.name() == name);
            Some(known.ok_or_else(|| unsupported(name))?)
        }
        None => None,
    };
    let by_type = match keys.get("model_type") {
        Some(name) => {
            let name = name.as_str().unwrap_or_default();
            let known = Architecture::ALL
                .into_iter()
                .find(|a| a.model_type() == name);
            Some(known.ok_or_else(|| unsupported(name))?)
        }
        None => None,
    };
    match (by_class, by_type) {
        (Some(class), Some(model_type)) if class != model_type => Err(ConfigError::Shape {
            what: format!(
                "architectures says {class} and model_type says {}",
                model_type.model_type()
            ),
        }),
        (Some(architecture), _) | (None, Some(architecture)) => Ok(architecture),
        (None, None) => Err(ConfigError::Missing {
            key: "architectures",
        }),
    }
}

fn refuse_unsupported(keys: Keys<'_>, architecture: Architecture) -> Result<(), ConfigError> {
    let refuse = |feature, found: String, accepted| {
        Err(ConfigError::Unsupported {
            feature,
            found,
            accepted,
        })
    };
    match keys.get("hidden_act") {
        None => {}
        Some(Value::String(act)) if act == "silu" || act == "swish" => {}
        Some(act) => return refuse("hidden_act", act.to_string(), "\"silu\""),
    }
    for key in ["num_experts", "num_local_experts", "n_routed_experts"] {
        if let Some(experts) = keys.get(key) {
            return refuse(
                "mixture of experts:",
                format!("{key} {experts}"),
                "dense models",
            );
        }
    }
    if let Some(quantization) = keys.get("quantization_config") {
        let method = quantization.get("quant_method").unwrap_or(quantization);
        return refuse(
            "quantization_config",
            method.to_string(),
            "weights in bf16, f16 or f32",
        );
    }
    let rope = keys.object("rope_parameters")?;
    for keys in [Some(keys), rope].into_iter().flatten() {
        match keys.number("partial_rotary_factor")? {
            None | Some(1.0) => {}
            Some(factor) => return refuse("partial_rotary_factor", factor.to_string(), "1"),
        }
    }
    refuse_sliding_window(keys, architecture)
}

/// A window is in effect for layers from `max_window_layers` on, if `use_sliding_window` is set, or
/// for those that `layer_types` names.
fn refuse_sliding_window(keys: Keys<'_>, architecture: Architecture) -> Result<(), ConfigError> {
    const ACCEPTED: &str = "full attention in every layer";
    let refuse = |feature, found: String| {
        Err(ConfigError::Unsupported {
            feature,
            found,
            accepted: ACCEPTED,
        })
    };
    if let Some(kinds) = keys.get("layer_types") {
        let other = |kind: &&Value| kind.as_str() != Some("full_attention");
        return match kinds.as_array() {
            None => Keys::wrong("layer_types", "a list", kinds),
            Some(kinds) => match kinds.iter().find(other) {
                Some(kind) => refuse("layer_types", kind.to_string()),
                None => Ok(()),
            },
        };
    }
    let Some(window) = keys.get("sliding_window") else {
        return Ok(());
    };
    if architecture == Architecture::Llama {
        return refuse("sliding_window", window.to_string());
    }
    let layers = keys.size("num_hidden_layers")?;
    let full_layers = keys
        .get("max_window_layers")
        .and_then(Value::as_u64)
        .unwrap_or(28);
    if keys.flag("use_sliding_window")?.unwrap_or(false) && full_layers < layers as u64 {
        return refuse("sliding_window", window.to_string());
    }
    Ok(())
}

fn head_dim(
    keys: Keys<'_>,
    architecture: Architecture,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, ConfigError> {
    if let Some(head_dim) = keys.optional_size("head_dim")? {
        return Ok(head_dim);
    }
    // The default of the family, not a quotient.
    if architecture == Architecture::Qwen3 {
        return Ok(128);
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

fn rope_theta(keys: Keys<'_>) -> Result<f64, ConfigError> {
    for keys in [keys.object("rope_parameters")?, Some(keys)]
        .into_iter()
        .flatten()
    {
        if let Some(theta) = keys.positive("rope_theta")? {
            return Ok(theta);
        }
    }
    Ok(10_000.0)
}

fn rope_scaling(keys: Keys<'_>) -> Result<RopeScaling, ConfigError> {
    // transformers lets the older key win where both are given.
    let rope = match keys.object("rope_scaling")? {
        Some(rope) => rope,
        None => match keys.object("rope_parameters")? {
            Some(rope) => rope,
            None => return Ok(RopeScaling::None),
        },
    };
    let kind = rope.get("rope_type").or_else(|| rope.get("type"));
    let factor = rope.positive("factor")?;
    let missing = |key| ConfigError::Missing { key };
    let positions = keys.size("max_position_embeddings")?;
    let original = match keys.optional_size("original_max_position_embeddings")? {
        Some(original) => original,
        None => rope
            .optional_size("original_max_position_embeddings")?
            .unwrap_or(positions),
    };
    match kind.map_or(Some("default"), Value::as_str) {
        Some("default") => Ok(RopeScaling::None),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: factor.ok_or(missing("rope_scaling.factor"))?,
            low_freq_factor: rope
                .positive("low_freq_factor")?
                .ok_or(missing("rope_scaling.low_freq_factor"))?,
            high_freq_factor: rope
                .positive("high_freq_factor")?
                .ok_or(missing("rope_scaling.high_freq_factor"))?,
            original_positions: original,
        }),
        Some("yarn") => Ok(RopeScaling::Yarn {
            factor: factor.unwrap_or(positions as f64 / original as f64),
            attention_factor: rope.positive("attention_factor")?,
            mscale: rope.positive("mscale")?,
            mscale_all_dim: rope.positive("mscale_all_dim")?,
            beta_fast: rope.positive("beta_fast")?.unwrap_or(32.0),
            beta_slow: rope.positive("beta_slow")?.unwrap_or(1.0),
            truncate: rope.flag("truncate")?.unwrap_or(true),
            original_positions: original,
        }),
        _ => Err(ConfigError::Unsupported {
            feature: "rope_type",
            found: kind.map_or_else(String::new, Value::to_string),
            accepted: "\"default\", \"llama3\" and \"yarn\"",
        }),
    }
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
        // As many elements as the checkpoint of a fixture of this shape has.
        assert_eq!(qwen2.parameters(), 136_000);
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
    fn yarn_extends_the_context() {
        let yarn = serde_json::json!({"type": "yarn", "factor": 4.0});
        let config = qwen2(set("rope_scaling", yarn)).unwrap();
        assert_eq!(config.context_max, 2_048);
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
                refusal(set("rope_scaling", serde_json::json!({"type": "dynamic"}))),
                "rope_type \"dynamic\" is not supported; supported: \"default\"",
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
