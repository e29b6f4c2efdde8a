#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tombolo_apicore_fuzz::bodies::patch(data));
