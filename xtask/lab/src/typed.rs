//! What the command line has as text, as the decoder reads it.

use std::fmt::Display;
use std::str::FromStr;

use serve_model::decode::DeviceKind;
use serve_model::numbers::{Precision, Quantization};
use thiserror::Error;

use crate::cli::Weights;

/// An argument that the decoder does not know.
#[derive(Debug, Error)]
#[error("{argument}: {cause}")]
pub(crate) struct BadArgument {
    argument: &'static str,
    cause: String,
}

/// An argument as its type.
pub(crate) fn typed<T: FromStr<Err: Display>>(
    argument: &'static str,
    text: &str,
) -> Result<T, BadArgument> {
    text.parse().map_err(|cause: T::Err| BadArgument {
        argument,
        cause: cause.to_string(),
    })
}

impl Weights {
    /// What `--quantize` asks for.
    pub(crate) fn quantization(&self) -> Result<Option<Quantization>, BadArgument> {
        let asked = self.quantize.as_deref();
        asked.map(|text| typed("--quantize", text)).transpose()
    }

    /// What `--device` asks for.
    pub(crate) fn device(&self) -> Result<DeviceKind, BadArgument> {
        typed("--device", &self.device)
    }

    /// What `--precision` asks for.
    pub(crate) fn precision(&self) -> Result<Option<Precision>, BadArgument> {
        let asked = self.precision.as_deref();
        asked.map(|text| typed("--precision", text)).transpose()
    }
}
