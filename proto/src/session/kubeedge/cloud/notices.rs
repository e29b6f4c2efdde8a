//! Answers of the session itself that wait for the link.

use std::collections::VecDeque;

use crate::message::Message;
use crate::session::SessionError;
use crate::session::kubeedge::Outgoing;

/// Answers that may wait. More end the session: the edge asks and does not read.
const NOTICES_MAX: usize = 512;

/// Bytes that they may take together, for an answer repeats what was asked.
const NOTICE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes that an answer takes beside its text.
const NOTICE_OVERHEAD: usize = 256;

/// Confirmations and refusals, oldest first.
#[derive(Debug, Default)]
pub(super) struct Notices {
    waiting: VecDeque<Outgoing>,
    bytes: usize,
}

fn size_of(notice: &Outgoing) -> usize {
    notice.len().saturating_add(NOTICE_OVERHEAD)
}

impl Notices {
    /// Bytes of the answers that wait.
    pub(super) fn memory(&self) -> usize {
        self.bytes
    }

    /// Puts an answer into the queue.
    ///
    /// # Errors
    /// [`SessionError::Overloaded`] when more wait than may.
    pub(super) fn push(&mut self, message: &Message) -> Result<(), SessionError> {
        let notice = Outgoing::message(0, message);
        let (count, bytes) = (self.waiting.len() + 1, self.bytes.saturating_add(size_of(&notice)));
        if count > NOTICES_MAX || bytes > NOTICE_BYTES_MAX {
            return Err(SessionError::Overloaded(format!(
                "{count} answers of {bytes} bytes wait and are not read, and {NOTICES_MAX} of {NOTICE_BYTES_MAX} bytes may"
            )));
        }
        self.waiting.push_back(notice);
        self.bytes = bytes;
        Ok(())
    }

    /// The oldest answer, in the document with the number that this gives.
    pub(super) fn pop(&mut self, number: impl FnOnce() -> u64) -> Option<Outgoing> {
        let mut notice = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(size_of(&notice));
        if self.waiting.is_empty() {
            // A burst must not leave its memory behind.
            self.waiting = VecDeque::new();
        }
        notice.number = number();
        Some(notice)
    }
}
