//! What the machine of an NVIDIA GPU has, asked before anything is run: a driver that works, NVRTC that fits it, the
//! headers that kernels include, and a trial kernel that all of them are needed for.

#![expect(
    unsafe_code,
    reason = "looking for a library loads it, and a library may do anything when it is loaded"
)]

use std::ffi::c_int;
use std::path::Path;
use std::sync::OnceLock;

use burn_cubecl::CubeDevice;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, DriverError};

use super::trial;
use crate::decode::{CudaVersion, DeviceMissing};

/// Headers below CUDA's folder that kernels include, and the packages that have them. The last may lie in `cccl`.
const HEADERS: [(&str, &str); 4] = [
    ("cuda_fp16.h", "nvidia-cuda-runtime"),
    ("cuda_bf16.h", "nvidia-cuda-runtime"),
    ("crt/mma.h", "nvidia-cuda-crt"),
    ("cuda/barrier", "nvidia-cuda-cccl"),
];

/// The first NVIDIA GPU, if all that its kernels are compiled with is there too.
///
/// # Errors
///
/// [`DeviceMissing`], naming what is not there or does not work. Without it the first kernel would end the process, or
/// fail without a word.
pub(super) fn find() -> Result<CubeDevice, DeviceMissing> {
    let none = DeviceMissing::NotHere { what: "NVIDIA GPU" };
    // SAFETY: the driver's library runs nothing of its own when it is loaded.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(none);
    }
    // Enumerating would find no device and lose the cause.
    cudarc::driver::result::init().map_err(|error| match error {
        DriverError(CUresult::CUDA_ERROR_NO_DEVICE) => none.clone(),
        error => DeviceMissing::Driver {
            said: error.to_string(),
        },
    })?;
    let is_cuda = |device: &CubeDevice| matches!(device, CubeDevice::Cuda(_));
    let device = CubeDevice::enumerate_all().into_iter().find(is_cuda);
    let device = device.ok_or(none)?;
    // Once, as a process may load several models.
    static COMPILES: OnceLock<Result<(), DeviceMissing>> = OnceLock::new();
    COMPILES.get_or_init(compiles).clone()?;
    Ok(device)
}

/// Whether kernels can be compiled here.
fn compiles() -> Result<(), DeviceMissing> {
    let folder = cubecl::cuda::install::cuda_path().map(|path| path.join("include"));
    // SAFETY: NVRTC runs nothing of its own when it is loaded.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(DeviceMissing::Nvrtc);
    }
    let (nvrtc, driver) = (nvrtc_version(), driver_version());
    if nvrtc > driver {
        return Err(DeviceMissing::NvrtcTooNew { nvrtc, driver });
    }
    let there = |name: &str| {
        let holds = |folder: &Path| folder.join(name).is_file();
        let folder = folder.as_deref();
        folder.is_some_and(|folder| holds(folder) || holds(&folder.join("cccl")))
    };
    if let Some(&(header, package)) = HEADERS.iter().find(|(name, _)| !there(name)) {
        return Err(DeviceMissing::Header { header, package });
    }
    trial::run(&folder.unwrap_or_default()).map_err(|said| DeviceMissing::Compiler { said })
}

/// Of the library that compiles.
fn nvrtc_version() -> CudaVersion {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: both are there to be written.
    let _ = unsafe { cudarc::nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    CudaVersion {
        major: major.unsigned_abs(),
        minor: minor.unsigned_abs(),
    }
}

/// The newest that the driver takes.
fn driver_version() -> CudaVersion {
    let mut version: c_int = 0;
    // SAFETY: it is there to be written.
    let _ = unsafe { cudarc::driver::sys::cuDriverGetVersion(&raw mut version) };
    CudaVersion::of_number(version.unsigned_abs())
}

/// Bytes that nobody has taken yet.
pub(super) fn free_bytes(index: usize) -> Option<u64> {
    let context = CudaContext::new(index).ok()?;
    let (free, _) = context.mem_get_info().ok()?;
    Some(free as u64)
}
