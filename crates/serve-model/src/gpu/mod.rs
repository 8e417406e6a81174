//! The decoder on a GPU: which devices there are, and [`GpuDevice`], which runs on one.
//!
//! Kernels are written in CubeCL's subset of Rust and compiled on the machine that runs them, for CUDA
//! by NVRTC and for others through WebGPU. So are, on CUDA, matrix products of few rows; others are Burn's.

#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod draws;
mod float;
mod graph;
mod kernels;
mod launches;
mod machine;
mod memory;
#[cfg(feature = "cuda")]
mod trial;

pub(crate) use device::{GpuDevice, GpuParts};
pub(crate) use float::Float;
pub(crate) use machine::Gpu;
