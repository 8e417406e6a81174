//! The decoder on the processor's cores: its device, and the kernels that it is made of.

mod attention;
mod device;
mod kernels;
mod memory;

pub use device::{CpuDevice, CpuOptions};
pub use kernels::{Instructions, Kept, Matrix, ReadSpeed, Team};
pub(crate) use memory::weights_bytes;
