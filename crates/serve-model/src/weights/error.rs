//! What can be wrong with a checkpoint.

use std::path::PathBuf;

use thiserror::Error;

use crate::config::Architecture;

/// A checkpoint that cannot be used.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The folder holds no weights in a format that is read.
    #[error(
        "{folder} holds neither model.safetensors nor model.safetensors.index.json; weights are \
         read from safetensors files"
    )]
    NotFound {
        /// The folder.
        folder: PathBuf,
    },
    /// A file cannot be opened or read.
    #[error("cannot read {file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file does not begin with a safetensors header.
    #[error("{file} is no safetensors file: {reason}")]
    Header {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The index of the shards is damaged.
    #[error("{file} is no index of safetensors shards: {reason}")]
    Index {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor reaches beyond the end of its file, as after an interrupted download.
    #[error("{file} is cut off: tensor {tensor} ends at byte {end} and the file has {length}")]
    Truncated {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Where it should end.
        end: u64,
        /// How long the file is.
        length: u64,
    },
    /// A tensor that the model needs is in none of the files.
    #[error("tensor {tensor} is missing from {}", files.join(", "))]
    Missing {
        /// The tensor.
        tensor: String,
        /// The files that were searched.
        files: Vec<String>,
    },
    /// The index promises a tensor that the shard does not hold.
    #[error("tensor {tensor} is missing from {shard}, where the index says it is")]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
    /// Two shards hold a tensor of the same name.
    #[error("tensor {tensor} is in both {first} and {second}")]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// One shard.
        first: String,
        /// The other.
        second: String,
    },
    /// A tensor's shape does not follow from the configuration.
    #[error("{file}: tensor {tensor} has shape {found:?} and config.json asks for {expected:?}")]
    Shape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// By the configuration.
        expected: Vec<usize>,
        /// In the file.
        found: Vec<usize>,
    },
    /// A tensor's elements are of a type that is not read.
    #[error("{file}: tensor {tensor} is stored as {found}; accepted are F32, F16 and BF16")]
    Dtype {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// A number that spoils every sum it is in.
    #[error("{file}: tensor {tensor} holds a number that is infinite or not a number (NaN)")]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that a model of this kind does not have.
    #[error("{file}: tensor {tensor} is not part of a {architecture} of this configuration")]
    Unexpected {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The family.
        architecture: Architecture,
    },
}
