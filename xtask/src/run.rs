//! Runs other programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The repository's root folder.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Cargo, started in the repository's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The target folder that contains this program.
pub(crate) fn target() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    Ok(own.ancestors().nth(2).context("this program is not in a target folder")?.to_owned())
}

/// A program of the workspace that was built with this profile.
pub(crate) fn program(profile: &str, name: &str) -> Result<PathBuf> {
    Ok(target()?.join(profile).join(name))
}

/// Runs a command to its end. Its output goes to the terminal.
pub(crate) fn check(command: &mut Command) -> Result<()> {
    let line = describe(command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// A command as a user would type it.
pub(crate) fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// Whether a package of the workspace has an integration test of this name.
#[cfg(test)]
pub(crate) fn has_test(name: &str) -> bool {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    let mut folders = members.split('"').skip(1).step_by(2).map(|member| root().join(member).join("tests"));
    folders.any(|folder| {
        folder.join(name).with_extension("rs").is_file() || folder.join(name).join("main.rs").is_file()
    })
}
