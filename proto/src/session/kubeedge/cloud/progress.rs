//! Whether the edge takes what it is sent. A peer that speaks and does not read would stay connected for ever.

use std::time::Duration;

use crate::ids::Moment;

/// Slowest link on which a large document may leave, in bytes a second: each waiting byte adds to the time that it has.
const SLOWEST: u64 = 4 * 1024;

/// Documents that were given to the link and have not left the socket.
#[derive(Debug, Default)]
pub(super) struct Progress {
    newest: u64,
    /// Bytes of those that wait, at most: those that left before the newest of them are still counted.
    bytes: u64,
    /// When something left last, or began to wait; none when nothing waits.
    since: Option<Moment>,
}

impl Progress {
    /// A document was given to the link.
    pub(super) fn gave(&mut self, now: Moment, number: u64, len: usize) {
        self.newest = number;
        self.bytes = self.bytes.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
        self.since.get_or_insert(now);
    }

    /// Everything up to this document has left.
    pub(super) fn left(&mut self, now: Moment, number: u64) {
        if number >= self.newest {
            (self.bytes, self.since) = (0, None);
        } else if self.since.is_some() {
            self.since = Some(now);
        }
    }

    /// When the edge counts as one that does not read.
    pub(super) fn deadline(&self, patience: Duration) -> Option<Moment> {
        let transfer = Duration::from_secs(self.bytes / SLOWEST);
        self.since.map(|since| since + patience + transfer)
    }
}
