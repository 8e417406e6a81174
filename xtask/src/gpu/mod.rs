//! The decoder's CUDA path without a GPU: two stand-ins for the driver, of which one runs the kernels on this
//! processor and the other has them compiled by the real NVRTC and runs nothing.
//!
//! Their sources are in `xtask/cuda-stand-in`. Nothing of what is measured on them says anything of a GPU's speed.

pub(crate) mod emulate;
mod programs;
mod stand_in;
