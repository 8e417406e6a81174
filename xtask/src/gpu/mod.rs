//! The decoder's CUDA path without a GPU: stand-ins for the driver and NVRTC run its kernels on this processor.
//!
//! Their sources are in `xtask/cuda-stand-in`. Nothing of what is measured on them says anything of a GPU's speed.

pub(crate) mod emulate;
mod gaps;
mod programs;
mod stand_in;
