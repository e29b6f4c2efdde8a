//! The figures of design section 8, beside the floor, in one run: `cargo xtask bench`.
//!
//! For each transport and number of nodes: the bare server and client of the same libraries, then cloudcore on a real
//! kube-apiserver with hollow nodes from another process. Figures of cloudcore come from its own `/proc` entry. Then
//! the codecs, and the agent of one node.

#[path = "../bench/agent.rs"]
mod agent;
#[path = "../bench/codec.rs"]
mod codec;
#[path = "../../../proto/benches/fixture/pod.rs"]
mod fixture;
#[path = "../bench/table.rs"]
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use table::Row;
use tombolo_testkit::AuditEvent;
use tombolo_tests::world::{Api, Transport, World};

#[tokio::main]
async fn main() -> Result<()> {
    let counts: Vec<String> = std::env::args().skip(1).collect();
    ensure!(
        counts.iter().all(|count| count.parse::<u32>().is_ok_and(|count| count > 0)),
        "usage: bench [NODES]..."
    );
    println!("{}", machine());
    for nodes in &counts {
        hub(Transport::WebSocket, "tombolo", nodes).await?;
        hub(Transport::Quic, "tombolo", nodes).await?;
        hub(Transport::WebSocket, "kubeedge", nodes).await?;
    }
    table::print("codec", &codec::measure()?);
    table::print("the agent of one node", &agent::measure().await?);
    Ok(())
}

/// Measures cloudcore and its floor.
async fn hub(transport: Transport, dialect: &str, nodes: &str) -> Result<()> {
    let floor = floor(transport, nodes)?;
    let (figures, writes) = product(transport, dialect, nodes).await?;
    let mut rows = table::beside_floor(transport, &floor, &figures);
    let value = |name: &str| {
        let found = figures.as_array()?.iter().find(|figure| figure["name"] == name)?;
        found["value"].as_f64()
    };
    let deliveries = value("deliveries").context("the swarm counts deliveries")?;
    let count: usize = writes.values().sum();
    rows.push(Row::new("API writes per delivery", "", count as f64 / deliveries).target(Some(0.0)));
    table::print(&format!("{nodes} nodes over {}, dialect {dialect}", transport.setting()), &rows);
    println!("writes of cloudcore in the audit log, of {deliveries} deliveries:");
    for (write, times) in &writes {
        println!("  {times} × {write}");
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

/// The swarm's figures, and every kind of write by cloudcore with its number.
async fn product(
    transport: Transport,
    dialect: &str,
    nodes: &str,
) -> Result<(Value, BTreeMap<String, usize>)> {
    let world = World::start(Api::Real, transport).await?;
    let ports = world.hub_ports();
    let mut command = Command::new(program("tombolo")?);
    command.args(["swarm", "--json", "--nodes", nodes, "--transport", transport.setting()]);
    command.args(["--dialect", dialect, "--kubeconfig"]);
    command.arg(world.kubeconfig()).args(["--websocket-port", &ports[0].to_string()]);
    command.args(["--quic-port", &ports[1].to_string(), "--join-port", &ports[2].to_string()]);
    command.args(["--pid", &world.cloud_id().context("cloudcore is not running")?.to_string()]);
    let figures = json_of(&mut command)?;
    let mut writes = BTreeMap::new();
    for event in world.plane.as_ref().context("a real control plane")?.audit_events()? {
        if event.is_write() && event.user.ends_with(":cloudcore") {
            *writes.entry(describe(&event)).or_default() += 1;
        }
    }
    Ok((figures, writes))
}

fn describe(event: &AuditEvent) -> String {
    let AuditEvent { verb, resource, namespace, name, code, .. } = event;
    let who = event.impersonated.as_ref().map(|user| format!(" as {user}")).unwrap_or_default();
    format!("{verb} {resource} {namespace}/{name}{who}, answered {code}")
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
