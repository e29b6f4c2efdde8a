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

use target::{EmbeddedServer, MeasuredServer, RealServer};
use work::{Figure, Plan};

/// What to measure. `cargo xtask api-bench` builds the programs and starts this one.
#[derive(Parser)]
struct ApiBenchOptions {
    /// Runs of each server, alternating; the median of each figure is printed.
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
    println!("{}, middle of {} runs", tombolo_cli::process::machine(), options.runs);
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

/// Prints one line per figure: ours, theirs, and how many times larger theirs is.
fn print(objects: usize, ours: &[Vec<Figure>], real: &[Vec<Figure>]) -> Result<()> {
    println!("\n{objects} ConfigMaps of 1 KiB");
    println!("{:<46} {:>12} {:>16} {:>8} {:>8}", "", "embedded", "apiserver + etcd", "times", "aim");
    for (index, figure) in ours.first().context("no run")?.iter().enumerate() {
        let middle = |runs: &[Vec<Figure>]| {
            let mut values: Vec<f64> = runs.iter().map(|run| run[index].value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (own, other) = (middle(ours), middle(real));
        let name = format!("{} [{}]", figure.name, figure.unit);
        let aim = figure.aim.map_or_else(|| "-".to_owned(), |aim| format!("{aim:.0}"));
        // A growth of zero has no ratio.
        let times = if own > 0.0 { format!("{:.1}", other / own) } else { "-".to_owned() };
        println!("{name:<46} {own:>12.1} {other:>16.1} {times:>8} {aim:>8}");
    }
    Ok(())
}
