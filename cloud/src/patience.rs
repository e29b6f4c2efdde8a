//! What cloudcore does first: an API server that is busy, or not there yet, is waited for. What cannot get better ends the start: cloudcore's
//! rights, what the cluster holds, the configuration.

use std::fmt::Display;
use std::time::Duration;

use tombolo_runtime::doubled;

/// Wait after a first failure; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(200);

/// Longest wait after a failure.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Why something was not done.
pub(crate) trait Trouble: Display {
    /// Whether the API server may answer the same question in another way in a moment.
    fn is_passing(&self) -> bool;
}

/// Waits, and says so once.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    has_waited: bool,
}

impl Patience {
    /// Does this again and again until it works.
    ///
    /// # Errors
    /// What does not pass.
    pub(crate) async fn wait_for<T, E, F>(&mut self, mut attempt: impl FnMut() -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: Trouble,
    {
        let mut failures = 0;
        loop {
            let error = match attempt().await {
                Err(error) if error.is_passing() => error,
                done => return done,
            };
            if !std::mem::replace(&mut self.has_waited, true) {
                tracing::warn!(%error, "cloudcore cannot start yet: it waits for the API server and tries again");
            }
            failures += 1;
            tokio::time::sleep(doubled(RETRY_MIN, failures, RETRY_MAX)).await;
        }
    }
}
