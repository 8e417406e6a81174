//! Why a file of weights does not become a folder.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::gguf::GgufError;

/// Why a GGUF file could not be laid out as a folder.
#[derive(Debug, Error)]
pub(crate) enum ConvertError {
    /// The source file cannot be understood.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model is of a kind that is not known here.
    #[error("architecture {found} is not supported; {known} are")]
    Architecture {
        /// What the file says.
        found: String,
        /// What is accepted.
        known: String,
    },
    /// The vocabulary is of a kind that is not known here.
    #[error("tokenizer {model}/{pre} is not supported; gpt2 with qwen2, smollm is")]
    Tokenizer {
        /// The tokenizer's model.
        model: String,
        /// Its pre-tokenizer.
        pre: String,
    },
    /// A tensor has no place in the folder.
    #[error("tensor {0} has no Hugging Face name here")]
    TensorName(String),
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl ConvertError {
    /// A failed write of `path`.
    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        Self::Write {
            path: path.to_owned(),
            source,
        }
    }
}
