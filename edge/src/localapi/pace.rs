//! Limits how often the cloud is asked for discovery. Clients that repeatedly request discovery or a kind that does not
//! exist must not cause much traffic, but a client that has just defined a kind must find it.

use std::time::Duration;

use tokio::time::Instant;

/// Shortest time between two queries.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// Longest time between two queries while their answers bring nothing new.
const INTERVAL_MAX: Duration = Duration::from_secs(10);

/// After this time without a query the pace starts again at [`INTERVAL`].
const REST: Duration = Duration::from_secs(60);

/// How long after a definition was written its publication is polled without slowing down. An API server publishes
/// kinds a moment after it has accepted their definition.
const PUBLICATION: Duration = Duration::from_secs(5);

/// Limits the queries for discovery.
#[derive(Debug, Default)]
pub(super) struct Pace {
    asked: Option<Instant>,
    interval: Duration,
}

impl Pace {
    /// When to ask the cloud for a client that arrives `now`; none when the last answer is new enough. A client of this
    /// node has written a definition at `written`: an answer from before that is never new enough.
    pub(super) fn due(&self, now: Instant, written: Option<Instant>) -> Option<Instant> {
        let Some(asked) = self.asked else { return Some(now) };
        let since = written.filter(|written| *written >= asked || now.duration_since(*written) < PUBLICATION);
        let due = asked + if since.is_some() { INTERVAL } else { self.interval };
        if due <= now {
            return Some(now);
        }
        since.filter(|written| *written >= asked).map(|_| due)
    }

    /// Records that the cloud is asked now.
    pub(super) fn ask(&mut self, now: Instant) {
        let pressed = self.asked.is_some_and(|asked| now.duration_since(asked) < REST);
        self.interval = if pressed { (self.interval * 2).min(INTERVAL_MAX) } else { INTERVAL };
        self.asked = Some(now);
    }

    /// Records that the answer brought something new: more may follow.
    pub(super) fn news(&mut self) {
        self.interval = INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn discovery_queries_without_changes_slow_down() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut asked = Vec::new();
        // A client requests a kind that does not exist ten times a second.
        for tenth in 0..600 {
            let now = after(start, tenth * 100);
            if pace.due(now, None) == Some(now) {
                pace.ask(now);
                asked.push(tenth / 10);
            }
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 25, 35, 45, 55]);
        assert_eq!(pace.due(after(start, 60_000), None), None);
        pace.news();
        assert!(pace.due(after(start, 60_000), None).is_some(), "after something new, more may follow");
        // A client that asks once a minute is answered at once.
        let rested = after(start, 200_000);
        pace.ask(rested);
        assert_eq!(pace.due(after(rested, 999), None), None);
        assert_eq!(pace.due(after(rested, 1_000), None), Some(after(rested, 1_000)));
    }

    #[test]
    fn answers_from_before_a_definition_are_not_used() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        (0..5).for_each(|second| pace.ask(after(start, second * 1_000)));
        let written = Some(after(start, 4_500));
        assert_eq!(pace.due(after(start, 4_600), None), None);
        assert_eq!(pace.due(after(start, 4_600), written), Some(after(start, 5_000)), "the client waits");
        pace.ask(after(start, 5_000));
        assert_eq!(pace.due(after(start, 5_500), written), None, "at most once a second");
        assert!(pace.due(after(start, 6_000), written).is_some(), "it may not have been published yet");
        pace.ask(after(start, 9_400));
        assert_eq!(pace.due(after(start, 10_500), written), None, "by now it has been");
    }
}
