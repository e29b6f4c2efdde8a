//! Waits for conditions with deadlines, instead of sleeping.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Retries a condition until it holds.
///
/// # Panics
/// The condition does not hold within `deadline`. The message contains `what` and the last error.
pub async fn wait_for<F, Fut>(what: &str, deadline: Duration, condition: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), String>>,
{
    wait_for_value(what, deadline, condition).await;
}

/// Retries a condition until it is true.
///
/// # Panics
/// The condition is not true within `deadline`. The message contains `what`.
pub async fn wait_until(what: &str, deadline: Duration, condition: impl AsyncFn() -> bool) {
    let attempt = async || condition().await.then_some(()).ok_or_else(|| "the condition is false".to_owned());
    wait_for_value(what, deadline, attempt).await;
}

/// Retries until there is a value, and returns it.
///
/// # Panics
/// There is no value within `deadline`. The message contains `what` and the last error.
pub async fn wait_for_value<F, Fut, T>(what: &str, deadline: Duration, mut attempt: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let end = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(answer) if Instant::now() >= end => {
                panic!("waited {deadline:?} for {what}; last error: {answer}")
            }
            Err(_) => sleep(pause).await,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
