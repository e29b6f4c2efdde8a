//! `cargo xtask simulate`: random plans against the whole system in virtual time. The program of the package
//! `tombolo-sim` documents its own options, so all arguments are passed to it.

use std::process::Command;

use anyhow::Result;

use crate::measure::Options;
use crate::run;

/// Optimised, and quick to build: a nightly run takes most of its time for the plans.
const PROFILE: &str = "release";

pub(crate) fn run(options: &Options) -> Result<()> {
    // `cargo run` would select other features than the workspace build, and compile everything again.
    run::check(run::cargo().args(["build", "--profile", PROFILE, "--locked", "--workspace", "--bins"]))?;
    let mut simulate = Command::new(run::program(PROFILE, "simulate")?);
    run::check(options.pass_to(simulate.current_dir(run::root())))
}
