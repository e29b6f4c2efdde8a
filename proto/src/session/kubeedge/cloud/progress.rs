//! Detects an edge that does not read. A peer that sends and does not read would otherwise stay connected forever.

use std::time::Duration;

use crate::ids::Moment;

/// Slowest accepted link for a large document, in bytes per second: each waiting byte extends the deadline.
const SLOWEST: u64 = 4 * 1024;

/// Documents that were given to the link and have not left the socket.
#[derive(Debug, Default)]
pub(super) struct Progress {
    newest: u64,
    /// Upper bound of the bytes that wait: documents that left before the newest one are still counted.
    bytes: u64,
    /// When a document last left, or began to wait; none when nothing waits.
    since: Option<Moment>,
}

impl Progress {
    /// A document was given to the link.
    pub(super) fn gave(&mut self, now: Moment, number: u64, len: usize) {
        self.newest = number;
        self.bytes = self.bytes.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
        self.since.get_or_insert(now);
    }

    /// Everything up to this document has left the socket.
    pub(super) fn left(&mut self, now: Moment, number: u64) {
        if number >= self.newest {
            (self.bytes, self.since) = (0, None);
        } else if self.since.is_some() {
            self.since = Some(now);
        }
    }

    /// Time from which the edge counts as not reading.
    pub(super) fn deadline(&self, patience: Duration) -> Option<Moment> {
        let transfer = Duration::from_secs(self.bytes / SLOWEST);
        self.since.map(|since| since + patience + transfer)
    }
}
