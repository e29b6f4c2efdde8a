//! `cargo xtask lint`: formatting, lints and dependency rules.

use std::process::Command;

use anyhow::{Result, bail};
use clap::Args;

use crate::run;

/// Version of cargo-deny whose configuration format `deny.toml` is written in.
const CARGO_DENY_VERSION: &str = "0.20.2";

#[derive(Args)]
pub(crate) struct Options {
    /// Install cargo-deny when it is missing (3 minutes).
    #[arg(long)]
    install: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    run::check(run::cargo().args(["fmt", "--all", "--check"]))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    run::check(run::cargo().args(clippy))?;
    check_fuzz_targets()?;
    let deny_found = Command::new("cargo-deny").arg("--version").output().is_ok();
    if !deny_found && !options.install {
        bail!("cargo-deny is missing: run `cargo xtask lint --install`");
    }
    if !deny_found {
        let version = format!("cargo-deny@{CARGO_DENY_VERSION}");
        run::check(run::cargo().args(["install", "--locked", &version]))?;
    }
    // A build fetches its own platform's packages alone; cargo-deny reads those of every platform.
    run::check(run::cargo().args(["fetch", "--locked"]))?;
    // Advisories live in a git repository that not every machine reaches; licences, bans and sources do not.
    run::check(run::cargo().args(["deny", "--offline", "check", "licenses", "bans", "sources"]))?;
    advisories()
}

/// The fuzz targets are workspaces of their own, which no other command compiles. libFuzzer stays out: it takes a C++
/// compiler to build, and nothing is linked here.
fn check_fuzz_targets() -> Result<()> {
    for manifest in ["proto/fuzz/Cargo.toml", "apiserve/fuzz/Cargo.toml"] {
        let mut check = run::cargo();
        check.args(["check", "--locked", "--manifest-path", manifest]);
        check.arg("--target-dir").arg(run::target()?);
        run::check(check.env("CUSTOM_LIBFUZZER_PATH", "/nonexistent"))?;
    }
    Ok(())
}

fn advisories() -> Result<()> {
    let outcome = run::cargo().args(["deny", "check", "advisories"]).output()?;
    let text = String::from_utf8_lossy(&outcome.stderr);
    if outcome.status.success() {
        println!("advisories: none");
        return Ok(());
    }
    if text.contains("failed to fetch advisory database") {
        println!("advisories: not checked, the advisory database cannot be reached from here");
        return Ok(());
    }
    bail!("cargo-deny found advisories:\n{text}")
}
