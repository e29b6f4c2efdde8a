//! CPU-bound work that may take long, such as evaluating a user's policy expressions, or applying a patch to a large
//! object.
//!
//! On a runtime thread it would block other requests: lease renewals of nodes, health checks, refusals of
//! unauthenticated clients. There are few permits for such work, and no sender has more than half of them: a request
//! first queues behind others of its sender, then behind those of other senders, in order of arrival.

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

use crate::senders::Payer;
pub use crate::senders::{BLOCKING_MAX, BLOCKING_OF_SENDER_MAX};
use crate::status::ApiError;

/// How long a request waits for a permit; then it is answered with 429.
pub const BLOCKING_WAIT_MAX: Duration = Duration::from_secs(10);

static PERMITS: Semaphore = Semaphore::const_new(BLOCKING_MAX);

/// Runs work for a request outside the threads of the runtime that serve requests. A single-threaded runtime, as in
/// tests, runs it inline.
///
/// # Errors
/// 429 when the sender of the request gets no permit within [`BLOCKING_WAIT_MAX`].
pub async fn run_blocking<T>(payer: &Payer, work: impl FnOnce() -> T + Send) -> Result<T, ApiError> {
    if payer.is_server() {
        return Ok(run_own_blocking(work).await);
    }
    // First the queue of the sender: no sender has more than a few requests in the common queue.
    let wait = async { (payer.turn().await, PERMITS.acquire().await) };
    let Ok(_permit) = tokio::time::timeout(BLOCKING_WAIT_MAX, wait).await else {
        return Err(ApiError::too_many_requests(
            "Too many requests of this client wait for large bodies to be read, or for expressions (of policies, rules or \
             selectors) to be evaluated, please try again later.",
        ));
    };
    Ok(beside(work))
}

/// Size from which on the data that a request reads or changes is processed as blocking work: it takes a millisecond
/// or so.
pub const LARGE: usize = 64 * 1024;

/// Like [`run_blocking`], for work that may take long only when it is about this many bytes.
///
/// # Errors
/// As [`run_blocking`].
pub(crate) async fn run_blocking_if_large<T>(
    payer: &Payer,
    len: usize,
    work: impl FnOnce() -> T + Send,
) -> Result<T, ApiError> {
    if len >= LARGE { run_blocking(payer, work).await } else { Ok(work()) }
}

/// Like [`run_blocking`] for the server's own work, which waits as long as it takes.
pub async fn run_own_blocking<T>(work: impl FnOnce() -> T + Send) -> T {
    // The semaphore is never closed.
    let _permit = PERMITS.acquire().await;
    beside(work)
}

fn beside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => work(),
        _ => tokio::task::block_in_place(work),
    }
}

#[cfg(test)]
mod tests;
