//! `cargo xtask crash`: random kills of the agent, and power cuts of its store and of the API server's journal, more of
//! them than CI has time for.

use std::time::Instant;

use anyhow::Result;
use clap::Args;

use crate::{run, test};

#[derive(Args)]
pub(crate) struct CrashOptions {
    /// Kills of edgecore while it writes.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    kills: u64,

    /// Power cuts of disks that tear or drop unflushed writes, for each test of such disks, rounded up to whole disks of
    /// 20.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    cuts: u64,
}

pub(crate) fn run(options: &CrashOptions) -> Result<()> {
    let started = Instant::now();
    run::check(run::cargo().args(["build", "--locked", "--workspace", "--bins"]))?;
    let mut cuts = run::cargo();
    cuts.args(["test", "--locked", "--workspace", "--lib", "power_cuts_lose_nothing"]);
    test::run_some(cuts.env("TOMBOLO_POWER_CUTS", options.cuts.to_string()))?;
    let mut kills = run::cargo();
    kills.args(["test", "--locked", "--workspace", "--test", "kills"]);
    test::run_some(kills.env("TOMBOLO_KILLS", options.kills.to_string()))?;
    let (cuts, kills) = (options.cuts, options.kills);
    eprintln!("{cuts} power cuts and {kills} kills in {} s: nothing was lost", started.elapsed().as_secs());
    Ok(())
}
