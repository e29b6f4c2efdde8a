//! The machine that a simulated process runs on: random numbers that depend on a seed, and clocks that the simulation
//! sets.
//!
//! Hash maps, random identifiers, the order of `select!` and the wall clock come from the system in the standard library
//! and in many crates. A small library (`native/machine.c`), loaded before all others, answers in the system's place, so
//! that neither the product nor those crates change for the simulation (docs/decisions/0017-simulation.md). Each run has
//! a process of its own, because hash maps and allocators remember what happened before in theirs.
//!
//! A thread that waits with a deadline of the system's clock waits too long or not at all: a simulation has one thread
//! and tokio's paused clock.

use std::env;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The wall clock of every host at the start, in Unix seconds: that of the model API.
pub const WALL_START: u64 = 1_767_225_600;

/// The monotonic clock at the start.
const MONOTONIC_START: Duration = Duration::from_secs(86_400);

/// The library.
const LIBRARY: &str = env!("TOMBOLO_SIM_MACHINE");

const SEED_VARIABLE: &str = "TOMBOLO_SIM_SEED";
const CLOCKS_VARIABLE: &str = "TOMBOLO_SIM_CLOCKS";

/// Variables that decide what is shown of a run.
const SHOWN: [&str; 2] = ["RUST_BACKTRACE", "RUST_LOG"];

/// A process that is not on a simulated machine.
#[derive(Debug)]
pub struct NotSimulated(Option<io::Error>);

impl std::fmt::Display for NotSimulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "this process has the clocks and random numbers of the real machine, so nothing could be repeated: \
             run `cargo xtask simulate`, which starts it with LD_PRELOAD",
        )?;
        match &self.0 {
            Some(error) => write!(f, " ({error})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for NotSimulated {}

/// A program that will run on a simulated machine. Runs with the same seed see the same random numbers.
#[must_use]
pub fn command(program: &Path, seed: u64) -> Command {
    let mut command = Command::new(program);
    // What else the environment says must not decide what happens.
    command.env_clear().env("LD_PRELOAD", LIBRARY).env(SEED_VARIABLE, seed.to_string());
    for variable in SHOWN {
        if let Some(wanted) = env::var_os(variable) {
            command.env(variable, wanted);
        }
    }
    command
}

/// The clocks of this process.
#[derive(Debug)]
pub struct Machine {
    clocks: File,
}

impl Machine {
    /// The machine of this process, with its clocks at the start.
    ///
    /// # Errors
    /// The process was not started with [`command`].
    pub fn attach() -> Result<Self, NotSimulated> {
        let name = env::var_os(CLOCKS_VARIABLE).ok_or(NotSimulated(None))?;
        let file = OpenOptions::new().write(true).open(name).map_err(|error| NotSimulated(Some(error)))?;
        let machine = Self { clocks: file };
        // An inherited name may be that of any file.
        for probe in [1, 0] {
            let set = machine.set(Duration::from_millis(probe), 0);
            set.map_err(|error| NotSimulated(Some(error)))?;
            let expected = Duration::from_secs(WALL_START) + Duration::from_millis(probe);
            if SystemTime::now().duration_since(UNIX_EPOCH).ok() != Some(expected) {
                return Err(NotSimulated(None));
            }
        }
        Ok(machine)
    }

    /// Sets both clocks to this time since the start. The wall clock is off by `offset` milliseconds, as it may be on
    /// the host whose code runs next. This takes less than a microsecond, so it is done whenever another host's turn
    /// begins.
    ///
    /// # Errors
    /// The file of the clocks cannot be written, which ends the simulation.
    pub fn set(&self, elapsed: Duration, offset: i64) -> io::Result<()> {
        let wall = Duration::from_secs(WALL_START) + elapsed;
        let wall = nanos(wall).saturating_add(offset.saturating_mul(1_000_000));
        let monotonic = nanos(MONOTONIC_START + elapsed);
        let mut page = [0; 16];
        page[..8].copy_from_slice(&wall.to_ne_bytes());
        page[8..].copy_from_slice(&monotonic.to_ne_bytes());
        self.clocks.write_all_at(&page, 0)
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
