//! Which of the devices that a decoder can run on are here.
//!
//! Nothing is run to find out: a device that is probed and fails takes the process with it.

use crate::decode::{DeviceKind, DeviceMissing};
#[cfg(feature = "gpu")]
use crate::gpu::Gpu;

/// A device that can be used.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// The processor's cores. Where a GPU was passed over for something that it lacks, what.
    Cpu(Option<DeviceMissing>),
    /// Burn's own operations.
    Flex,
    /// A GPU.
    #[cfg(feature = "gpu")]
    Gpu(Gpu),
}

/// Finds the device that is asked for.
///
/// # Errors
///
/// [`DeviceMissing`], never for [`DeviceKind::Auto`] and [`DeviceKind::Cpu`].
pub(crate) fn find(kind: DeviceKind) -> Result<Found, DeviceMissing> {
    match kind {
        DeviceKind::Cpu => Ok(Found::Cpu(None)),
        DeviceKind::Flex => Ok(Found::Flex),
        DeviceKind::Cuda => cuda(),
        DeviceKind::WebGpu => webgpu(),
        DeviceKind::Auto => match cuda() {
            Ok(found) => Ok(found),
            Err(missing) => Ok(Found::Cpu(missing.passes_over_a_gpu().then_some(missing))),
        },
    }
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<Found, DeviceMissing> {
    Gpu::cuda().map(Found::Gpu)
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Found, DeviceMissing> {
    Err(DeviceMissing::NotBuilt {
        kind: DeviceKind::Cuda,
    })
}

#[cfg(feature = "webgpu")]
fn webgpu() -> Result<Found, DeviceMissing> {
    Gpu::webgpu().map(Found::Gpu)
}

#[cfg(not(feature = "webgpu"))]
fn webgpu() -> Result<Found, DeviceMissing> {
    Err(DeviceMissing::NotBuilt {
        kind: DeviceKind::WebGpu,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_finds_a_device_on_every_machine() {
        assert!(find(DeviceKind::Auto).is_ok());
        assert!(matches!(find(DeviceKind::Cpu), Ok(Found::Cpu(None))));
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_build_without_cuda_says_how_to_get_it() {
        let message = find(DeviceKind::Cuda).unwrap_err().to_string();
        assert!(message.contains("--features serve-http/cuda"), "{message}");
    }
}
