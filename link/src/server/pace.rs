//! Limits the rate at which connections are accepted.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket that is stored as one instant: the time at which it would be full again.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    slack: Duration,
    full_at: Instant,
}

impl Pace {
    /// `per_second` on average, `burst` at once after a pause; both are at least one.
    pub(super) fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, slack: interval * (burst.max(1) - 1), full_at: Instant::now() }
    }

    /// Waits for a token and takes it. A dropped call takes none.
    pub(super) async fn turn(&mut self) {
        let now = Instant::now();
        let full_at = self.full_at.max(now);
        if full_at.duration_since(now) > self.slack {
            tokio::time::sleep_until(full_at - self.slack).await;
        }
        self.full_at = full_at + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn burst_is_accepted_and_then_the_rate_applies() {
        let begin = Instant::now();
        let mut pace = Pace::new(10, 5);
        for _ in 0..5 {
            pace.turn().await;
        }
        assert_eq!(begin.elapsed(), Duration::ZERO);
        for _ in 0..20 {
            pace.turn().await;
        }
        assert_eq!(begin.elapsed().as_millis(), 2000);
    }
}
