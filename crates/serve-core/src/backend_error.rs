//! How a device fails.

use thiserror::Error;

/// Why a step did not run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BackendError {
    /// This step failed; the device goes on.
    #[error("the step failed: {cause}")]
    Step {
        /// The device's own words.
        cause: String,
    },
    /// The device is gone and so is everything that it held.
    #[error("the device was lost: {cause}")]
    Lost {
        /// The device's own words.
        cause: String,
    },
}

impl BackendError {
    /// The device's own words.
    pub fn cause(&self) -> &str {
        match self {
            Self::Step { cause } | Self::Lost { cause } => cause,
        }
    }
}
