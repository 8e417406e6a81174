//! Runs and series of runs: the servers that they start, the search for what a server can carry, and
//! predictions in virtual time beside them.

pub mod calibrate;
pub mod capacity;
pub mod matrix;
pub mod measure;
pub mod progress;
pub mod promises;
pub mod series;
pub mod servers;
pub mod simulate;
pub mod sweep;
