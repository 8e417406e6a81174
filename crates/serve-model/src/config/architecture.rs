//! The decoder families: how a file names them, and what sets them apart.

use std::fmt;

use super::error::ConfigError;
use super::keys::Keys;

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

/// What sets a family apart.
pub(super) struct Family {
    /// Its name in `architectures`.
    class: &'static str,
    /// Its name in `model_type`.
    model_type: &'static str,
    /// Whether Q, K and V have biases, whatever `attention_bias` says.
    pub(super) qkv_bias: bool,
    /// Whether `attention_bias` means the attention's output projection, too.
    pub(super) output_bias: bool,
    /// Whether it has the key `mlp_bias`.
    pub(super) mlp_bias: bool,
    /// Whether each head of Q and K is normed.
    pub(super) qk_norm: bool,
    /// Whether there are as many key and value heads as query heads where the file does not say.
    pub(super) kv_heads_optional: bool,
    /// Width of a head where the file does not say; `None` divides the residual stream by the heads.
    pub(super) head_dim: Option<usize>,
    /// Whether a `sliding_window` is in effect for every layer, without a switch.
    pub(super) window_always: bool,
}

impl Architecture {
    const ALL: [Self; 3] = [Self::Qwen2, Self::Qwen3, Self::Llama];
    const ACCEPTED: &'static str = "Qwen2ForCausalLM, Qwen3ForCausalLM and LlamaForCausalLM";

    pub(super) fn family(self) -> &'static Family {
        match self {
            Self::Qwen2 => &Family {
                class: "Qwen2ForCausalLM",
                model_type: "qwen2",
                qkv_bias: true,
                output_bias: false,
                mlp_bias: false,
                qk_norm: false,
                kv_heads_optional: false,
                head_dim: None,
                window_always: false,
            },
            Self::Qwen3 => &Family {
                class: "Qwen3ForCausalLM",
                model_type: "qwen3",
                qkv_bias: false,
                output_bias: true,
                mlp_bias: false,
                qk_norm: true,
                kv_heads_optional: false,
                head_dim: Some(128),
                window_always: false,
            },
            Self::Llama => &Family {
                class: "LlamaForCausalLM",
                model_type: "llama",
                qkv_bias: false,
                output_bias: true,
                mlp_bias: true,
                qk_norm: false,
                kv_heads_optional: true,
                head_dim: None,
                window_always: true,
            },
        }
    }

    /// The name in `architectures`.
    pub fn name(self) -> &'static str {
        self.family().class
    }

    fn model_type(self) -> &'static str {
        self.family().model_type
    }

    /// The family that a `config.json` names.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when it names none, one that is not supported, or two.
    pub(super) fn of(keys: Keys<'_>) -> Result<Self, ConfigError> {
        let unsupported = |found: &str| ConfigError::Unsupported {
            feature: "architecture",
            found: found.to_owned(),
            accepted: Self::ACCEPTED,
        };
        let by_class = match keys.get("architectures").and_then(|list| list.get(0)) {
            Some(name) => {
                let name = name.as_str().unwrap_or_default();
                let known = Self::ALL.into_iter().find(|a| a.name() == name);
                Some(known.ok_or_else(|| unsupported(name))?)
            }
            None => None,
        };
        let by_type = match keys.get("model_type") {
            Some(name) => {
                let name = name.as_str().unwrap_or_default();
                let known = Self::ALL.into_iter().find(|a| a.model_type() == name);
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
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_every_family() {
        let last = Architecture::ALL.len() - 1;
        let mut accepted = String::new();
        for (index, architecture) in Architecture::ALL.into_iter().enumerate() {
            accepted += match index {
                0 => "",
                index if index == last => " and ",
                _ => ", ",
            };
            accepted += architecture.name();
        }
        assert_eq!(Architecture::ACCEPTED, accepted);
    }
}
