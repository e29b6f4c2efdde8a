//! `cargo xtask lint`: formatting, lints and dependency rules.

use anyhow::{Result, bail};
use clap::Args;

use crate::run;
use crate::test::FEATURES;
use crate::tool::Tool;

/// The version in whose configuration format `deny.toml` is written.
const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

#[derive(Args)]
pub(crate) struct LintOptions {
    /// Install cargo-deny when it is missing (3 minutes).
    #[arg(long)]
    install: bool,
}

pub(crate) fn run(options: &LintOptions) -> Result<()> {
    run::check(run::cargo().args(["fmt", "--all", "--check"]))?;
    let clippy = [
        "clippy",
        "--workspace",
        "--features",
        FEATURES,
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    run::check(run::cargo().args(clippy))?;
    check_fuzz_targets()?;
    CARGO_DENY.ensure(options.install, "lint")?;
    // A build fetches only the packages of its own platform; cargo-deny reads those of every platform.
    run::check(run::cargo().args(["fetch", "--locked"]))?;
    // Advisories are in a git repository that not every machine can reach. Licences, bans and sources need no network.
    run::check(run::cargo().args(["deny", "--offline", "check", "licenses", "bans", "sources"]))?;
    let outcome = run::cargo().args(["deny", "check", "advisories"]).output()?;
    let said = [outcome.stdout, outcome.stderr].concat();
    let advisories = Advisories::of(outcome.status.success(), &String::from_utf8_lossy(&said));
    // The last line says what was not checked, so that a user who reads only this line does not take it for a full
    // pass.
    println!("{}", advisories.last_line()?);
    Ok(())
}

/// Checks the fuzz targets. They are workspaces of their own, which no other command compiles. libFuzzer is left out:
/// building it needs a C++ compiler, and nothing is linked here.
fn check_fuzz_targets() -> Result<()> {
    for manifest in ["proto/fuzz/Cargo.toml", "apiserver/core/fuzz/Cargo.toml"] {
        let mut check = run::cargo();
        check.args(["check", "--locked", "--manifest-path", manifest]);
        check.arg("--target-dir").arg(run::target()?);
        run::check(check.env("CUSTOM_LIBFUZZER_PATH", "/nonexistent"))?;
    }
    Ok(())
}

/// What cargo-deny reports about known defects in dependencies.
#[derive(Debug, PartialEq, Eq)]
enum Advisories {
    /// No known defects.
    None,
    /// Unknown: the advisory database cannot be reached.
    Unreached,
    /// Known defects, or another failure of cargo-deny; contains its output.
    Failed(String),
}

impl Advisories {
    fn of(success: bool, said: &str) -> Self {
        // A failed check counts, whatever else went wrong before it.
        let is_judged = said.contains("advisories FAILED");
        match success {
            true => Self::None,
            false if !is_judged && said.contains("failed to fetch advisory database") => Self::Unreached,
            false => Self::Failed(said.to_owned()),
        }
    }

    fn last_line(self) -> Result<&'static str> {
        match self {
            Self::None => Ok("lint: passed"),
            Self::Unreached => {
                Ok("lint: passed, but ADVISORIES WERE NOT CHECKED: their database cannot be reached \
                from here; run it again where github.com can be")
            }
            Self::Failed(said) => bail!("cargo-deny found advisories:\n{said}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_says_that_advisories_were_not_checked() {
        let line = |success, said: &str| {
            Advisories::of(success, said).last_line().map_err(|error| error.to_string())
        };
        assert_eq!(line(true, "advisories ok"), Ok("lint: passed"));
        let unreached =
            line(false, "[ERROR] failed to fetch advisory database https://...: no route").unwrap();
        assert!(unreached.contains("ADVISORIES WERE NOT CHECKED"), "{unreached}");
        assert_ne!(unreached, "lint: passed");
        for found in [
            "error[vulnerability]: a\nadvisories FAILED",
            "[WARN] failed to fetch advisory database\nerror[vulnerability]: a\nadvisories FAILED",
            "something else",
        ] {
            let error = line(false, found).unwrap_err();
            assert!(error.contains(found), "{error}");
        }
    }
}
