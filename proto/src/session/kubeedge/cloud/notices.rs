//! Answers of the session itself that wait for the link.

use std::collections::VecDeque;

use crate::message::Message;
use crate::session::SessionError;
use crate::session::kubeedge::Outgoing;

/// Most answers that may wait. More end the session: the edge sends requests and does not read.
const NOTICES_MAX: usize = 512;

/// Most bytes of all waiting answers, because an answer repeats text of its request.
const NOTICE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes that an answer takes besides its text.
const NOTICE_OVERHEAD: usize = 256;

/// Confirmations and refusals, oldest first.
#[derive(Debug, Default)]
pub(super) struct Notices(VecDeque<Outgoing>);

fn size_of(notice: &Outgoing) -> usize {
    notice.len().saturating_add(NOTICE_OVERHEAD)
}

impl Notices {
    /// Bytes of the answers that wait.
    pub(super) fn memory(&self) -> usize {
        self.0.iter().map(size_of).sum()
    }

    /// Queues an answer.
    ///
    /// # Errors
    /// [`SessionError::Overloaded`] when too many wait.
    pub(super) fn push(&mut self, message: &Message) -> Result<(), SessionError> {
        let notice = Outgoing::message(0, message);
        let (count, bytes) = (self.0.len() + 1, self.memory().saturating_add(size_of(&notice)));
        if count > NOTICES_MAX || bytes > NOTICE_BYTES_MAX {
            return Err(SessionError::Overloaded(format!(
                "the edge does not read {count} answers of {bytes} bytes (limit {NOTICES_MAX} of {NOTICE_BYTES_MAX} bytes)"
            )));
        }
        self.0.push_back(notice);
        Ok(())
    }

    /// The oldest answer, in a document whose number the caller provides.
    pub(super) fn pop(&mut self, number: impl FnOnce() -> u64) -> Option<Outgoing> {
        let mut notice = self.0.pop_front()?;
        if self.0.is_empty() {
            // Release the memory of a burst.
            self.0 = VecDeque::new();
        }
        notice.number = number();
        Some(notice)
    }
}
