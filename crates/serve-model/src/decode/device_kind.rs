//! The kinds of devices by name, and why one that was asked for cannot be had.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

/// Where a decoder runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// An NVIDIA GPU where the build knows how and one is ready, else the CPU.
    #[default]
    Auto,
    /// The processor's cores, with this crate's kernels.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// Any GPU, or a software one, through WebGPU: for testing the GPU's kernels.
    WebGpu,
    /// The processor's cores, with Burn's own operations: slow, for comparison.
    Flex,
}

impl DeviceKind {
    /// Every kind, in the order in which they are worth trying.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Cpu, Self::Cuda, Self::WebGpu, Self::Flex];

    /// The name by which it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::WebGpu => "webgpu",
            Self::Flex => "flex",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no such kind of device.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("there is no device {name:?}; there are auto, cpu, cuda, webgpu and flex")]
pub struct UnknownDevice {
    name: String,
}

impl FromStr for DeviceKind {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<Self, UnknownDevice> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| UnknownDevice {
            name: name.to_owned(),
        })
    }
}

/// A device that was asked for and cannot be had.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DeviceMissing {
    /// The build does not know how.
    #[error(
        "this build cannot use {kind}; build it with `cargo build --release --workspace --features \
         serve-http/{kind}`, or use --device cpu"
    )]
    NotBuilt {
        /// What was asked for.
        kind: DeviceKind,
    },
    /// No such device is on this machine.
    #[error(
        "no {what} was found; use --device cpu, which needs none, or --device auto, which takes what \
         there is"
    )]
    NotHere {
        /// What was looked for.
        what: &'static str,
    },
    /// There is one, and something that it needs is not there.
    #[error("a GPU is there, and {what} is not; {remedy}, or use --device cpu")]
    NotReady {
        /// What is missing.
        what: &'static str,
        /// How it comes to be there.
        remedy: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_asked_for_by_name() {
        for kind in DeviceKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let message = "gpu".parse::<DeviceKind>().unwrap_err().to_string();
        let expected = "there is no device \"gpu\"; there are auto, cpu, cuda, webgpu and flex";
        assert_eq!(message, expected);
    }
}
