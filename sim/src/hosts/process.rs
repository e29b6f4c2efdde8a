//! A simulated process: its tasks, its wall clock, and the moment at which it dies.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use tombolo_runtime::TaskHost;

use crate::journal::Journal;
use crate::machine::Machine;

/// The wall clock of a host, which a fault may set.
#[derive(Debug, Clone, Default)]
pub(super) struct WallClock(Arc<AtomicI64>);

impl WallClock {
    /// Sets the clock forward by so many milliseconds; back if negative.
    pub(super) fn jump(&self, millis: i64) {
        self.0.fetch_add(millis, Ordering::Relaxed);
    }

    fn offset(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What all processes of a run share.
#[derive(Clone)]
pub(super) struct Processes {
    pub(super) journal: Journal,
    /// None where a run need not be repeatable.
    machine: Option<Arc<Machine>>,
}

impl Processes {
    pub(super) fn new(journal: Journal, machine: Option<Arc<Machine>>) -> Self {
        Self { journal, machine }
    }

    /// Sets the clocks of the machine for what runs next.
    pub(super) fn turn_of(&self, clock: &WallClock) {
        if let Some(machine) = &self.machine {
            let elapsed = std::time::Duration::from_millis(self.journal.now());
            machine.set(elapsed, clock.offset()).expect("the clocks of the machine can be set");
        }
    }

    /// A process without tasks.
    pub(super) fn start(&self, clock: &WallClock) -> Process {
        let fuse = Arc::new(Mutex::new(None::<Fuse>));
        let (shared, clock, armed) = (self.clone(), clock.clone(), Arc::clone(&fuse));
        let host = TaskHost::new(move || {
            shared.turn_of(&clock);
            burn(&armed);
        });
        Process { host, fuse }
    }
}

/// Kills a process some turns of its tasks later.
struct Fuse {
    turns: u32,
    then: Box<dyn FnOnce() + Send>,
}

fn burn(fuse: &Mutex<Option<Fuse>>) {
    let mut armed = fuse.lock();
    match &mut *armed {
        Some(Fuse { turns, .. }) if *turns > 0 => *turns -= 1,
        _ => {
            let fired = armed.take();
            drop(armed);
            if let Some(Fuse { then, .. }) = fired {
                then();
            }
        }
    }
}

/// A process. Clones are the same one.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) host: TaskHost,
    fuse: Arc<Mutex<Option<Fuse>>>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Process {
    /// Calls a function, which kills the process, before its tasks have run so many more times.
    pub(super) fn after_turns(&self, turns: u32, then: impl FnOnce() + Send + 'static) {
        *self.fuse.lock() = Some(Fuse { turns, then: Box::new(then) });
    }
}
