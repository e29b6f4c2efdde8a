//! `cargo xtask quick`: checks within a minute whether a change is worth a full run.

use std::time::Instant;

use anyhow::Result;

use crate::{run, test};

/// Numbers of random schedules and cases. The full run tries many times as many.
const SCHEDULES: &str = "200";
const CASES: &str = "16";

/// Packages without IO, whose integration tests are run too.
const PURE: [&str; 4] = ["tombolo-proto", "tombolo-grid", "tombolo-replay", "tombolo-catalog"];

/// Runs the format check, the unit tests of all crates, the integration tests of the pure crates, and the repository's
/// own rules. Needs neither Go nor a cluster.
///
/// # Errors
/// One of these fails.
pub(crate) fn run() -> Result<()> {
    run::check(run::cargo().args(["fmt", "--all", "--check"]))?;
    let started = Instant::now();
    let mut libraries = run::cargo();
    libraries.args(["test", "--locked", "--workspace", "--lib"]);
    let mut pure = run::cargo();
    pure.args(["test", "--locked", "--test", "*"]).args(PURE.iter().flat_map(|name| ["-p", name]));
    let mut rules = run::cargo();
    rules.args(["test", "--locked", "-p", "tombolo-tests", "--test", "docs", "--test", "tidy"]);
    test::run_programs([&mut libraries, &mut pure, &mut rules], |command| {
        command.env("TOMBOLO_SCHEDULES", SCHEDULES).env("PROPTEST_CASES", CASES);
    })?;
    eprintln!("built and ran the tests in {} s", started.elapsed().as_secs());
    Ok(())
}
