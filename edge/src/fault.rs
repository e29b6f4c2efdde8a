//! Lasting faults, reported when they begin and when they end rather than at every failed attempt.

use std::time::Duration;

use tokio::time::Instant;

/// Minimum time until another reason of the same fault is reported.
const REASON_INTERVAL: Duration = Duration::from_secs(60);

/// The state of one operation that may fail for a long time.
#[derive(Debug, Default)]
pub(crate) struct Fault {
    began: Option<Instant>,
    reported: Option<(Instant, String)>,
}

impl Fault {
    /// Records a failure. Returns whether to report it: the first one, and one with another reason than the last
    /// reported, at most once a minute.
    pub(crate) fn failed(&mut self, why: &str) -> bool {
        let now = Instant::now();
        self.began.get_or_insert(now);
        let old =
            self.reported.as_ref().is_some_and(|(at, reason)| reason == why || now < *at + REASON_INTERVAL);
        if !old {
            self.reported = Some((now, why.to_owned()));
        }
        !old
    }

    /// Records a success. Returns how long the fault lasted; `None` if there was none.
    pub(crate) fn over(&mut self) -> Option<Duration> {
        self.reported = None;
        self.began.take().map(|began| began.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn fault_is_reported_only_on_change() {
        let mut fault = Fault::default();
        assert_eq!(fault.over(), None);
        assert!(fault.failed("away"));
        assert!(!fault.failed("away") && !fault.failed("refused"), "reported a moment ago");
        tokio::time::advance(REASON_INTERVAL).await;
        assert!(!fault.failed("away"), "the same reason");
        assert!(fault.failed("refused"));
        assert_eq!(fault.over(), Some(REASON_INTERVAL));
        assert!(fault.failed("refused"), "a new one");
    }
}
