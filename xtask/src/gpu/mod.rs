//! The decoder's CUDA path without a GPU: a stand-in for the driver that runs its kernels on this processor, and one that
//! has them compiled by the real NVRTC and runs nothing.
//!
//! Their sources are in `xtask/cuda-stand-in`. Nothing of what is measured on them says anything of a GPU's speed.

pub(crate) mod compile;
pub(crate) mod emulate;
mod gaps;
mod launches;
mod programs;
mod ptxas;
mod stand_in;
mod steps;
