//! Time helpers: waiting for an optional moment, parsing an HTTP date, and the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Waits until a moment, or for ever if there is none.
pub async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// The wall clock, in milliseconds since the Unix epoch.
#[must_use]
pub fn unix_millis() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

/// The moment in an HTTP `Date` header (RFC 9110, 5.6.7); `None` if the text is not a date.
#[must_use]
pub fn http_date(text: &str) -> Option<SystemTime> {
    let time = jiff::fmt::rfc2822::parse(text).ok()?;
    Some(time.timestamp().into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_for_the_moment_or_for_ever() {
        let start = Instant::now();
        sleep_until(Some(start + Duration::from_secs(5))).await;
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        tokio::time::advance(Duration::from_secs(1_000_000)).await;
        assert!(sleep_until(None).now_or_never().is_none());
    }

    #[test]
    fn dates_are_read_and_garbage_is_not() {
        let expected = UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(expected));
        assert_eq!(http_date("yesterday"), None);
    }
}
