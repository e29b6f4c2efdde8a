//! `cargo xtask api-bench`: the embedded API server beside kube-apiserver with etcd, in one run.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::{components, run};

#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of ConfigMaps to measure with.
    #[arg(long, num_args = 1.., default_values_t = [1_000, 10_000])]
    objects: Vec<usize>,

    /// Runs of each server, in turns; of each figure the middle one is printed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let assets = components::ensure()?;
    run::check(run::cargo().args(["build", "--release", "--locked", "--workspace", "--bins"]))?;
    let mut command = Command::new(run::program("release", "apibench")?);
    command.current_dir(run::root()).env(components::ASSETS_VARIABLE, assets);
    command.args(["--runs", &options.runs.to_string(), "--objects"]);
    run::check(command.args(options.objects.iter().map(usize::to_string)))
}
