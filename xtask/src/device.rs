//! `cargo xtask device`: builds `edgecore` for a device.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::run;

#[derive(Args)]
pub(crate) struct DeviceOptions {
    /// Target of the compiler; without it, the program is built for this kind of machine.
    #[arg(long)]
    target: Option<String>,
}

/// Links libraries statically: the program runs on devices with another libc, and unused parts of the libraries take no
/// memory.
const STATIC: &str = "-Ctarget-feature=+crt-static";

/// Options for LLD, the linker of x86-64 Linux. Functions that compile to the same instructions are merged (no Rust
/// code may depend on the address of a function), and the relocation table, all of which the loader reads, is packed.
/// The loader is part of the program's own libc.
const SMALLER: [&str; 2] = ["-Clink-arg=-Wl,--icf=all", "-Clink-arg=-Wl,-z,pack-relative-relocs"];

/// Builds only the agent, without the library features that other programs of the workspace enable.
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

pub(crate) fn run(options: &DeviceOptions) -> Result<()> {
    println!("{}", build(options.target.as_deref())?.display());
    Ok(())
}
