//! How a session ends, and whether it achieved something.

use std::time::Duration;

use tokio::time::Instant;
use tombolo_proto::frame::{Goodbye, GoodbyeReason};
use tombolo_proto::session::EdgeEvent;

use super::failure::SessionFailure;

/// How long a session must last before it resets the back-off. Otherwise sessions that end soon would be repeated
/// without delay forever.
const HELD_MIN: Duration = Duration::from_secs(5);

/// How a session ended.
pub(super) struct Ended {
    pub(super) why: String,
    /// The cloud had accepted the hello.
    pub(super) welcomed: bool,
    /// The session achieved something: see [`Achieved`].
    pub(super) achieved: bool,
    pub(super) retry_after: Duration,
}

/// Whether a session achieved something. An accepted hello does not count: the cloud also accepts the hello of an agent
/// whose store cannot commit, and that of a copy of this node's identity.
#[derive(Debug, Clone, Copy)]
pub(super) struct Achieved {
    began: Instant,
    /// Something that the cloud sent is on disk.
    stored: bool,
}

impl Achieved {
    /// Starts with nothing achieved.
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), stored: false }
    }

    /// Records whether the store wrote something that the cloud sent.
    pub(super) fn note(&mut self, stored: bool) {
        self.stored |= stored;
    }

    /// Whether the session achieved something, if it ends now.
    fn enough(self) -> bool {
        self.stored && self.began.elapsed() >= HELD_MIN
    }
}

/// The goodbye of a session that this side ends.
pub(super) fn draining(message: &str) -> Goodbye {
    let (reason, retry_after) = (GoodbyeReason::Draining, Duration::ZERO);
    Goodbye { reason, message: message.to_owned(), retry_after }
}

impl Ended {
    /// Prefers the reason of the session's goodbye over that of the link. `last` are the events that the session still
    /// has, which may contain a later goodbye.
    pub(super) fn of(
        goodbye: Option<Goodbye>,
        last: impl Iterator<Item = EdgeEvent>,
        result: Result<(), SessionFailure>,
        welcomed: bool,
        achieved: Achieved,
    ) -> Self {
        let closed = last.filter_map(|event| match event {
            EdgeEvent::Closed(goodbye) => Some(goodbye),
            _ => None,
        });
        let goodbye = closed.last().or(goodbye);
        // A replaced session does not count: another process has this node's identity, and both would reconnect for
        // ever.
        let replaced = goodbye.as_ref().is_some_and(|goodbye| goodbye.reason == GoodbyeReason::Replaced);
        let achieved = achieved.enough() && !replaced;
        let (why, retry_after) = match (goodbye, result) {
            (Some(goodbye), _) => (format!("{:?}: {}", goodbye.reason, goodbye.message), goodbye.retry_after),
            (None, Err(why)) => (why.to_string(), Duration::ZERO),
            (None, Ok(())) => ("the session ended".to_owned(), Duration::ZERO),
        };
        Self { why, welcomed, achieved, retry_after }
    }

    pub(super) fn failed(why: &SessionFailure) -> Self {
        Self { why: why.to_string(), welcomed: false, achieved: false, retry_after: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a session of this duration, with something stored or not, counts as achieved if it ends for this reason.
    async fn achieved(time: Duration, stored: bool, reason: GoodbyeReason) -> bool {
        let mut achieved = Achieved::begin();
        achieved.note(stored);
        achieved.note(false);
        tokio::time::advance(time).await;
        let goodbye = Goodbye { reason, message: String::new(), retry_after: Duration::ZERO };
        Ended::of(Some(goodbye), std::iter::empty(), Ok(()), true, achieved).achieved
    }

    #[tokio::test(start_paused = true)]
    async fn session_is_successful_by_what_it_stored_and_how_long_it_lasted() {
        let (short, other) = (HELD_MIN - Duration::from_millis(1), GoodbyeReason::Other);
        assert!(achieved(HELD_MIN, true, other).await);
        assert!(!achieved(short, true, other).await, "it might begin again at once for ever");
        assert!(!achieved(HELD_MIN, false, other).await, "a welcome alone does not count");
        assert!(!achieved(HELD_MIN, true, GoodbyeReason::Replaced).await, "somebody else has this identity");
    }
}
