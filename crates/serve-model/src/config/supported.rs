//! What the decoder can run: the families it knows, and the features that it refuses by name.

use serde_json::Value;

use super::keys::Keys;
use super::{Architecture, ConfigError};

pub(super) fn architecture(keys: Keys<'_>) -> Result<Architecture, ConfigError> {
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

pub(super) fn refuse_unsupported(
    keys: Keys<'_>,
    architecture: Architecture,
) -> Result<(), ConfigError> {
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
