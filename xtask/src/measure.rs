//! Starts the programs of the package `tombolo-tests` that measure. Each of them documents its own options, so all
//! arguments are passed to it.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::{components, device, run};

/// The profile of what is shipped; `release` is compiled quickly and runs slowly.
const SHIPPED: &str = "dist";

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Arguments of the program; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Options {
    /// Gives a program the arguments.
    pub(crate) fn pass_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.args(&self.arguments)
    }

    fn has(&self, flag: &str) -> bool {
        self.arguments.iter().any(|one| one == flag || one.starts_with(&format!("{flag}=")))
    }
}

/// `cargo xtask bench`: the product's figures beside the floor's, in one run.
pub(crate) fn bench(options: &Options) -> Result<()> {
    // The agent is measured as it is built for a device, and only in a complete run.
    let agent = !options.has("--dialect") && !options.has("--calls");
    measure("bench", options, true, agent)
}

/// `cargo xtask hostile`: what one hostile node or stranger can do to a hub with honest nodes.
pub(crate) fn hostile(options: &Options) -> Result<()> {
    measure("hostile", options, true, false)
}

/// `cargo xtask api-bench`: the embedded API server beside kube-apiserver with etcd, in one run.
pub(crate) fn api_bench(options: &Options) -> Result<()> {
    measure("apibench", options, true, false)
}

/// `cargo xtask edge-bench`: what names and Services cost on a node.
pub(crate) fn edge_bench(options: &Options) -> Result<()> {
    measure("edgebench", options, false, !options.has("--quick"))
}

/// Builds the measured programs as users get them, and runs the measuring program.
fn measure(name: &str, options: &Options, cluster: bool, agent: bool) -> Result<()> {
    let assets = cluster.then(components::ensure).transpose()?;
    run::check(run::cargo().args(["build", "--profile", SHIPPED, "--locked", "--workspace", "--bins"]))?;
    if agent {
        device::build(None)?;
    }
    // `cargo run` would select other features than the workspace build, and compile everything again.
    let mut command = Command::new(run::program(SHIPPED, name)?);
    if let Some(assets) = assets {
        command.env(components::ASSETS_VARIABLE, assets);
    }
    run::check(options.pass_to(command.current_dir(run::root())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_found_in_both_spellings() {
        let options = |arguments: &[&str]| Options {
            arguments: arguments.iter().map(|one| (*one).to_owned()).collect(),
        };
        assert!(options(&["--nodes", "50", "--calls"]).has("--calls"));
        assert!(options(&["--dialect=kubeedge"]).has("--dialect"));
        assert!(!options(&["--nodes", "50"]).has("--calls"));
    }
}
