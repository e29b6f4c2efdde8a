//! Named, supervised tasks. Tombolo spawns no task in any other way.
//!
//! The failure or panic of a task is never lost: it is logged with the task's name, and [`Tasks::failed`] and
//! [`Tasks::shutdown`] return the first failure of an essential task.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::host;

/// Name of a task, for logs and errors. A node's name may be part of it.
pub type TaskName = Cow<'static, str>;

/// Why a task ended that should have gone on.
#[derive(Debug, Clone, Error)]
pub enum TaskError {
    /// The task returned an error.
    #[error("task {name} failed: {cause}")]
    Failed {
        /// The task.
        name: TaskName,
        /// What it returned.
        cause: Arc<dyn StdError + Send + Sync>,
    },
    /// The task panicked: a defect, please report it with the log.
    #[error("task {name} panicked: {message}")]
    Panicked {
        /// The task.
        name: TaskName,
        /// The panic's message.
        message: String,
    },
    /// Tasks did not end in time and were dropped.
    #[error("gave up after {grace:?} on unfinished tasks: {}", names.join(", "))]
    Unfinished {
        /// The time that they were given.
        grace: Duration,
        /// Up to [`UNFINISHED_NAMES_MAX`] of them.
        names: Vec<TaskName>,
    },
}

/// How many unfinished tasks a [`TaskError::Unfinished`] names.
pub const UNFINISHED_NAMES_MAX: usize = 20;

/// What a task may return: nothing, or a result whose error says why it failed.
pub trait TaskOutcome: Send + 'static {
    /// The error, if there is one.
    fn into_failure(self) -> Option<Arc<dyn StdError + Send + Sync>>;
}

impl TaskOutcome for () {
    fn into_failure(self) -> Option<Arc<dyn StdError + Send + Sync>> {
        None
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>> + Send + 'static> TaskOutcome for Result<(), E> {
    fn into_failure(self) -> Option<Arc<dyn StdError + Send + Sync>> {
        self.err().map(|error| Arc::from(error.into()))
    }
}

/// A supervisor and its tasks. Clones share them, so that listeners can spawn for each connection.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    shared: Arc<Shared>,
}

impl Tasks {
    /// A supervisor without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns an essential task: when it fails or panics, the supervisor reports that as its own failure.
    pub fn spawn<F>(&self, name: impl Into<TaskName>, work: F) -> AbortHandle
    where
        F: Future + Send + 'static,
        F::Output: TaskOutcome,
    {
        self.launch(name.into(), true, work)
    }

    /// Spawns a task whose failure affects nothing else (one node's connection): it is logged and counted, and
    /// everything else continues.
    pub fn spawn_isolated<F>(&self, name: impl Into<TaskName>, work: F) -> AbortHandle
    where
        F: Future + Send + 'static,
        F::Output: TaskOutcome,
    {
        self.launch(name.into(), false, work)
    }

    /// Number of tasks that have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.tracker.len()
    }

    /// Whether every task has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.tracker.is_empty()
    }

    /// Completes with the first failure of an essential task. Cancel-safe.
    pub async fn failed(&self) -> TaskError {
        let mut failure = self.shared.failure.subscribe();
        match failure.wait_for(Option::is_some).await.map(|found| found.clone()) {
            Ok(Some(error)) => error,
            // Unreachable while `self` holds the sender. Never completing is the harmless choice.
            _ => std::future::pending().await,
        }
    }

    /// Waits up to `grace` for every task to end, then drops those that are left.
    ///
    /// # Errors
    /// The first failure of an essential task, or [`TaskError::Unfinished`].
    pub async fn shutdown(&self, grace: Duration) -> Result<(), TaskError> {
        self.shared.tracker.close();
        let late = tokio::time::timeout(grace, self.shared.tracker.wait()).await.is_err();
        let names = if late { self.unfinished() } else { Vec::new() };
        self.shared.cancel.cancel();
        self.shared.tracker.wait().await;
        if let Some(error) = self.shared.failure.borrow().clone() {
            return Err(error);
        }
        if late { Err(TaskError::Unfinished { grace, names }) } else { Ok(()) }
    }

    /// Drops every task at its next suspension point, without waiting.
    pub fn abort(&self) {
        self.shared.tracker.close();
        self.shared.cancel.cancel();
    }

    fn unfinished(&self) -> Vec<TaskName> {
        self.shared.names().values().take(UNFINISHED_NAMES_MAX).cloned().collect()
    }

    fn launch<F>(&self, name: TaskName, essential: bool, work: F) -> AbortHandle
    where
        F: Future + Send + 'static,
        F::Output: TaskOutcome,
    {
        let entry = TaskEntry::new(&self.shared, name, essential);
        let cancel = self.shared.cancel.clone();
        // Catches a panic, so that the entry is not dropped without a report. Unwind safety holds, because nothing that
        // the panic could leave half-changed is used afterwards: the future is dropped with everything it owns. The
        // future is boxed, because each async function that takes a future by value reserves room for it twice, and
        // there are thousands of tasks.
        let work = Box::pin(AssertUnwindSafe(work).catch_unwind());
        let supervised = async move {
            match cancel.run_until_cancelled_owned(work).await {
                Some(Ok(outcome)) => entry.finished(outcome.into_failure()),
                Some(Err(panic)) => entry.panicked(panic.as_ref()),
                None => {}
            }
        };
        host::spawn(self.shared.tracker.track_future(supervised))
    }
}

