//! For the commands that measure and compare: steps that are timed one by one, and how near logits have to
//! come to a reference's.

mod steps;
mod tolerance;

pub use steps::{StepBytes, TimedSteps, median};
pub use tolerance::{Off, Tolerance, spread};
