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
use tombolo_tests::median::Median;

use cluster::Cluster;

/// Runs of lists and of changes; the median is printed, with its range.
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
        "{}, edgecore {}; times are the median of {RUNS} runs\n",
        machine(),
        if quick { "of the profile dist" } else { "built for a device" }
    );
    println!("| figure | measured | target | reached, runs |\n|---|---|---|---|");
    let cluster = Cluster::start(&edgecore).await?;
    let agent = Process::new(cluster.world.edge_id(cluster::NODE).context("edgecore is not running")?)?;
    let names = names::measure(cluster.dns, agent, Duration::from_secs(seconds)).await?;
    let target = FigureTarget::AtLeast(50_000.0);
    row("DNS answers for each second of processor time, 1/s", &[names.each_cpu_second], target);
    row(
        "DNS answers each second, one client process beside it, 1/s",
        &[names.each_second],
        FigureTarget::None,
    );
    row("DNS questions without an answer, %", &[100.0 * names.lost], FigureTarget::None);
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(wrapper::lists(cluster.wrapper).await?);
    }
    let millis = |times: &[Spread], of: fn(&Spread) -> Duration| -> Vec<f64> {
        times.iter().map(|run| of(run).as_secs_f64() * 1e3).collect()
    };
    row(
        "list of 1,000 slices through the wrapper, p50, ms",
        &millis(&runs, |run| run.p50),
        FigureTarget::None,
    );
    row(
        "list of 1,000 slices through the wrapper, p99, ms",
        &millis(&runs, |run| run.p99),
        FigureTarget::AtMost(5.0),
    );
    // Names and slices have been answered, so the agent holds everything by now.
    row("agent, resident, MB", &[megabytes(agent)?], FigureTarget::AtMost(25.0));
    for watchers in [1, 100] {
        let mut runs = Vec::new();
        for run in 0..RUNS {
            runs.push(wrapper::watches(&cluster, agent, watchers, run).await?);
        }
        let times: Vec<Spread> = runs.iter().map(|watched| watched.times).collect();
        let cpu: Vec<f64> = runs.iter().map(|watched| watched.cpu.as_secs_f64() * 1e6).collect();
        let name = |what: &str| format!("{what}, {watchers} watchers");
        let (p50, p99) = (millis(&times, |run| run.p50), millis(&times, |run| run.p99));
        row(&name("change from the hub to a watcher of the wrapper, p50, ms"), &p50, FigureTarget::None);
        let target = if watchers == 1 { FigureTarget::AtMost(2.0) } else { FigureTarget::None };
        row(&name("change from the hub to a watcher of the wrapper, p99, ms"), &p99, target);
        row(&name("processor time of the agent for a change, µs"), &cpu, FigureTarget::None);
    }
    row(
        "agent, resident with 100 watchers after 1,800 changes, MB",
        &[megabytes(agent)?],
        FigureTarget::None,
    );
    Ok(())
}

fn megabytes(agent: Process) -> Result<f64> {
    Ok(agent.read()?.resident as f64 / 1e6)
}

/// What a figure should be.
#[derive(Clone, Copy)]
enum FigureTarget {
    None,
    AtMost(f64),
    AtLeast(f64),
}

/// Prints a row of the table: the median of the runs with its range, and in how many runs the target was reached.
fn row(name: &str, runs: &[f64], target: FigureTarget) {
    let count = |reached: &dyn Fn(f64) -> bool| {
        format!("{} of {}", runs.iter().filter(|value| reached(**value)).count(), runs.len())
    };
    let (target, reached) = match target {
        FigureTarget::None => (String::new(), String::new()),
        FigureTarget::AtMost(most) => (most.to_string(), count(&|value| value <= most)),
        FigureTarget::AtLeast(least) => (format!("at least {least}"), count(&|value| value >= least)),
    };
    let measured = Median::of(runs.iter().copied()).map(|median| format!("{median:.2}")).unwrap_or_default();
    println!("| {name} | {measured} | {target} | {reached} |");
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
}
