//! What is wrong with a setting.

use thiserror::Error;

/// A setting that cannot be had. Programs that take settings say it in these words, whichever way
/// they take them.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SettingError {
    /// There is no setting of this name.
    #[error("{name} is not a setting; known are {}", known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<&'static str>,
    },
    /// The setting does not take this value.
    #[error("invalid value '{value}' for '{setting}': {accepted}")]
    Value {
        /// The setting, as a flag with what stands for its value.
        setting: String,
        /// What it was given.
        value: String,
        /// What it takes.
        accepted: String,
    },
    /// The setting cannot be beside the others.
    #[error("{setting}: {cause}")]
    Contradiction {
        /// The setting, as a flag.
        setting: String,
        /// What it needs, or what it must be.
        cause: String,
    },
}
