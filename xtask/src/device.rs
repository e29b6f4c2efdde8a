//! `cargo xtask device`: `edgecore` as it is built for a device.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::run;

#[derive(Args)]
pub(crate) struct Options {
    /// Target of the compiler; without it the program is for machines as this one.
    #[arg(long)]
    target: Option<String>,
}

/// Libraries are linked into the program: it runs on devices with another libc, and what it does not use of them takes no
/// memory.
const STATIC: &str = "-Ctarget-feature=+crt-static";

/// For LLD, which is the linker of x86-64 Linux: functions that are compiled to the same instructions are there once
/// (nothing of Rust's may depend on the address of a function), and the table of what the loader relocates, all of which it
/// reads, is packed. The loader is that of the program's own libc.
const SMALLER: [&str; 2] = ["-Clink-arg=-Wl,--icf=all", "-Clink-arg=-Wl,-z,pack-relative-relocs"];

/// Builds the agent alone: without what other programs of the workspace want of the libraries.
pub(crate) fn build(target: Option<&str>) -> Result<PathBuf> {
    let mut command = run::cargo();
    command.args([
        "rustc",
        "--profile",
        "device",
        "--locked",
        "--package",
        "tombolo-edge",
        "--bin",
        "edgecore",
    ]);
    if let Some(target) = target {
        command.args(["--target", target]);
    }
    command.args(["--", STATIC]);
    let on_lld = cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"));
    if target.map_or(on_lld, |target| target == "x86_64-unknown-linux-gnu") {
        command.args(SMALLER);
    }
    run::check(&mut command)?;
    let folder = target.map_or_else(|| "device".to_owned(), |target| format!("{target}/device"));
    run::program(&folder, "edgecore")
}

pub(crate) fn run(options: &Options) -> Result<()> {
    println!("{}", build(options.target.as_deref())?.display());
    Ok(())
}
