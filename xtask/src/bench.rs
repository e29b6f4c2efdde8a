//! `cargo xtask bench`: the product's figures beside the floor's, in one run.

use anyhow::Result;
use clap::Args;

use crate::{components, run};

#[derive(Args)]
pub(crate) struct Options {
    /// Number of hollow edge nodes.
    #[arg(long, default_value_t = 1000)]
    nodes: u32,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let assets = components::ensure()?;
    run::check(run::cargo().args(["build", "--release", "--locked", "--workspace", "--bins"]))?;
    let mut command = run::cargo();
    command.env(components::ASSETS_VARIABLE, assets);
    command.args(["run", "--release", "--locked", "-p", "tombolo-tests", "--bin", "bench", "--"]);
    run::check(command.arg(options.nodes.to_string()))
}
