//! What a decode step cannot beat: reading every weight and the cache of its sequences once.

use serve_core::Span;
use serve_model::{ModelConfig, ModelInfo};

/// The floor of a model's steps on a device.
pub(crate) struct Floor {
    weights_bytes: f64,
    kv_bytes_per_token: f64,
    bytes_per_s: Option<f64>,
}

impl Floor {
    /// The floor at a measured bandwidth; there is none without it.
    pub(crate) fn new(
        config: &ModelConfig,
        info: &ModelInfo,
        block_size: u32,
        bytes_per_s: Option<f64>,
    ) -> Self {
        // Of an embedding table that is not the head as well, a step reads a row for each sequence.
        let unread = match config.tie_word_embeddings {
            true => 0.0,
            false => {
                let bytes = if info.stored_dtype == "f32" { 4.0 } else { 2.0 };
                config.vocab_size as f64 * config.hidden_size as f64 * bytes
            }
        };
        // The pool has one block more than it hands out.
        let pool_tokens = info.kv_tokens + u64::from(block_size);
        Self {
            weights_bytes: info.weights_bytes as f64 - unread,
            kv_bytes_per_token: info.kv_bytes as f64 / pool_tokens as f64,
            bytes_per_s,
        }
    }

    /// The floor of a step of `batch` sequences that have `context` tokens each.
    pub(crate) fn step(&self, batch: u32, context: u32) -> Option<Span> {
        let kv = f64::from(batch) * f64::from(context) * self.kv_bytes_per_token;
        Some(Span::from_secs_f64(
            (self.weights_bytes + kv) / self.bytes_per_s?,
        ))
    }
}
