//! The figures of docs/benchmarks.md, beside the floor, in one run: `cargo xtask bench`.
//!
//! For each transport and number of nodes, this measures the bare server and client of the same libraries, then
//! cloudcore on a real kube-apiserver with hollow nodes from another process. Figures of cloudcore come from its own
//! `/proc` entry. Then it measures the codecs and the agent of one node.

#[path = "../bench/agent.rs"]
mod agent;
#[path = "../bench/calls.rs"]
mod calls;
#[path = "../bench/codec.rs"]
mod codec;
#[path = "../../../proto/benches/fixture/pod.rs"]
mod fixture;
#[path = "../bench/hollow.rs"]
mod hollow;
#[path = "../bench/table.rs"]
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::Value;
use tombolo_cli::transport::DialectOption;
use tombolo_testkit::AuditEvent;
use tombolo_tests::world::{Api, Transport, World};

/// What to measure. `cargo xtask bench` builds the programs and starts this one.
#[derive(Parser)]
struct BenchOptions {
    /// Runs of the floor and of cloudcore, alternating, so that other load on the machine affects both. Each run is
    /// compared with the floor just before it; the medians are printed, with their range.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Measure only this dialect, and neither the codecs nor the agent.
    #[arg(long, value_enum)]
    dialect: Option<DialectOption>,

    /// Numbers of hollow nodes; 0 measures only the codecs and the agent.
    #[arg(long, num_args = 1.., default_values_t = [1000, 2000])]
    nodes: Vec<u32>,

    /// Count the calls to the API server when all nodes come back, and measure nothing else.
    #[arg(long, conflicts_with_all = ["dialect", "runs"])]
    calls: bool,
}

/// Transports and dialects, in the order of the tables.
const CHANNELS: [(Transport, DialectOption); 3] = [
    (Transport::WebSocket, DialectOption::Tombolo),
    (Transport::Quic, DialectOption::Tombolo),
    (Transport::WebSocket, DialectOption::Kubeedge),
];

#[tokio::main]
async fn main() -> Result<()> {
    let BenchOptions { runs, dialect, nodes, calls } = BenchOptions::parse();
    let nodes: Vec<u32> = nodes.into_iter().filter(|nodes| *nodes > 0).collect();
    let alone = !calls && dialect.is_none();
    ensure!(alone || !nodes.is_empty(), "without nodes, --calls and --dialect leave nothing to measure");
    if calls {
        for nodes in nodes {
            calls::measure(nodes).await?;
        }
        return Ok(());
    }
    println!("{}, median of {runs} runs", tombolo_cli::process::machine());
    for nodes in nodes.iter().map(u32::to_string) {
        for (transport, spoken) in CHANNELS {
            if dialect.is_none_or(|dialect| dialect == spoken) {
                hub(transport, &spoken.to_string(), &nodes, runs).await?;
            }
        }
    }
    if dialect.is_some() {
        return Ok(());
    }
    table::print("codec", &codec::measure()?);
    table::print("the agent of one node", &agent::measure().await?);
    Ok(())
}

/// Updates and queries of every run, of the floor and of cloudcore.
const WORK: [&str; 4] = ["--updates", "40", "--queries", "60"];

/// Measures cloudcore and its floor.
async fn hub(transport: Transport, dialect: &str, nodes: &str, count: u32) -> Result<()> {
    let mut runs = Vec::new();
    for run in 1..=count {
        eprintln!(
            "bench: run {run} of {count}, {nodes} nodes over {}, dialect {dialect}",
            transport.setting()
        );
        let floor = floor(transport, dialect, nodes)?;
        let (figures, writes) = product(transport, dialect, nodes).await?;
        runs.push(table::Run { floor, figures, writes });
    }
    table::print(
        &format!("{nodes} nodes over {}, dialect {dialect}", transport.setting()),
        &table::beside_floor(transport, &runs),
    );
    let last = runs.last().context("there is a run")?;
    println!("writes of cloudcore in the audit log of the last run:");
    for (write, times) in &last.writes {
        println!("  {times} × {write}");
    }
    Ok(())
}

fn floor(transport: Transport, dialect: &str, nodes: &str) -> Result<Value> {
    let name = match transport {
        Transport::WebSocket => "ws",
        Transport::Quic => "quic",
    };
    let mut command = Command::new(program("floor")?);
    command.args(["--connections", nodes, "--transport", name, "--dialect", dialect, "--json"]);
    json_of(command.args(WORK))
}

/// Returns the swarm's figures, and every kind of write by cloudcore with its count.
async fn product(
    transport: Transport,
    dialect: &str,
    nodes: &str,
) -> Result<(Value, BTreeMap<String, usize>)> {
    let world = World::start(Api::Real, transport).await?;
    let ports = world.hub_ports();
    let mut command = Command::new(program("tombolo")?);
    command.args(["swarm", "--json", "--nodes", nodes, "--transport", transport.setting()]).args(WORK);
    command.args(["--dialect", dialect, "--kubeconfig"]);
    command.arg(world.kubeconfig()).args(["--websocket-port", &ports[0].to_string()]);
    command.args(["--quic-port", &ports[1].to_string(), "--join-port", &ports[2].to_string()]);
    command.args(["--pid", &world.cloud_id().context("cloudcore is not running")?.to_string()]);
    let figures = json_of(&mut command)?;
    let mut writes = BTreeMap::new();
    for event in world.plane.as_ref().context("a real control plane")?.audit_events()? {
        if event.is_write() && event.user.ends_with(":tombolo-cloudcore") {
            *writes.entry(describe(&event)).or_default() += 1;
        }
    }
    Ok((figures, writes))
}

/// Describes a write. Writes to the nodes' own objects are counted together.
fn describe(event: &AuditEvent) -> String {
    let AuditEvent { verb, resource, namespace, name, code, .. } = event;
    let who = event.impersonated.as_ref().map(|_| " as the node").unwrap_or_default();
    let name = name.split_once("swarm-").map_or_else(|| name.clone(), |(start, _)| format!("{start}NODE"));
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
