//! The cost of DNS names and Services on a node: `cargo xtask edge-bench`.
//!
//! One agent in a process of its own, with 50 pods, 500 Services and 1,000 slices of 10 endpoints. Figures of the agent
//! come from its `/proc` entry. This process generates the load.

#[path = "../edgebench/cluster.rs"]
mod cluster;
#[path = "../edgebench/names.rs"]
mod names;
#[path = "../edgebench/wrapper.rs"]
mod wrapper;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tombolo_cli::process::{Process, machine};

use cluster::Cluster;

/// Runs of lists and of changes; the median is printed.
const RUNS: usize = 3;

#[derive(Parser)]
struct EdgeBenchOptions {
    /// Seconds during which DNS queries are sent.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// Measure the `edgecore` of the profile `dist` instead of the one that is built for a device.
    #[arg(long)]
    quick: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let EdgeBenchOptions { seconds, quick } = EdgeBenchOptions::parse();
    let edgecore = edgecore(if quick { "dist" } else { "device" })?;
    println!(
        "{}, edgecore {}; times are the middle of {RUNS} runs",
        machine(),
        if quick { "of the profile dist" } else { "built for a device" }
    );
    let cluster = Cluster::start(&edgecore).await?;
    let agent = Process::new(cluster.world.edge_id(cluster::NODE).context("edgecore is not running")?)?;
    let names = names::measure(cluster.dns, agent, Duration::from_secs(seconds)).await?;
    row("DNS answers for each second of processor time", "1/s", names.each_cpu_second, Some(50_000.0));
    row("DNS answers each second, one client process beside it", "1/s", names.each_second, None);
    row("DNS questions without an answer", "%", 100.0 * names.lost, None);
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(wrapper::lists(cluster.wrapper).await?);
    }
    let lists = Spread::middle(&runs);
    row("list of 1,000 slices through the wrapper, p50", "ms", millis(lists.p50), None);
    row("list of 1,000 slices through the wrapper, p99", "ms", millis(lists.p99), Some(5.0));
    // Names and slices have been answered, so the agent holds everything by now.
    row("agent, resident", "MB", agent.read()?.resident as f64 / 1e6, Some(25.0));
    for watchers in [1, 100] {
        let mut runs = Vec::new();
        for run in 0..RUNS {
            runs.push(wrapper::watches(&cluster, agent, watchers, run).await?);
        }
        let times: Vec<Spread> = runs.iter().map(|watched| watched.times).collect();
        let (times, cpu) = (Spread::middle(&times), middle(runs.iter().map(|watched| watched.cpu)));
        let name = |what: &str| format!("{what}, {watchers} watchers");
        row(&name("change from the hub to a watcher of the wrapper, p50"), "ms", millis(times.p50), None);
        let target = (watchers == 1).then_some(2.0);
        row(&name("change from the hub to a watcher of the wrapper, p99"), "ms", millis(times.p99), target);
        row(&name("processor time of the agent for a change"), "µs", cpu.as_secs_f64() * 1e6, None);
    }
    row(
        "agent, resident with 100 watchers after 1,800 changes",
        "MB",
        agent.read()?.resident as f64 / 1e6,
        None,
    );
    Ok(())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn row(name: &str, unit: &str, value: f64, target: Option<f64>) {
    let target = target.map(|target| format!("   target {target}")).unwrap_or_default();
    println!("{name:90} {value:>12.2} {unit:4}{target}");
}

/// The `edgecore` that `cargo xtask edge-bench` has built.
fn edgecore(profile: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(2).context("the benchmark is not in a target folder")?;
    let path = target.join(profile).join("edgecore");
    ensure!(path.is_file(), "{} is not built: run `cargo xtask edge-bench`", path.display());
    Ok(path)
}

/// The median and the 99th percentile.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

impl Spread {
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
        Self { p50: at(50).copied().unwrap_or_default(), p99: at(99).copied().unwrap_or_default() }
    }

    /// The median of each figure.
    fn middle(runs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> Duration| middle(runs.iter().map(figure));
        Self { p50: of(|run| run.p50), p99: of(|run| run.p99) }
    }
}

fn middle(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
