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
pub(super) struct Notices(VecDeque<Outgoing>);

fn size_of(notice: &Outgoing) -> usize {
    notice.len().saturating_add(NOTICE_OVERHEAD)
}

impl Notices {
    /// Bytes of the answers that wait.
    pub(super) fn memory(&self) -> usize {
        self.0.iter().map(size_of).sum()
    }

    /// Puts an answer into the queue.
    ///
    /// # Errors
    /// [`SessionError::Overloaded`] when more wait than may.
    pub(super) fn push(&mut self, message: &Message) -> Result<(), SessionError> {
        let notice = Outgoing::message(0, message);
        let (count, bytes) = (self.0.len() + 1, self.memory().saturating_add(size_of(&notice)));
        if count > NOTICES_MAX || bytes > NOTICE_BYTES_MAX {
            return Err(SessionError::Overloaded(format!(
                "{count} answers of {bytes} bytes wait and are not read, and {NOTICES_MAX} of {NOTICE_BYTES_MAX} bytes may"
            )));
        }
        self.0.push_back(notice);
        Ok(())
    }

    /// The oldest answer, in the document with the number that this gives.
    pub(super) fn pop(&mut self, number: impl FnOnce() -> u64) -> Option<Outgoing> {
        let mut notice = self.0.pop_front()?;
        if self.0.is_empty() {
            // A burst must not leave its memory behind.
            self.0 = VecDeque::new();
        }
        notice.number = number();
        Some(notice)
    }
}
