//! Why a model was not loaded.

use std::path::PathBuf;

use serve_core::InvalidLimits;
use thiserror::Error;

use super::memory::human;
use crate::config::ConfigError;
use crate::decode::{DeviceError, DeviceKind, DeviceMissing};
use crate::numbers::Precision;
use crate::text::{GenerationError, ModelFileError, TemplateError, TokenizerError};
use crate::weights::WeightsError;

/// Why a model was not loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// There is no such folder.
    #[error(
        "{path} is no folder; a model is a folder with config.json, tokenizer.json and weights in safetensors files"
    )]
    NoFolder {
        /// The path given.
        path: PathBuf,
    },
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tokenizer's configuration.
    #[error(transparent)]
    TokenizerConfig(#[from] ModelFileError),
    /// The chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The chat template that was given in place of the model's own.
    #[error("{}: {}", path.display(), without_path(cause))]
    ChatTemplate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: TemplateError,
    },
    /// Sampling defaults and stop tokens.
    #[error(transparent)]
    Generation(#[from] GenerationError),
    /// An option is 0, or leaves no KV block.
    #[error(transparent)]
    Limits(#[from] InvalidLimits),
    /// A longer context than the model was made for.
    #[error("context_max is {asked} and the model was made for at most {max} positions")]
    Context {
        /// The option.
        asked: u32,
        /// The model's own limit.
        max: u32,
    },
    /// The KV pool is smaller than one block.
    #[error("kv_tokens is {tokens}; it must be at least {block_size}, which is one block")]
    KvTooSmall {
        /// The option.
        tokens: u64,
        /// Positions in a block.
        block_size: u32,
    },
    /// The KV pool does not fit in memory or cannot be addressed.
    #[error(
        "a KV pool of {tokens} positions needs {} and {} are free once the weights are loaded; \
         lower kv_tokens, context_max or sequences_max",
        human(*bytes), human(*free)
    )]
    KvTooLarge {
        /// Positions asked for.
        tokens: u64,
        /// What they need.
        bytes: u64,
        /// What there is.
        free: u64,
    },
    /// The rotary embedding of every position does not fit in memory.
    #[error(
        "a context of {positions} positions needs {} for its angles and {} are free beside the weights and the \
         KV pool; lower context_max",
        human(*bytes), human(*free)
    )]
    ContextTooLarge {
        /// Positions of one request.
        positions: u32,
        /// What their angles need.
        bytes: u64,
        /// What there is.
        free: u64,
    },
    /// The device that was asked for cannot be had.
    #[error(transparent)]
    Device(#[from] DeviceMissing),
    /// Weights are made smaller for the CPU's kernels alone.
    #[error("quantised weights run on the CPU alone, not on {device}; use --device cpu")]
    Quantized {
        /// What was asked for.
        device: DeviceKind,
    },
    /// Weights as they are stored do not meet such inputs.
    #[error(
        "{} goes with weights that are quantised too, on the CPU; add --quantize q8 or --quantize q4",
        precision.name()
    )]
    PrecisionOfWeights {
        /// What was asked for.
        precision: Precision,
    },
    /// Burn's own operations round nothing.
    #[error("--device flex computes in f32 alone; bf16 is for --device cpu and for GPUs")]
    FlexPrecision,
    /// The device failed before the first request.
    #[error("the device failed while it was made ready: {0}")]
    DeviceFailed(#[from] DeviceError),
    /// The weights do not fit in memory.
    #[error(
        "the weights need {} in memory and {} are free; quantisation makes them smaller",
        human(*bytes), human(*free)
    )]
    WeightsTooLarge {
        /// What they need.
        bytes: u64,
        /// What there is.
        free: u64,
    },
}

/// What is wrong with a file that has been named already.
fn without_path(cause: &TemplateError) -> String {
    match cause {
        TemplateError::File(ModelFileError::Read { source, .. }) => {
            format!("it cannot be read: {source}")
        }
        cause => cause.to_string(),
    }
}
