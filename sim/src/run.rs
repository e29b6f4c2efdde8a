//! Runs a plan.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::hosts::World;
use crate::journal::Journal;
use crate::machine::Machine;
use crate::observation::{Millis, Seen};
use crate::oracle::{Oracle, OracleLimits, Violation};
use crate::plan::SimPlan;

/// How often it is looked whether everything has converged.
const LOOK_INTERVAL: Millis = 1_000;

/// How long everything has to stay converged until nothing may happen any more: longer than what nodes and their
/// clients do now and then, such as reports and back-off.
const CALM: Millis = 60_000;

/// How long the system is watched after that.
const WATCHED: Millis = 60_000;

/// How to run.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Whether to keep the trace.
    pub with_trace: bool,
    /// The machine on which this process runs; without one, a run cannot be repeated exactly.
    pub machine: Option<Arc<Machine>>,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What happened, one line each; empty unless it was wanted.
    pub trace: Vec<String>,
    /// The guarantees that were broken, all at one moment: a run ends with the first.
    pub violations: Vec<Violation>,
    /// Number of observations.
    pub observations: u64,
    /// Time of the simulation at its end.
    pub ended: Millis,
}

/// Runs a plan in this thread.
///
/// # Panics
/// The runtime cannot be built.
#[must_use]
pub fn run(plan: &SimPlan, options: &RunOptions) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime of one thread");
    runtime.block_on(async {
        let nodes = plan.nodes.iter().map(|node| node.name.clone()).collect();
        let journal = Journal::new(Oracle::new(nodes, OracleLimits::default()), options.with_trace);
        let _hook = PanicHook::new(&journal);
        let mut world = World::start(plan, &journal, options.machine.clone());
        tokio::select! {
            biased;
            () = journal.violated() => {}
            () = carry_out(plan, &journal, &mut world) => {}
        }
        world.end();
        let ended = journal.now();
        let (trace, violations, observations) = journal.close();
        Outcome { trace, violations, observations, ended }
    })
}

/// Enters panics of the product as defects, also those that a supervisor survives, until this is dropped. Those of the
/// database on a disk that fails are lawful: the store expects them.
struct PanicHook;

impl PanicHook {
    fn new(journal: &Journal) -> Self {
        let journal = journal.clone();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // The crates of this workspace are compiled under relative paths.
            if panic.location().is_some_and(|location| Path::new(location.file()).is_relative()) {
                journal.defect(&panic.to_string());
                before(panic);
            }
        }));
        Self
    }
}

impl Drop for PanicHook {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(std::panic::take_hook());
        }
    }
}

/// Carries out the whole plan, and waits until everything has settled.
async fn carry_out(plan: &SimPlan, journal: &Journal, world: &mut World) {
    for timed in &plan.operations {
        wait_until(timed.at, journal, world).await;
        journal.note(&timed.operation);
        world.act(&timed.operation, timed.end());
    }
    wait_until(plan.quiet_from(), journal, world).await;
    journal.see(Seen::FaultsEnded);
    if settles(plan.end(), journal, world).await {
        journal.see(Seen::Settled);
        tokio::time::sleep(Duration::from_millis(WATCHED)).await;
    }
    journal.see(Seen::Finished);
}

/// Waits until a time, and ends faults meanwhile.
async fn wait_until(at: Millis, journal: &Journal, world: &mut World) {
    while let Some(end) = world.next_end().filter(|end| *end <= at) {
        tokio::time::sleep_until(journal.moment(end)).await;
        world.end_faults(end).await;
    }
    tokio::time::sleep_until(journal.moment(at)).await;
}

/// Waits until everything has converged for a while. False if the time is over before.
async fn settles(end: Millis, journal: &Journal, world: &World) -> bool {
    let mut since = journal.now();
    while journal.now() < end {
        if !journal.is_satisfied() || world.has_half_open_watches() {
            since = journal.now();
        } else if journal.now() >= since + CALM {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(LOOK_INTERVAL)).await;
    }
    false
}
