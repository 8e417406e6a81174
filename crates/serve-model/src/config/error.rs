//! Why a configuration cannot be used.

use std::path::PathBuf;

use thiserror::Error;

/// A configuration that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not a JSON object.
    #[error("config.json is no JSON object: {reason}")]
    Json {
        /// The parser's own words.
        reason: String,
    },
    /// A key that has no default is missing.
    #[error("config.json has no `{key}`")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A value of the wrong type or out of range.
    #[error("config.json: `{key}` must be {accepted}, not {found}")]
    Value {
        /// The key.
        key: &'static str,
        /// What would do.
        accepted: &'static str,
        /// What is there.
        found: String,
    },
    /// A feature that the decoder does not have.
    #[error("config.json: {feature} {found} is not supported; supported: {accepted}")]
    Unsupported {
        /// The feature.
        feature: &'static str,
        /// What the file asks for.
        found: String,
        /// What would do.
        accepted: &'static str,
    },
    /// Sizes that contradict each other.
    #[error("config.json: {what}")]
    Shape {
        /// The contradiction.
        what: String,
    },
}
