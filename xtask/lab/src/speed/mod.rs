//! `cargo xtask speed`: how fast the parts are, and the whole.

pub(crate) mod cpu;
pub(crate) mod decode;
pub(crate) mod edge;
pub(crate) mod peers;
pub(crate) mod sched;
pub(crate) mod start_up;
pub(crate) mod turns;
