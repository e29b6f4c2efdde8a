//! `cargo xtask bench`: the product's figures beside the floor's, in one run.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::{components, device, run};

#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of hollow edge nodes to measure with; 0 measures codec and agent alone.
    #[arg(long, num_args = 1.., default_values_t = [1000, 2000])]
    nodes: Vec<u32>,

    /// Runs of the floor and of the hub, in turns; of each figure the middle one is printed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Measure this dialect alone, and neither the codecs nor the agent.
    #[arg(long, value_parser = ["tombolo", "kubeedge"])]
    dialect: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let assets = components::ensure()?;
    run::check(run::cargo().args(["build", "--release", "--locked", "--workspace", "--bins"]))?;
    if options.dialect.is_none() {
        device::build(None)?;
    }
    // `cargo run` would pick other features than the workspace has, and compile it all once more.
    let mut command = Command::new(run::program("release", "bench")?);
    command.current_dir(run::root()).env(components::ASSETS_VARIABLE, assets);
    command.args(["--runs", &options.runs.to_string()]);
    if let Some(dialect) = &options.dialect {
        command.args(["--dialect", dialect]);
    }
    run::check(command.args(options.nodes.iter().filter(|nodes| **nodes > 0).map(u32::to_string)))
}
