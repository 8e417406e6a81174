//! Runs and series of runs: the servers that they start, the search for what a server can carry, and
//! predictions in virtual time beside them.

pub(crate) mod calibrate;
pub(crate) mod capacity;
pub(crate) mod matrix;
pub mod measure;
pub(crate) mod progress;
pub(crate) mod series;
pub mod servers;
pub mod simulate;
pub(crate) mod sweep;
