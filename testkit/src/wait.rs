//! Conditions with deadlines, in place of sleeps.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Tries a condition until it holds.
///
/// # Panics
/// When the condition does not hold within `deadline`; the message has `what` and the last answer.
pub async fn wait_for<F, Fut>(what: &str, deadline: Duration, condition: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), String>>,
{
    wait_for_value(what, deadline, condition).await;
}

/// Tries until there is a value, and returns it.
///
/// # Panics
/// When there is none within `deadline`; the message has `what` and the last answer.
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
                panic!("waited {deadline:?} for {what}; last answer: {answer}")
            }
            Err(_) => sleep(pause).await,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
