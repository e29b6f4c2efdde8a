//! Work for the processor alone that may take long, such as the expressions of somebody else's policy, or what a patch makes of
//! a large object.
//!
//! A thread that serves would serve nobody else meanwhile: nodes that renew leases, health checks, strangers to be refused.
//! There are few places for such work, and no sender has more than half of them: it waits behind itself, then with others in
//! the order in which they have come.

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

use crate::senders::Payer;
pub use crate::senders::{ASIDE_MAX, ASIDE_OF_SENDER_MAX};
use crate::status::ApiError;

/// How long a request waits for its place; then it is answered with 429.
pub const ASIDE_WAIT_MAX: Duration = Duration::from_secs(10);

static PLACES: Semaphore = Semaphore::const_new(ASIDE_MAX);

/// Does work for a request beside what the threads of the runtime serve. A runtime of one thread, as tests have it, does it
/// there.
///
/// # Errors
/// 429: no place for the sender of the request within [`ASIDE_WAIT_MAX`].
pub async fn aside<T>(payer: &Payer, work: impl FnOnce() -> T + Send) -> Result<T, ApiError> {
    if payer.is_server() {
        return Ok(own_aside(work).await);
    }
    // Behind one's own first: nobody has more than a few in the line of all.
    let wait = async { (payer.turn().await, PLACES.acquire().await) };
    let Ok(_place) = tokio::time::timeout(ASIDE_WAIT_MAX, wait).await else {
        return Err(ApiError::too_many_requests(
            "Too many requests of this client wait for large bodies to be read, or for expressions (of policies, rules or \
             selectors) to be evaluated, please try again later.",
        ));
    };
    Ok(beside(work))
}

/// Bytes of what is read and changed for a request from which on it is done aside: a millisecond or so.
pub const LARGE: usize = 64 * 1024;

/// As [`aside`], where work is about so many bytes that it may take long.
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

/// The same for the server's own need, which waits as long as it takes.
pub async fn own_aside<T>(work: impl FnOnce() -> T + Send) -> T {
    // It is never closed.
    let _place = PLACES.acquire().await;
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
