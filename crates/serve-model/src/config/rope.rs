//! The rotary embedding that a model was trained with, from its keys in the older or the newer style.

use serde_json::Value;

use super::error::ConfigError;
use super::keys::Keys;

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the wavelengths.
    pub theta: f64,
    /// How the wavelengths are stretched for a longer context.
    pub scaling: RopeScaling,
}

/// How wavelengths are stretched.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All are divided by `factor`, as if positions lay closer together.
    Linear {
        /// Stretch of all frequencies.
        factor: f64,
    },
    /// Not at all up to this length. Beyond it every length has frequencies of its own, and keys that are cached
    /// have those of a shorter one; so no more positions are served.
    Dynamic {
        /// Context of the pretraining.
        original_positions: usize,
    },
    /// Low frequencies are divided by `factor`, high ones kept, those between blended.
    Llama3 {
        /// Stretch of the low frequencies.
        factor: f64,
        /// `original_positions / low_freq_factor` is the wavelength above which all is stretched.
        low_freq_factor: f64,
        /// `original_positions / high_freq_factor` is the wavelength below which nothing is.
        high_freq_factor: f64,
        /// Context of the pretraining.
        original_positions: usize,
    },
    /// A ramp over the dimensions, and a temperature on the attention.
    Yarn {
        /// Stretch of the low frequencies.
        factor: f64,
        /// Multiplies cos and sin; derived from `factor` where absent.
        attention_factor: Option<f64>,
        /// With `mscale_all_dim`, another way to derive the attention factor.
        mscale: Option<f64>,
        /// See `mscale`.
        mscale_all_dim: Option<f64>,
        /// Rotations over the original context above which nothing is stretched.
        beta_fast: f64,
        /// Rotations below which all is stretched.
        beta_slow: f64,
        /// Whether the ramp's ends are rounded outwards to whole dimensions.
        truncate: bool,
        /// Context of the pretraining.
        original_positions: usize,
    },
}

impl Rope {
    /// Positions that a model with `positions` in its configuration can use. Models that are stretched by YaRN or
    /// linearly state the context of their pretraining there, as transformers' documentation asks for.
    pub(crate) fn context_max(&self, positions: u32) -> u32 {
        match self.scaling {
            RopeScaling::Yarn {
                factor,
                original_positions,
                ..
            } => positions.max((original_positions as f64 * factor) as u32),
            RopeScaling::Linear { factor } => positions.max((f64::from(positions) * factor) as u32),
            RopeScaling::Dynamic { original_positions } => positions.min(original_positions as u32),
            RopeScaling::None | RopeScaling::Llama3 { .. } => positions,
        }
    }
}

/// The keys of the rotary embedding. As in transformers, the older name goes first where both are given.
fn keys_of(keys: Keys<'_>) -> Result<Option<Keys<'_>>, ConfigError> {
    for name in ["rope_scaling", "rope_parameters"] {
        if let Some(rope) = keys.object(name)?.filter(|rope| !rope.0.is_empty()) {
            return Ok(Some(rope));
        }
    }
    Ok(None)
}

/// The base, which stands among the other keys of the rotary embedding or beside them.
pub(super) fn rope_theta(keys: Keys<'_>) -> Result<f64, ConfigError> {
    for keys in [keys_of(keys)?, Some(keys), keys.object("rope_parameters")?]
        .into_iter()
        .flatten()
    {
        if let Some(theta) = keys.positive("rope_theta")? {
            return Ok(theta);
        }
    }
    Ok(10_000.0)
}

/// What is not applied of the keys of the rotary embedding, or not for every length.
pub(super) fn rope_warning(keys: Keys<'_>) -> Result<Option<String>, ConfigError> {
    let Some(rope) = keys_of(keys)? else {
        return Ok(None);
    };
    let kind = rope.get("rope_type").or_else(|| rope.get("type"));
    let warning = match kind.map(Value::as_str) {
        None if rope.get("factor").is_some() => Some(
            "config.json: rope_scaling has a factor and no type, so that it changes nothing, as in transformers"
                .to_owned(),
        ),
        Some(Some("dynamic")) => Some(
            "config.json: rope_type \"dynamic\" changes nothing up to the context of the pretraining, and longer \
             contexts are not served"
                .to_owned(),
        ),
        _ => None,
    };
    Ok(warning)
}

pub(super) fn rope_scaling(keys: Keys<'_>) -> Result<RopeScaling, ConfigError> {
    let Some(rope) = keys_of(keys)? else {
        return Ok(RopeScaling::None);
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
        // Where there is no type, whatever else there is.
        Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear {
            factor: factor.ok_or(missing("rope_scaling.factor"))?,
        }),
        Some("dynamic") => Ok(RopeScaling::Dynamic {
            original_positions: original.min(positions),
        }),
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
            accepted: "\"default\", \"linear\", \"dynamic\", \"llama3\" and \"yarn\"",
        }),
    }
}
