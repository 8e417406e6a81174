//! The decoder on Burn's own operations, for comparison.

mod device;
mod operations;

pub(crate) use device::FlexDevice;
