//! Tools for cargo that recipes use, in the versions that the repository is written for.

use std::process::Command;

use anyhow::{Result, bail};

use crate::run;

/// A tool that is published as a crate.
pub(crate) struct Tool {
    /// Name of the crate and of the program.
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

impl Tool {
    /// Ensures that the tool can be started, and installs it if `install` is set.
    ///
    /// # Errors
    /// It is missing, and is not to be or cannot be installed.
    pub(crate) fn ensure(&self, install: bool, recipe: &str) -> Result<()> {
        let Self { name, version } = self;
        if self.is_found() {
            return Ok(());
        }
        if !install {
            bail!("{name} {version} is missing: run `cargo xtask {recipe} --install`");
        }
        run::check(run::cargo().args(["install", "--locked", &format!("{name}@{version}")]))
    }

    fn is_found(&self) -> bool {
        // The subcommand of cargo-deny is `deny`.
        let subcommand = self.name.trim_start_matches("cargo-");
        let found = Command::new(self.name).args([subcommand, "--version"]).output();
        found.is_ok_and(|said| names_version(&String::from_utf8_lossy(&said.stdout), self.version))
    }
}

/// Whether the line that a program prints about itself has this version.
fn names_version(said: &str, version: &str) -> bool {
    said.split_whitespace().any(|word| word == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_tool_version_is_refused() {
        assert!(names_version("cargo-deny 0.20.2\n", "0.20.2"));
        for other in ["cargo-deny 0.20.21", "cargo-deny 0.20.1", ""] {
            assert!(!names_version(other, "0.20.2"), "{other}");
        }
    }
}
