//! The trials in small: the same code as the commands, a few hundred requests each.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, its helpers too"
)]

mod campaign;
mod check;
mod promise;
