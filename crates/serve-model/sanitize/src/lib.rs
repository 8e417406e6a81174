//! The kernels of `serve-model` without the rest of it, so that they compile in a minute where they have
//! to be compiled anew: with a sanitizer, or for Miri. `cargo xtask sanitize` runs their tests.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "parts of the kernels are there for the rest of serve-model"
)]

#[path = "../../src"]
mod model {
    pub(crate) mod kernels;
}

#[cfg(test)]
mod small;
