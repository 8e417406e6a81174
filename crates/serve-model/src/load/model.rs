//! A model as it has been loaded.

use std::sync::Arc;

use crate::config::Architecture;
use crate::decode::DecoderBackend;
use crate::numbers::Quantization;
use crate::text::{ChatTemplate, GenerationConfig, TemplateError, Tokenizer};

/// A model that serves.
#[derive(Debug)]
pub struct Model {
    /// Runs plans.
    pub backend: DecoderBackend,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Messages to a prompt; base models have none. One that cannot be compiled refuses chats.
    pub chat_template: Option<Result<ChatTemplate, TemplateError>>,
    /// Stop tokens and sampling defaults.
    pub generation: GenerationConfig,
    /// What it is, for people.
    pub info: ModelInfo,
    /// What is served otherwise than its files ask for, a line each.
    pub warnings: Vec<String>,
}

/// What a loaded model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// The folder's name, that of the embedded model, or `random:` and the shape's.
    pub name: String,
    /// The family.
    pub architecture: Architecture,
    /// Trainable numbers.
    pub parameters: u64,
    /// Memory of the weights.
    pub weights_bytes: u64,
    /// Memory of the KV pool.
    pub kv_bytes: u64,
    /// Positions that the KV pool holds.
    pub kv_tokens: u64,
    /// Type in which the model computes.
    pub dtype: &'static str,
    /// Type in which the weights are stored.
    pub stored_dtype: &'static str,
    /// What the matrices have been made when they were loaded, if not left as they are stored.
    pub quantization: Option<Quantization>,
    /// Where it computes.
    pub device: String,
    /// Positions of one request at most.
    pub context_max: u32,
}

impl ModelInfo {
    /// In what the weights are kept, as in `bf16` or `q8 (stored as bf16)`.
    pub fn weights_dtype(&self) -> String {
        match self.quantization {
            Some(to) => format!("{to} (stored as {})", self.stored_dtype),
            None => self.stored_dtype.to_owned(),
        }
    }
}
