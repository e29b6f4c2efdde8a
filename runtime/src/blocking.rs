//! Work that would block the thread of a task: files, scans of a database.

use std::future::{Future, ready};

use futures::future::Either;
use tokio::task::{JoinError, spawn_blocking};

use crate::host::TaskHost;

/// Runs work on a thread for such work, beginning at once, whether or not the result is awaited. In a simulation
/// ([`TaskHost`]) the work is done before this returns: time stands still while a thread works, and the order of threads
/// cannot be repeated.
///
/// # Errors
/// [`JoinError`] when the work panicked or the process ends.
pub fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, JoinError>> + Send {
    match TaskHost::current() {
        Some(_) => Either::Left(ready(Ok(work()))),
        None => Either::Right(spawn_blocking(work)),
    }
}

#[cfg(test)]
mod tests {
    use std::thread::current;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_leaves_the_thread_except_in_a_simulation() {
        let own = current().id();
        assert_ne!(run(|| current().id()).await.unwrap(), own);
        let (answer, answered) = oneshot::channel();
        TaskHost::new(|| {}).spawn(async move {
            answer.send(run(|| current().id()).await.unwrap()).unwrap();
        });
        assert_eq!(answered.await.unwrap(), own);
    }
}
