//! Limits the rate of renewals per name: each renewal writes a Secret of up to 900 KiB that a quarter of the fleet
//! shares, and every replica receives it. The time of the last renewal is in the record, so all replicas apply the same
//! rate.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tombolo_runtime::doubled;

use super::CLOCK_SKEW_SECONDS;

/// Consecutive renewals without a pause: an agent whose answer was lost asks again within seconds.
const AT_ONCE: u32 = 3;

/// The pause after these. It doubles with each further renewal.
const PAUSE: Duration = Duration::from_secs(60);

/// The longest pause. Certificates live for at least a day, and are renewed when most of that is over.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Renewals of one name in short succession.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewals {
    /// Number of renewals.
    count: u32,
    /// Time of the last recorded one, in Unix seconds.
    last: u64,
}

impl Renewals {
    fn pause(self) -> Duration {
        match self.count.checked_sub(AT_ONCE) {
            Some(beyond) => doubled(PAUSE, beyond.saturating_add(1), PAUSE_MAX),
            None => Duration::ZERO,
        }
    }

    /// How long the next renewal must wait; none when it may run now. If the last renewal is in the future, because a
    /// clock was corrected since, there is no wait.
    pub(super) fn left(self, now: u64) -> Option<Duration> {
        if self.last > now.saturating_add(CLOCK_SKEW_SECONDS) {
            return None;
        }
        let left = self.pause().saturating_sub(Duration::from_secs(now.saturating_sub(self.last)));
        (!left.is_zero()).then_some(left)
    }

    /// The same with one more renewal. After a rest as long as its pause plus the longest pause, counting starts again.
    pub(super) fn with_one_more(former: Option<Self>, now: u64) -> Self {
        let rest = |former: &Self| former.pause().saturating_add(PAUSE_MAX).as_secs();
        let close = former.filter(|former| now.saturating_sub(former.last) <= rest(former));
        Self { count: close.map_or(0, |former| former.count).saturating_add(1), last: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waits of this many renewals that arrive as soon as they may.
    fn waits(count: usize) -> Vec<u64> {
        let (mut now, mut last) = (1_000_000, None);
        let renewals = (0..count).map(|_| {
            let left = last.and_then(|last: Renewals| last.left(now)).unwrap_or_default().as_secs();
            now += left;
            last = Some(Renewals::with_one_more(last, now));
            left
        });
        renewals.collect()
    }

    #[test]
    fn pauses_between_renewals_grow_to_an_hour() {
        assert_eq!(waits(12), [0, 0, 0, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]);
    }

    #[test]
    fn renewal_at_the_usual_time_never_waits() {
        let (mut now, mut last) = (1_000_000, None);
        for _ in 0..20 {
            let renewals = Renewals::with_one_more(last, now);
            assert_eq!((renewals.count, renewals.left(now)), (1, None));
            (now, last) = (now + 86_400 * 7 / 10, Some(renewals));
        }
    }

    #[test]
    fn clock_that_was_ahead_makes_no_renewal_wait() {
        let renewals = Renewals { count: 20, last: 1_000_000 };
        assert_eq!(renewals.left(1_000_000 - CLOCK_SKEW_SECONDS), Some(PAUSE_MAX));
        assert_eq!(renewals.left(1_000_000 - CLOCK_SKEW_SECONDS - 1), None);
    }
}
