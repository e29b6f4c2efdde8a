//! The running parts, and their shutdown, including after an incomplete start.

use std::time::Duration;

use tombolo_runtime::{TaskError, Tasks, Trigger};

/// How long drained parts may take to return, and the API server to finish requests in progress.
pub(super) const TASK_GRACE: Duration = Duration::from_secs(1);

/// All running parts.
pub(super) struct RunningParts {
    /// All but the embedded API server.
    pub(super) tasks: Tasks,
    // Separate from the others, which still write to it while they drain.
    api_server: Option<(Tasks, Trigger)>,
}

impl RunningParts {
    pub(super) fn new() -> Self {
        Self { tasks: Tasks::new(), api_server: None }
    }

    /// Adds the running embedded API server.
    pub(super) fn serve_api(&mut self, tasks: Tasks, trigger: Trigger) {
        self.api_server = Some((tasks, trigger));
    }

    /// Waits until a part fails.
    pub(super) async fn failed(&self) -> TaskError {
        match &self.api_server {
            None => self.tasks.failed().await,
            Some((api_server, _)) => tokio::select! {
                error = self.tasks.failed() => error,
                error = api_server.failed() => error,
            },
        }
    }

    /// Waits until all parts have drained, or the drain is aborted; the API server stops last.
    pub(super) async fn stop(self, trigger: &Trigger) {
        end(trigger, &self.tasks).await;
        if let Some((tasks, trigger)) = self.api_server {
            trigger.start();
            end(&trigger, &tasks).await;
        }
    }
}

async fn end(trigger: &Trigger, tasks: &Tasks) {
    let outcome = trigger.finished().await;
    tracing::debug!(?outcome, "drained");
    if let Err(error) = tasks.shutdown(TASK_GRACE).await {
        eprintln!("error while stopping: {error}");
    }
}
