//! Any bytes as the body of a request for text. What has to hold is in `tests/it/fuzz.rs`, which runs the
//! same on fixed seeds.

#![no_main]
#![expect(dead_code, reason = "each target uses a part of what the tests and the binary have")]

#[path = "../../tests/it/fuzz.rs"]
mod fuzz;
#[path = "../../tests/it/support.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzz::bodies(data);
});
