//! How many useless frames a peer may send before its session ends.

use std::time::Duration;

use crate::ids::Moment;
use crate::session::SessionError;

/// Frames that are ignored within one [`PATIENCE_WINDOW`]. A race between closing a subscription and its last frames
/// causes a few; only a broken peer sends hundreds.
pub const PATIENCE: u32 = 256;

/// Time after which the count of ignored frames is reset.
pub const PATIENCE_WINDOW: Duration = Duration::from_secs(60);

/// Counts frames that are well-formed but have no use.
#[derive(Debug)]
pub(super) struct Patience {
    since: Moment,
    ignored: u32,
}

impl Patience {
    pub(super) fn new(now: Moment) -> Self {
        Self { since: now, ignored: 0 }
    }

    /// Counts one ignored frame.
    ///
    /// # Errors
    /// [`SessionError::Protocol`] beyond [`PATIENCE`] frames in [`PATIENCE_WINDOW`]; the text names the newest frame.
    pub(super) fn ignore(&mut self, now: Moment, what: &str) -> Result<(), SessionError> {
        if now.since(self.since) >= PATIENCE_WINDOW {
            *self = Self::new(now);
        }
        self.ignored = self.ignored.saturating_add(1);
        if self.ignored <= PATIENCE {
            return Ok(());
        }
        Err(SessionError::Protocol(format!(
            "more than {PATIENCE} useless frames within a minute, the last one: {what}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_and_recovers() {
        let mut patience = Patience::new(Moment::default());
        for _ in 0..PATIENCE {
            patience.ignore(Moment::default(), "a stray pong").expect("within the budget");
        }
        let error = patience.ignore(Moment::default(), "a stray pong").expect_err("budget spent");
        assert!(error.to_string().contains("a stray pong"), "{error}");
        let later = Moment::default() + PATIENCE_WINDOW;
        patience.ignore(later, "a stray pong").expect("forgiven after a minute");
    }
}
