//! `tombolo component`: starts a program that must not outlive the `tombolo up` that starts it.
//!
//! The parent cannot arrange this itself: only the process itself can ask the kernel for a signal at its parent's
//! death, and that setting survives `exec` (prctl(2), PR_SET_PDEATHSIG).

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

/// Program to execute, and the parent to die with.
#[derive(Debug, Clone, Args)]
pub struct ComponentOptions {
    /// Process ID of the parent; the program is killed when it ends.
    #[arg(long)]
    pub parent: u32,

    /// Program and its arguments.
    #[arg(required = true, last = true)]
    pub command: Vec<OsString>,
}

/// Replaces this process with the program; returns only on failure.
///
/// # Errors
/// When the parent has already ended, or the program cannot be started.
pub fn run(options: &ComponentOptions) -> Result<()> {
    die_with_parent()?;
    // Read after the signal is set up, so that a parent that ended before is always detected.
    let parent = std::os::unix::process::parent_id();
    ensure!(parent == options.parent, "parent process {} has already ended", options.parent);
    let (program, arguments) = options.command.split_first().context("no program given")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

#[cfg(target_os = "linux")]
fn die_with_parent() -> Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot request a signal for the parent's end")
}

/// Other systems have no such signal: after a SIGKILL of the parent the program must be stopped by hand.
#[cfg(not(target_os = "linux"))]
fn die_with_parent() -> Result<()> {
    Ok(())
}