#[derive(Debug)]
struct Shared {
    tracker: TaskTracker,
    cancel: CancellationToken,
    failure: watch::Sender<Option<TaskError>>,
    next_id: AtomicU64,
    names: Mutex<BTreeMap<u64, TaskName>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            tracker: TaskTracker::new(),
            cancel: CancellationToken::new(),
            failure: watch::Sender::new(None),
            next_id: AtomicU64::new(0),
            names: Mutex::new(BTreeMap::new()),
        }
    }
}

impl Shared {
    fn names(&self) -> MutexGuard<'_, BTreeMap<u64, TaskName>> {
        // The map is changed by single calls that cannot leave it half-changed.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: TaskError) {
        self.failure.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(error);
            is_first
        });
    }
}

/// The supervisor's entry for one task, removed when the task ends in any way.
struct TaskEntry {
    shared: Arc<Shared>,
    id: u64,
    essential: bool,
}

impl TaskEntry {
    fn new(shared: &Arc<Shared>, name: TaskName, essential: bool) -> Self {
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        shared.names().insert(id, name);
        Self { shared: Arc::clone(shared), id, essential }
    }

    fn name(&self) -> TaskName {
        self.shared.names().get(&self.id).cloned().unwrap_or_default()
    }

    fn finished(&self, failure: Option<Arc<dyn StdError + Send + Sync>>) {
        if let Some(cause) = failure {
            self.report(TaskError::Failed { name: self.name(), cause });
        }
    }

    fn panicked(&self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let message = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let message = message.unwrap_or_else(|| "no message".to_owned());
        self.report(TaskError::Panicked { name: self.name(), message });
    }

    fn report(&self, error: TaskError) {
        if self.essential {
            tracing::error!(%error, "essential task ended");
            self.shared.fail(error);
        } else {
            tracing::warn!(%error, "task ended");
        }
    }
}

impl Drop for TaskEntry {
    fn drop(&mut self) {
        self.shared.names().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    async fn panicking(message: &str) {
        assert!(message.is_empty(), "{message}");
    }

    #[tokio::test(start_paused = true)]
    async fn panic_is_reported_as_the_supervisors_error() {
        let tasks = Tasks::new();
        tasks.spawn("steady", async {});
        tasks.spawn("shaky", panicking("index 7 is missing"));
        let error = tasks.failed().await;
        assert_eq!(error.to_string(), "task shaky panicked: index 7 is missing");
        assert!(matches!(tasks.shutdown(GRACE).await, Err(TaskError::Panicked { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_surfaces_and_the_first_one_wins() {
        let tasks = Tasks::new();
        tasks.spawn("first", async { Err::<(), _>(std::io::Error::other("no disk")) });
        assert_eq!(tasks.failed().await.to_string(), "task first failed: no disk");
        tasks.spawn("second", async { Err::<(), _>("later") });
        assert_eq!(tasks.shutdown(GRACE).await.unwrap_err().to_string(), "task first failed: no disk");
    }

    #[tokio::test(start_paused = true)]
    async fn isolated_panic_ends_only_its_own_task() {
        let tasks = Tasks::new();
        let lost = tasks.spawn_isolated("node a", panicking("boom"));
        while !lost.is_finished() {
            tokio::task::yield_now().await;
        }
        tasks.shutdown(GRACE).await.unwrap();
        assert!(tasks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn stuck_tasks_are_named_and_dropped() {
        let tasks = Tasks::new();
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        tasks.spawn(format!("owner of node {}", "x"), async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        let error = tasks.shutdown(GRACE).await.unwrap_err();
        assert_eq!(error.to_string(), "gave up after 5s on unfinished tasks: owner of node x");
        assert_eq!(Arc::strong_count(&alive), 1, "the task's future was dropped");
        assert_eq!(tasks.len(), 0);
    }

    #[tokio::test]
    async fn aborted_task_is_no_longer_counted() {
        let tasks = Tasks::new();
        let handle = tasks.spawn_isolated("old session", std::future::pending::<()>());
        handle.abort();
        tasks.shutdown(GRACE).await.unwrap();
        assert!(tasks.unfinished().is_empty());
    }
}
