#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/session/harness.rs"]
mod harness;

fuzz_target!(|data: &[u8]| harness::ops::fuzz(data));
