//! The measuring and attacking programs fail with a message when they are told to do nothing.

use std::process::Command;

const BENCH: &str = env!("CARGO_BIN_EXE_bench");
const API_BENCH: &str = env!("CARGO_BIN_EXE_apibench");
const EDGE_BENCH: &str = env!("CARGO_BIN_EXE_edgebench");
const HOSTILE: &str = env!("CARGO_BIN_EXE_hostile");
const E2E: &str = env!("CARGO_BIN_EXE_e2e");
const FLOOR: &str = env!("CARGO_BIN_EXE_floor");

#[test]
fn a_run_that_would_check_nothing_is_refused() {
    for (program, arguments, why) in [
        (BENCH, "--runs 0", "0 is not in 1.."),
        (BENCH, "--calls --nodes 0", "nothing to measure"),
        (BENCH, "--dialect kubeedge --nodes 0", "nothing to measure"),
        (API_BENCH, "--runs 0", "0 is not in 1.."),
        (API_BENCH, "--objects 0", "0 is not in 1.."),
        (API_BENCH, "--objects 10 0", "0 is not in 1.."),
        (API_BENCH, "--watchers 0", "0 is not in 1.."),
        (EDGE_BENCH, "--seconds 0", "0 is not in 1.."),
        (HOSTILE, "--nodes 0", "0 is not in 1.."),
        (HOSTILE, "--seconds 0", "0 is not in 1.."),
        (HOSTILE, "--only what-nobody-does", "no attack has \"what-nobody-does\" in its name"),
        (E2E, "--suite nowhere run --target embedded --procs 0", "0 is not in 1.."),
        (FLOOR, "--connections 0", "nothing to measure"),
    ] {
        let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{program} {arguments} must not succeed");
        assert!(said.contains(why), "{program} {arguments}: {said}");
    }
}
