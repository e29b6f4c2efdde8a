//! `cargo xtask edge-bench`: what names and Services cost on a node.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::{device, run};

#[derive(Args)]
pub(crate) struct Options {
    /// Seconds for which questions are asked.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// Measure the agent of the release profile, and not the one that is built for a device: its memory says less.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    run::check(run::cargo().args(["build", "--release", "--locked", "--workspace", "--bins"]))?;
    if !options.quick {
        device::build(None)?;
    }
    let mut command = Command::new(run::program("release", "edgebench")?);
    command.args(["--seconds", &options.seconds.to_string()]);
    if options.quick {
        command.arg("--quick");
    }
    run::check(&mut command)
}
