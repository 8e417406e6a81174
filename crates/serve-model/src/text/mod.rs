//! Text to tokens and back, as a model's own files say: tokenizer, chat template, and what ends a text.

mod bounds;
mod detokenizer;
mod generation;
mod stages;
mod template;
mod tokenizer;
mod tokenizer_config;

pub use detokenizer::Detokenizer;
pub use generation::{GenerationConfig, GenerationError};
pub use template::{ChatInputs, ChatTemplate, TemplateError};
pub use tokenizer::{Tokenizer, TokenizerError};
pub use tokenizer_config::{ModelFileError, NamedTemplate, NamedTemplates, TokenizerConfig};
