//! Programs that share a process and can be killed one by one: the hosts of a simulation.
//!
//! A program that has its process for itself runs without a host, and nothing here changes what it does. In a simulation
//! each replica and each agent runs in a [`TaskHost`], which its tasks inherit. Everything happens on the one thread of
//! the simulation, so what would otherwise block a thread runs in the task that asks for it ([`crate::blocking`]).

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

tokio::task_local! {
    static CURRENT: TaskHost;
}

/// All tasks of one simulated program. Clones are the same host.
#[derive(Debug, Clone)]
pub struct TaskHost {
    shared: Arc<HostState>,
}

struct HostState {
    tracker: TaskTracker,
    killed: CancellationToken,
    before_turn: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for HostState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tasks, is_killed) = (self.tracker.len(), self.killed.is_cancelled());
        f.debug_struct("HostState").field("tasks", &tasks).field("is_killed", &is_killed).finish()
    }
}

impl TaskHost {
    /// A host without tasks. `before_turn` is called each time before one of its tasks runs, and may kill the host.
    #[must_use]
    pub fn new(before_turn: impl Fn() + Send + Sync + 'static) -> Self {
        let (tracker, killed, before_turn) =
            (TaskTracker::new(), CancellationToken::new(), Box::new(before_turn));
        Self { shared: Arc::new(HostState { tracker, killed, before_turn }) }
    }

    /// The host of the calling task; `None` outside of simulations.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Spawns a task of this host. What it spawns with [`spawn`] belongs to the host too.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let killed = self.shared.killed.clone();
        let work = Box::pin(CURRENT.scope(self.clone(), work));
        let mut mortal = Box::pin(killed.run_until_cancelled_owned(work));
        let shared = Arc::clone(&self.shared);
        let turns = poll_fn(move |cx| {
            (shared.before_turn)();
            mortal.as_mut().poll(cx).map(drop)
        });
        self.shared.tracker.spawn(turns).abort_handle()
    }

    /// Kills the program: each of its tasks is dropped where it waits, and runs no further.
    pub fn kill(&self) {
        self.shared.tracker.close();
        self.shared.killed.cancel();
    }

    /// Whether the program was killed.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.shared.killed.is_cancelled()
    }

    /// Waits until no task of a killed program is left.
    pub async fn gone(&self) {
        self.shared.tracker.wait().await;
    }
}

/// Spawns a task that belongs to the caller's host, if there is one.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
    match TaskHost::current() {
        Some(host) => host.spawn(work),
        None => tokio::spawn(work).abort_handle(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc;
    use tokio::task::yield_now;

    use super::*;
    use crate::Tasks;

    #[tokio::test(start_paused = true)]
    async fn a_killed_host_runs_nothing_more_and_others_go_on() {
        let (said, mut heard) = mpsc::unbounded_channel();
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        let count = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let hosts = [TaskHost::new(count), TaskHost::new(|| {})];
        for (number, host) in hosts.iter().enumerate() {
            let said = said.clone();
            host.spawn(async move {
                // Neither the supervisor nor the task within tells its host from no host.
                Tasks::new().spawn("inner", async move {
                    spawn(async move {
                        while said.send(number).is_ok() {
                            yield_now().await;
                        }
                    });
                });
            });
        }
        let mut both = [0, 0];
        while both.contains(&0) {
            both[heard.recv().await.unwrap()] += 1;
        }
        assert!(TaskHost::current().is_none() && !hosts[0].is_killed());
        hosts[0].kill();
        hosts[0].gone().await;
        while heard.try_recv().is_ok() {}
        let before = turns.load(Ordering::Relaxed);
        for _ in 0..100 {
            assert_eq!(heard.recv().await, Some(1));
        }
        assert!(before > 3 && turns.load(Ordering::Relaxed) == before);
    }
}
