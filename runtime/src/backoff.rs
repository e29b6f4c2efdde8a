//! Exponential back-off with jitter, as a plain value: the caller passes the randomness in and does the sleeping.

use std::time::Duration;

use rand::Rng;

/// Bounds of a back-off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackoffConfig {
    /// Upper bound of the first wait.
    pub first: Duration,
    /// Upper bound of every wait.
    pub max: Duration,
    /// Growth from one attempt to the next; at least 1.
    pub factor: f64,
}

impl Default for BackoffConfig {
    fn default() -> Self {
        Self { first: Duration::from_millis(500), max: Duration::from_secs(60), factor: 2.0 }
    }
}

/// Waits between attempts. Each is drawn between half of a ceiling and the ceiling, which grows up to a maximum. The
/// lower bound keeps clients from hammering a broken peer; the random part keeps a fleet from reconnecting in step.
#[derive(Debug, Clone)]
pub struct Backoff {
    config: BackoffConfig,
    attempts: u32,
}

impl Backoff {
    /// A back-off that has not waited yet.
    #[must_use]
    pub fn new(config: BackoffConfig) -> Self {
        Self { config, attempts: 0 }
    }

    /// How many waits were drawn since the last [`Backoff::reset`].
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The wait before the next attempt.
    pub fn next_delay(&mut self, rng: &mut impl Rng) -> Duration {
        let exponent = i32::try_from(self.attempts).unwrap_or(i32::MAX);
        self.attempts = self.attempts.saturating_add(1);
        let max = self.config.max.as_secs_f64();
        let grown = self.config.first.as_secs_f64() * self.config.factor.max(1.0).powi(exponent);
        // `min` also turns an infinite product into the maximum.
        let ceiling = grown.min(max);
        Duration::from_secs_f64(ceiling * rng.random_range(0.5..=1.0))
    }

    /// Starts again with the first wait, after an attempt that worked.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

/// The wait after this many failures in a row: `first` after one, twice as long after each further one, at most `max`.
/// It has no jitter, because it is for retries inside one process (in turn or from a queue), where no other client
/// waits in step.
#[must_use]
pub fn doubled(first: Duration, failures: u32, max: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(max)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn grows_to_the_maximum_and_stays_there() {
        let config =
            BackoffConfig { first: Duration::from_secs(1), max: Duration::from_secs(30), factor: 2.0 };
        for seed in 0..50 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut backoff = Backoff::new(config);
            for ceiling in [1, 2, 4, 8, 16, 30, 30, 30] {
                let (delay, ceiling) = (backoff.next_delay(&mut rng), Duration::from_secs(ceiling));
                assert!(delay <= ceiling && delay >= ceiling / 2, "seed {seed}: {delay:?} of {ceiling:?}");
            }
            assert_eq!(backoff.attempts(), 8);
            backoff.reset();
            assert!(backoff.next_delay(&mut rng) <= Duration::from_secs(1));
        }
    }

    #[test]
    fn is_spread_and_survives_any_number_of_attempts() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut backoff = Backoff::new(BackoffConfig::default());
        let delays: Vec<_> = (0..5000).map(|_| backoff.next_delay(&mut rng)).collect();
        let late = &delays[100..];
        assert!(late.iter().any(|d| *d < Duration::from_secs(35)));
        assert!(late.iter().any(|d| *d > Duration::from_secs(55)));
        assert!(late.iter().all(|d| *d <= Duration::from_secs(60)));
    }

    #[test]
    fn delay_doubles_from_the_first_to_the_longest_for_any_count() {
        let waits = |failures| doubled(Duration::from_millis(200), failures, Duration::from_secs(1));
        assert_eq!([0, 1, 2, 3].map(|failures| waits(failures).as_millis()), [200, 200, 400, 800]);
        assert_eq!([4, 5, 33, u32::MAX].map(|failures| waits(failures).as_millis()), [1000; 4]);
        assert_eq!(doubled(Duration::from_secs(1), u32::MAX, Duration::MAX).as_secs(), u64::from(u32::MAX));
    }
}
