//! `cargo xtask hostile`: what one hostile node or stranger can do to a hub with honest nodes.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::{components, run};

#[derive(Args)]
pub(crate) struct Options {
    /// Honest nodes that renew their leases meanwhile.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2000))]
    nodes: u32,

    /// Seconds of each attack.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=120))]
    seconds: u64,

    /// Use the embedded API server, whose memory is then counted as well, and not kube-apiserver.
    #[arg(long)]
    embedded: bool,

    /// Run the attacks alone whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let assets = components::ensure()?;
    run::check(run::cargo().args(["build", "--release", "--locked", "--workspace", "--bins"]))?;
    let mut command = Command::new(run::program("release", "hostile")?);
    command.current_dir(run::root()).env(components::ASSETS_VARIABLE, assets);
    command.args(["--nodes", &options.nodes.to_string(), "--seconds", &options.seconds.to_string()]);
    command.args(["--only", &options.only]);
    if options.embedded {
        command.arg("--embedded");
    }
    run::check(&mut command)
}
