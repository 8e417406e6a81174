//! Any bytes as the answer of a model, written as server-sent events and read back. What has to hold is in `tests/it/fuzz.rs`, which runs the
//! same on fixed seeds.

#![no_main]
#![expect(dead_code, reason = "each target uses a part of what the tests and the binary have")]

#[path = "../../tests/it/fuzz.rs"]
mod fuzz;
#[path = "../../tests/it/support.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzz::framing(data);
});
