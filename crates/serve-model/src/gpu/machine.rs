//! The decoder on a GPU: which devices there are, and [`GpuDevice`], which runs on one.
//!
//! Kernels are written in CubeCL's subset of Rust and compiled on the machine that runs them, for CUDA
//! by NVRTC and for others through WebGPU. Matrix products are Burn's.

#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod draws;
mod float;
mod graph;
mod kernels;
mod launches;
mod memory;

use burn_cubecl::CubeDevice;
use cubecl::ir::features::TypeUsage;

#[cfg(feature = "webgpu")]
use crate::devices::DeviceMissing;

pub(crate) use device::{GpuDevice, GpuParts};
pub(crate) use float::Float;

/// A GPU of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    device: CubeDevice,
}

impl Gpu {
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
            CubeDevice::Cuda(cuda) => Self::cuda_free_bytes(cuda.index),
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
