//! `tombolo component`: starts a program that may not outlive the `tombolo up` that wants it.
//!
//! The parent cannot arrange that by itself: only a process can ask the kernel for a signal at its parent's death, and
//! what it asked for survives its `exec` (prctl(2), PR_SET_PDEATHSIG).

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

/// What to become, and for whom.
#[derive(Debug, Clone, Args)]
pub struct ComponentOptions {
    /// Process id of the program that this one may not outlive.
    #[arg(long)]
    pub parent: u32,

    /// Program and its arguments.
    #[arg(required = true, last = true)]
    pub command: Vec<OsString>,
}

/// Becomes the program; returns only when that fails.
///
/// # Errors
/// When the parent has ended already, or the program cannot be started.
pub fn run(options: &ComponentOptions) -> Result<()> {
    die_with_parent()?;
    // Asked after the signal is arranged for: a parent that died before cannot be missed.
    let parent = std::os::unix::process::parent_id();
    ensure!(parent == options.parent, "process {} has ended", options.parent);
    let (program, arguments) = options.command.split_first().context("no program")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

#[cfg(target_os = "linux")]
fn die_with_parent() -> Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask for a signal at the parent's death")
}

/// Other systems have no such signal: after a SIGKILL of the parent the program has to be ended by hand.
#[cfg(not(target_os = "linux"))]
fn die_with_parent() -> Result<()> {
    Ok(())
}
