//! The figures of design section 8, beside the floor, in one run: `cargo xtask bench`.
//!
//! For each transport: the bare server and client of the same libraries, then cloudcore on a real kube-apiserver with
//! hollow nodes from another process. Figures of cloudcore come from its own `/proc` entry.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tombolo_tests::world::{Api, Transport, World};

/// A figure of the product, the floor's figure beside it, and what must be reached.
struct Line {
    figure: &'static str,
    floor: Option<&'static str>,
    /// Absolute target over WebSocket and QUIC; none: 1.5 times the floor alone.
    targets: Option<(f64, f64)>,
}

const fn line(figure: &'static str, floor: Option<&'static str>, targets: Option<(f64, f64)>) -> Line {
    Line { figure, floor, targets }
}

const LINES: [Line; 16] = [
    line("connections a second", Some("accepts_per_second"), None),
    line("processor time to accept a node", Some("accept_cpu_micros"), Some((500.0, 800.0))),
    line("time until every node is settled", None, None),
    line("memory per node's objects", None, None),
    line("memory per connected node, idle", Some("idle_kib_per_connection"), Some((30.0, 45.0))),
    line("memory per connected node, after work", Some("after_work_kib_per_connection"), Some((30.0, 45.0))),
    line("memory per node, grown by a large object", None, Some((0.0, 0.0))),
    line("processor time per delivered update, acknowledged", Some("update_cpu_micros"), None),
    line("fan-out of one update, p50", Some("fan_out_p50_ms"), None),
    line("fan-out of one update, p99, median run", Some("fan_out_p99_ms"), None),
    line("fan-out of one update, p99, worst run", Some("fan_out_p99_ms"), None),
    line("queries a second", Some("queries_per_second"), None),
    line("processor time per query", Some("query_cpu_micros"), None),
    line("all nodes back and caught up", None, None),
    line("processor time per reconnect", None, None),
    line("objects sent again", None, Some((0.0, 0.0))),
];

#[tokio::main]
async fn main() -> Result<()> {
    let nodes = std::env::args().nth(1).unwrap_or_else(|| "1000".to_owned());
    ensure!(nodes.parse::<u32>().is_ok(), "usage: bench [NODES]");
    println!("{}", machine());
    for transport in [Transport::WebSocket, Transport::Quic] {
        let floor = floor(transport, &nodes)?;
        let (figures, writes) = product(transport, &nodes).await?;
        println!("\n{nodes} nodes over {}", transport.setting());
        print_table(transport, &floor, &figures);
        println!("API writes of cloudcore while objects were delivered: {writes}");
    }
    Ok(())
}

fn floor(transport: Transport, nodes: &str) -> Result<Value> {
    let name = match transport {
        Transport::WebSocket => "ws",
        Transport::Quic => "quic",
    };
    json_of(Command::new(program("floor")?).args(["--connections", nodes, "--transport", name, "--json"]))
}

async fn product(transport: Transport, nodes: &str) -> Result<(Value, usize)> {
    let world = World::start(Api::Real, transport).await?;
    let ports = world.hub_ports();
    let mut command = Command::new(program("tombolo")?);
    command.args(["swarm", "--json", "--nodes", nodes, "--transport", transport.setting(), "--kubeconfig"]);
    command.arg(world.kubeconfig()).args(["--websocket-port", &ports[0].to_string()]);
    command.args(["--quic-port", &ports[1].to_string(), "--join-port", &ports[2].to_string()]);
    command.args(["--pid", &world.cloud_id().context("cloudcore is not running")?.to_string()]);
    let figures = json_of(&mut command)?;
    let events = world.plane.as_ref().context("a real control plane")?.audit_events()?;
    let writes = events.iter().filter(|event| event.is_write() && event.user.ends_with(":cloudcore"));
    // The authority, the token and the epoch are written once at the start.
    let deliveries = writes.filter(|event| !matches!(event.resource.as_str(), "secrets" | "configmaps"));
    Ok((figures, deliveries.count()))
}

fn print_table(transport: Transport, floor: &Value, figures: &Value) {
    println!("{:<52} {:>12} {:>12} {:>7} {:>10}", "", "Tombolo", "floor", "ratio", "target");
    for line in &LINES {
        let found = figures.as_array().into_iter().flatten().find(|figure| figure["name"] == line.figure);
        let Some(figure) = found else { continue };
        let value = figure["value"].as_f64().unwrap_or_default();
        let beside = line.floor.and_then(|name| floor[name].as_f64());
        let ratio = beside.map_or_else(|| "-".to_owned(), |floor| format!("{:.2}", value / floor));
        let target = line.targets.map(|(websocket, quic)| match transport {
            Transport::WebSocket => websocket,
            Transport::Quic => quic,
        });
        let name = format!("{} [{}]", line.figure, figure["unit"].as_str().unwrap_or_default());
        println!("{name:<52} {value:>12.2} {:>12} {ratio:>7} {:>10}", number(beside), number(target));
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

fn json_of(command: &mut Command) -> Result<Value> {
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{:?} ended with {}", command.get_program(), output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("output of {:?}", command.get_program()))
}

fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.is_file(), "{} is not built: run `cargo xtask bench`", path.display());
    Ok(path)
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{}, {cores} cores, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}
