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
    /// Its driver is there and cannot be used.
    #[error(
        "the NVIDIA driver is there and does not work: {said}; see whether `nvidia-smi` lists the GPU (after an update of \
         the driver the machine has to be restarted, and a container needs the driver's libraries of its host), or use \
         --device cpu"
    )]
    Driver {
        /// The driver's own words.
        said: String,
    },
    /// What compiles kernels is not there.
    #[error(
        "a GPU is there, and NVRTC, which compiles its kernels, is not where the loader looks (LD_LIBRARY_PATH); {CUDA_PACKAGES}, \
         or use --device cpu"
    )]
    Nvrtc,
    /// What compiles kernels is newer than what loads them.
    #[error(
        "NVRTC is of CUDA {nvrtc}, and the driver takes no more than {driver}; {CUDA_PACKAGES}, and let the loader find that one \
         first (LD_LIBRARY_PATH), or use --device cpu"
    )]
    NvrtcTooNew {
        /// The version of what compiles.
        nvrtc: CudaVersion,
        /// The newest that the driver takes.
        driver: CudaVersion,
    },
    /// A header that kernels include is not there.
    #[error(
        "a GPU is there, and CUDA's header {header} ({package}) is not in `include` below CUDA_PATH or /usr/local/cuda; \
         {CUDA_PACKAGES}, or use --device cpu"
    )]
    Header {
        /// Its path below `include`.
        header: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// All is there, and a kernel does not compile or load.
    #[error(
        "kernels cannot be compiled for this GPU: {said}\n{CUDA_PACKAGES}, or use --device cpu"
    )]
    Compiler {
        /// The compiler's own words, or the driver's.
        said: String,
    },
}

/// Where everything that compiles kernels comes from on a machine that has a driver and nothing else.
pub const CUDA_PACKAGES: &str = "\
install a CUDA toolkit no newer than the driver, or in a virtual environment `pip install 'nvidia-cuda-nvrtc==13.0.*' \
'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl==13.0.*'` and set \
CUDA_PATH=$(echo $VIRTUAL_ENV/lib/python3*/site-packages/nvidia/cu13) and LD_LIBRARY_PATH=$CUDA_PATH/lib";

/// A version of CUDA, such as 13.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    /// Before the dot.
    pub major: u32,
    /// After it.
    pub minor: u32,
}

impl CudaVersion {
    /// The one that this build is for; without the feature `cuda`, the one that it would be for unless told otherwise.
    pub fn built_for() -> Self {
        #[cfg(feature = "cuda")]
        let number = cudarc::driver::sys::CUDA_VERSION;
        #[cfg(not(feature = "cuda"))]
        let number = 13_000;
        Self::of_number(number)
    }

    /// Of the number that the driver and the headers have for it: 13000 is 13.0.
    pub fn of_number(number: u32) -> Self {
        Self {
            major: number / 1_000,
            minor: number % 1_000 / 10,
        }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl DeviceMissing {
    /// Whether a GPU is there and something else is missing, which somebody may want to know who did not ask for one.
    pub fn passes_over_a_gpu(&self) -> bool {
        !matches!(self, Self::NotBuilt { .. } | Self::NotHere { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_cuda_are_in_order() {
        let versions = [12_020, 12_080, 13_000, 13_050].map(CudaVersion::of_number);
        assert!(versions.is_sorted());
        assert_eq!(versions[3].to_string(), "13.5");
    }

    #[test]
    fn what_a_gpu_lacks_is_told_with_the_very_packages() {
        let [nvrtc, driver] = [13_050, 13_000].map(CudaVersion::of_number);
        let too_new = DeviceMissing::NvrtcTooNew { nvrtc, driver };
        let message = too_new.to_string();
        assert!(
            message.contains("CUDA 13.5, and the driver takes no more than 13.0"),
            "{message}"
        );
        for package in ["nvrtc", "runtime", "crt", "cccl"] {
            assert!(
                message.contains(&format!("'nvidia-cuda-{package}==13.0.*'")),
                "{message}"
            );
        }
        assert!(too_new.passes_over_a_gpu());
        assert!(!DeviceMissing::NotHere { what: "GPU" }.passes_over_a_gpu());
    }

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
