//! Retries during the start: cloudcore waits for an API server that is busy or not reachable yet. Errors that waiting
//! cannot fix end the start: missing permissions, unusable cluster state, the configuration.

use std::fmt::Display;
use std::time::Duration;

use tombolo_runtime::doubled;

/// Wait after a first failure; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(200);

/// Longest wait after a failure.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// An error that may pass.
pub(crate) trait Retryable: Display {
    /// Whether the same request may succeed later.
    fn is_passing(&self) -> bool;
}

/// Retries, and logs the wait once.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    has_waited: bool,
}

impl Patience {
    /// Repeats an attempt until it succeeds.
    ///
    /// # Errors
    /// An error that does not pass.
    pub(crate) async fn wait_for<T, E, F>(&mut self, mut attempt: impl FnMut() -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: Retryable,
    {
        let mut failures = 0;
        loop {
            let error = match attempt().await {
                Err(error) if error.is_passing() => error,
                done => return done,
            };
            if !std::mem::replace(&mut self.has_waited, true) {
                tracing::warn!(%error, "cloudcore cannot start yet; waiting for the API server");
            }
            failures += 1;
            tokio::time::sleep(doubled(RETRY_MIN, failures, RETRY_MAX)).await;
        }
    }
}
