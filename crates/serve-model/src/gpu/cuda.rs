//! What the machine of an NVIDIA GPU has, asked before anything is run.

#![expect(
    unsafe_code,
    reason = "looking for a library loads it, and a library may do anything when it is loaded"
)]

use burn_cubecl::CubeDevice;

use crate::decode::DeviceMissing;

/// The first NVIDIA GPU, if all that its kernels are compiled with is there too.
///
/// # Errors
///
/// [`DeviceMissing`], naming what is not there. Without it the first kernel would end the process.
pub(super) fn find() -> Result<CubeDevice, DeviceMissing> {
    let is_cuda = |device: &CubeDevice| matches!(device, CubeDevice::Cuda(_));
    let device = CubeDevice::enumerate_all().into_iter().find(is_cuda);
    let device = device.ok_or(DeviceMissing::NotHere { what: "NVIDIA GPU" })?;
    // SAFETY: NVRTC runs nothing of its own when it is loaded.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(DeviceMissing::NotReady {
            what: "NVRTC",
            remedy: "install libnvrtc where the loader finds it (LD_LIBRARY_PATH)",
        });
    }
    let headers = cubecl::cuda::install::cuda_path().map(|path| path.join("include"));
    if !headers.is_some_and(|path| path.join("cuda_fp16.h").is_file()) {
        return Err(DeviceMissing::NotReady {
            what: "the folder of CUDA's headers",
            remedy: "install them and let CUDA_PATH name the folder above `include`",
        });
    }
    Ok(device)
}

/// Bytes that nobody has taken yet.
pub(super) fn free_bytes(index: usize) -> Option<u64> {
    let context = cudarc::driver::CudaContext::new(index).ok()?;
    let (free, _) = context.mem_get_info().ok()?;
    Some(free as u64)
}
