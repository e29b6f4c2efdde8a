//! The cost of the embedded API server beside kube-apiserver with etcd, in one run: `cargo xtask api-bench`.
//!
//! Both do the same work, and sync to disk before they answer. Processor time and memory are those of the servers' own
//! processes, including etcd. The load comes from this process.

#[path = "../apibench/client.rs"]
mod client;
#[path = "../apibench/target.rs"]
mod target;
#[path = "../apibench/watchers.rs"]
mod watchers;
#[path = "../apibench/work.rs"]
mod work;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use tombolo_tests::median::Median;

use target::{EmbeddedServer, MeasuredServer, RealServer};
use work::{Figure, Plan};

/// What to measure. `cargo xtask api-bench` builds the programs and starts this one.
#[derive(Parser)]
struct ApiBenchOptions {
    /// Runs of each server, alternating. Each run is compared with the other server's beside it; the medians are printed,
    /// with their range.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Numbers of ConfigMaps.
    #[arg(long, num_args = 1.., default_values_t = [1_000, 10_000], value_parser = at_least_one())]
    objects: Vec<usize>,

    /// Number of watches that are open at the same time.
    #[arg(long, default_value_t = 1_000, value_parser = at_least_one())]
    watchers: usize,

    /// Run as the embedded server that is measured, with its data in this folder.
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
}

fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = ApiBenchOptions::parse();
    if let Some(folder) = &options.serve {
        return target::serve(folder).await;
    }
    println!("{}, median of {} runs", tombolo_cli::process::machine(), options.runs);
    for &objects in &options.objects {
        let plan = Plan { objects, watchers: options.watchers };
        let (mut ours, mut real) = (Vec::new(), Vec::new());
        for run in 1..=options.runs {
            eprintln!("api-bench: run {run} of {}, {objects} ConfigMaps", options.runs);
            ours.push(measure(EmbeddedServer::start().await?, &plan).await?);
            real.push(measure(RealServer::start().await?, &plan).await?);
        }
        print(objects, &ours, &real)?;
    }
    Ok(())
}

async fn measure(mut target: impl MeasuredServer, plan: &Plan) -> Result<Vec<Figure>> {
    let figures = work::measure(&mut target, plan).await;
    figures.with_context(|| format!("while {} was measured", target.name()))
}

/// Prints one row per figure: ours, theirs, and how many times more theirs is, in each run beside the other.
fn print(objects: usize, ours: &[Vec<Figure>], real: &[Vec<Figure>]) -> Result<()> {
    println!("\n{objects} ConfigMaps of 1 KiB\n");
    println!(
        "| figure | embedded | kube-apiserver with etcd | times | aim | reached, runs |\n|---|---|---|---|---|---|"
    );
    for (index, figure) in ours.first().context("no run")?.iter().enumerate() {
        let value = |run: &Vec<Figure>| run.get(index).map(|figure| figure.value);
        let pairs: Vec<_> = real.iter().map(value).zip(ours.iter().map(value)).collect();
        let shown = |median: Option<Median>| median.map(|median| format!("{median:.1}")).unwrap_or_default();
        let (own, other) =
            (Median::of(ours.iter().filter_map(value)), Median::of(real.iter().filter_map(value)));
        let reached = figure.aim.map(|aim| {
            let count = pairs.iter().filter(|(other, own)| is_reached(aim, *own, *other)).count();
            format!("{count} of {}", pairs.len())
        });
        println!(
            "| {}, {} | {} | {} | {} | {} | {} |",
            figure.name,
            figure.unit,
            shown(own),
            shown(other),
            // A growth of zero has no ratio.
            shown(Median::of_ratios(pairs)),
            figure.aim.map(|aim| aim.to_string()).unwrap_or_default(),
            reached.unwrap_or_default()
        );
    }
    Ok(())
}

/// Whether the other server takes at least `aim` times as much as ours, in one run.
fn is_reached(aim: f64, own: Option<f64>, other: Option<f64>) -> bool {
    own.zip(other).is_some_and(|(own, other)| other > 0.0 && own * aim <= other)
}
