//! The measuring and attacking programs fail with a message when they are told to do nothing, and the floor measures what
//! the hub is measured with.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use tombolo_tests::source::{files, product_lines, relative};

const BENCH: &str = env!("CARGO_BIN_EXE_bench");
const API_BENCH: &str = env!("CARGO_BIN_EXE_apibench");
const EDGE_BENCH: &str = env!("CARGO_BIN_EXE_edgebench");
const HOSTILE: &str = env!("CARGO_BIN_EXE_hostile");
const E2E: &str = env!("CARGO_BIN_EXE_e2e");
const FLOOR: &str = env!("CARGO_BIN_EXE_floor");

#[test]
fn run_that_would_check_nothing_is_refused() {
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

#[test]
fn the_floor_is_measured_over_every_transport_and_with_either_stack() {
    let variants = [
        "--transport ws",
        "--transport quic",
        "--transport ws --dialect kubeedge",
        "--transport quic --stack link",
    ];
    let started = variants.map(|variant| {
        let mut floor = Command::new(FLOOR);
        floor
            .args(["--json", "--connections", "20", "--updates", "2", "--queries", "2"])
            .args(variant.split(' '));
        (variant, floor.stdout(Stdio::piped()).spawn().unwrap())
    });
    for (variant, floor) in started {
        let output = floor.wait_with_output().unwrap();
        assert!(output.status.success(), "{variant}: {}", output.status);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        // Memory may grow by nothing with so few connections.
        let times = ["accept_cpu_micros", "update_cpu_micros", "fan_out_p99_ms", "query_cpu_micros"];
        for figure in times {
            assert!(report[figure].as_f64().unwrap() > 0.0, "{variant}: {figure} in {report}");
        }
    }
}

/// A setting of the floor alone would compare the setting, not the hub's work.
#[test]
fn the_floor_has_the_settings_of_links_and_of_the_deployed_allocator() {
    let own = [
        "WebSocketConfig",
        "TransportConfig",
        "EndpointConfig",
        "set_nodelay",
        "set_recv_buffer_size",
        "set_send_buffer_size",
        "set_buffer_limit",
        "MALLOC_",
    ];
    let mut text = String::new();
    for file in files("tests/src/floor", ".rs") {
        let source = fs::read_to_string(&file).unwrap();
        let lines = product_lines(&source);
        for line in &lines {
            let found = own.iter().find(|setting| line.contains(**setting));
            assert!(found.is_none(), "{}: {}", relative(&file), line.trim());
        }
        text.push_str(&lines.join("\n"));
    }
    for shared in ["tcp(", "tls(", "websocket(", "quic_server(", "quic_client("] {
        assert!(text.contains(&format!("tuning::{shared}")), "tuning::{shared}");
    }
    assert!(text.contains(".envs(ALLOCATOR)"));
}
