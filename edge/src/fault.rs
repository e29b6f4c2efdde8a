//! Faults that last: told when they begin and when they are over, not at every attempt in between.

use std::time::Duration;

use tokio::time::Instant;

/// How soon another reason of the same fault is told.
const REASON_INTERVAL: Duration = Duration::from_secs(60);

/// One thing that may fail for long.
#[derive(Debug, Default)]
pub(crate) struct Fault {
    began: Option<Instant>,
    told: Option<(Instant, String)>,
}

impl Fault {
    /// It has failed. Whether that is news: the first time, or for another reason than was told, at most once a minute.
    pub(crate) fn failed(&mut self, why: &str) -> bool {
        let now = Instant::now();
        self.began.get_or_insert(now);
        let old = self.told.as_ref().is_some_and(|(at, reason)| reason == why || now < *at + REASON_INTERVAL);
        if !old {
            self.told = Some((now, why.to_owned()));
        }
        !old
    }

    /// It works. How long it did not; none when it did all the time.
    pub(crate) fn over(&mut self) -> Option<Duration> {
        self.told = None;
        self.began.take().map(|began| began.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_news_are_told() {
        let mut fault = Fault::default();
        assert_eq!(fault.over(), None);
        assert!(fault.failed("away"));
        assert!(!fault.failed("away") && !fault.failed("refused"), "told a moment ago");
        tokio::time::advance(REASON_INTERVAL).await;
        assert!(!fault.failed("away"), "the same reason");
        assert!(fault.failed("refused"));
        assert_eq!(fault.over(), Some(REASON_INTERVAL));
        assert!(fault.failed("refused"), "a new one");
    }
}
