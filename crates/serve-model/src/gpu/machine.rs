//! The GPUs of this machine, and what they can do.

use burn_cubecl::CubeDevice;
use cubecl::ir::features::TypeUsage;

#[cfg(feature = "cuda")]
use super::cuda;
use super::float::Float;
#[cfg(any(feature = "cuda", feature = "webgpu"))]
use crate::decode::DeviceMissing;

/// A GPU of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    pub(super) device: CubeDevice,
}

impl Gpu {
    /// The first NVIDIA GPU, if all that its kernels are compiled with is there too.
    #[cfg(feature = "cuda")]
    pub(crate) fn cuda() -> Result<Self, DeviceMissing> {
        cuda::find().map(|device| Self { device })
    }

    /// The first device that WebGPU finds.
    #[cfg(feature = "webgpu")]
    pub(crate) fn webgpu() -> Result<Self, DeviceMissing> {
        let is_webgpu = |device: &CubeDevice| matches!(device, CubeDevice::Wgpu(_));
        let device = CubeDevice::enumerate_all().into_iter().find(is_webgpu);
        let device = device.ok_or(DeviceMissing::NotHere {
            what: "device with Vulkan",
        })?;
        Ok(Self { device })
    }

    /// Bytes of the device that nobody has taken yet, where it can be asked.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        match &self.device {
            #[cfg(feature = "cuda")]
            CubeDevice::Cuda(device) => cuda::free_bytes(device.index),
            _ => None,
        }
    }

    /// bf16 where the device computes with it.
    pub(crate) fn float(&self) -> Float {
        let client = self.device.client();
        let usage = client.properties().type_usage(Float::Bf16.element());
        let needed = TypeUsage::Buffer | TypeUsage::Conversion | TypeUsage::Arithmetic;
        match usage.is_superset(needed) {
            true => Float::Bf16,
            false => Float::F32,
        }
    }

    /// What it is called.
    pub(crate) fn name(&self) -> String {
        let client = self.device.client();
        let kind = match self.device {
            CubeDevice::Cuda(_) => "cuda",
            _ => "webgpu",
        };
        format!("{kind} ({})", client.properties().identity.name)
    }
}
