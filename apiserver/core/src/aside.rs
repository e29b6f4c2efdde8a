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
pub use crate::senders::{ASIDE_MAX, ASIDE_OF_SENDER_MAX};
use crate::status::ApiError;

/// How long a request waits for a permit; then it is answered with 429.
pub const ASIDE_WAIT_MAX: Duration = Duration::from_secs(10);

static PERMITS: Semaphore = Semaphore::const_new(ASIDE_MAX);

/// Runs work for a request outside the threads of the runtime that serve requests. A single-threaded runtime, as in
/// tests, runs it inline.
///
/// # Errors
/// 429 when the sender of the request gets no permit within [`ASIDE_WAIT_MAX`].
pub async fn aside<T>(payer: &Payer, work: impl FnOnce() -> T + Send) -> Result<T, ApiError> {
    if payer.is_server() {
        return Ok(own_aside(work).await);
    }
    // First the queue of the sender: no sender has more than a few requests in the common queue.
    let wait = async { (payer.turn().await, PERMITS.acquire().await) };
    let Ok(_permit) = tokio::time::timeout(ASIDE_WAIT_MAX, wait).await else {
        return Err(ApiError::too_many_requests(
            "Too many requests of this client wait for large bodies to be read, or for expressions (of policies, rules or \
             selectors) to be evaluated, please try again later.",
        ));
    };
    Ok(beside(work))
}

/// Size from which on the data that a request reads or changes is processed aside: it takes a millisecond or so.
pub const LARGE: usize = 64 * 1024;

/// Like [`aside`], for work that may take long only when it is about this many bytes.
///
/// # Errors
/// As [`aside`].
pub(crate) async fn aside_if_large<T>(
    payer: &Payer,
    len: usize,
    work: impl FnOnce() -> T + Send,
) -> Result<T, ApiError> {
    if len >= LARGE { aside(payer, work).await } else { Ok(work()) }
}

/// Like [`aside`] for the server's own work, which waits as long as it takes.
pub async fn own_aside<T>(work: impl FnOnce() -> T + Send) -> T {
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
