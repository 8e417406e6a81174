//! Features that the decoder does not have, each refused by name.

use serde_json::Value;

use super::architecture::Family;
use super::error::ConfigError;
use super::keys::Keys;

pub(super) fn refuse_unsupported(keys: Keys<'_>, family: &Family) -> Result<(), ConfigError> {
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
        // None of them is a dense model.
        let some = |experts: &&Value| experts.as_f64() != Some(0.0);
        if let Some(experts) = keys.get(key).filter(some) {
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
    let scaling = keys.object("rope_scaling")?;
    let rope = keys.object("rope_parameters")?;
    for keys in [Some(keys), scaling, rope].into_iter().flatten() {
        match keys.number("partial_rotary_factor")? {
            None | Some(1.0) => {}
            Some(factor) => return refuse("partial_rotary_factor", factor.to_string(), "1"),
        }
    }
    refuse_sliding_window(keys, family)
}

/// A window is in effect for layers from `max_window_layers` on, if `use_sliding_window` is set, or
/// for those that `layer_types` names.
fn refuse_sliding_window(keys: Keys<'_>, family: &Family) -> Result<(), ConfigError> {
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
    if family.window_always {
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
