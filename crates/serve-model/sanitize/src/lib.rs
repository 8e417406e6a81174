//! The kernels of `serve-model` without the rest of it, so that they compile in a minute where they have
//! to be compiled anew: with a sanitizer, or for Miri. `cargo xtask sanitize` runs their tests.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "parts of the kernels are there for the rest of serve-model"
)]

#[path = "../../src/cpu"]
mod cpu {
    pub(crate) mod kernels;
}

#[path = "../../src/numbers.rs"]
mod numbers;

#[cfg(test)]
mod small;
