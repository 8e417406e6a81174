//! The rotary embedding's keys, in the older and the newer style.

use serde_json::Value;

use super::ConfigError;
use super::keys::Keys;
use crate::rope::RopeScaling;

pub(super) fn rope_theta(keys: Keys<'_>) -> Result<f64, ConfigError> {
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

pub(super) fn rope_scaling(keys: Keys<'_>) -> Result<RopeScaling, ConfigError> {
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
