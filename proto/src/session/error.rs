//! The errors that end a session, and the only place that turns them into the goodbye on the wire.

use std::time::Duration;

use thiserror::Error;

use crate::frame::{Goodbye, GoodbyeReason};
use crate::limits::SENTENCE_LEN_MAX;

/// Wait that a peer is asked to observe after it broke the protocol or used another version: only an upgrade helps.
const RETRY_AFTER_MISTAKE: Duration = Duration::from_secs(60);

/// A frame or a silence that ends the session. The goodbye for the peer is already queued.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SessionError {
    /// The peer sent something that the protocol forbids. The text names the frame, the violation and the rule.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The ranges of protocol versions do not overlap.
    #[error(
        "the edge speaks protocol versions {peer_oldest} to {peer_newest}, this side {oldest} to {newest}: upgrade the older one"
    )]
    VersionMismatch {
        /// Lowest version of the peer.
        peer_oldest: u32,
        /// Highest version of the peer.
        peer_newest: u32,
        /// Lowest version of this side.
        oldest: u32,
        /// Highest version of this side.
        newest: u32,
    },
    /// The hello names another node than the certificate.
    #[error(
        "the hello names node {claimed:?}, the certificate {certified:?}: join again under the right name"
    )]
    WrongNode {
        /// The node in the hello.
        claimed: String,
        /// The node in the certificate.
        certified: String,
    },
    /// The peer makes the session hold more than allowed, and does not read its pending frames.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// The peer was silent, or did not answer in time.
    #[error("timed out: {0}")]
    Timeout(String),
}

impl SessionError {
    /// The goodbye for the peer.
    #[must_use]
    pub fn goodbye(&self) -> Goodbye {
        let (reason, retry_after) = match self {
            Self::Protocol(_) => (GoodbyeReason::ProtocolError, RETRY_AFTER_MISTAKE),
            Self::VersionMismatch { .. } => (GoodbyeReason::VersionMismatch, RETRY_AFTER_MISTAKE),
            Self::WrongNode { .. } => (GoodbyeReason::Forbidden, RETRY_AFTER_MISTAKE),
            Self::Overloaded(_) => (GoodbyeReason::Overloaded, Duration::from_secs(5)),
            Self::Timeout(_) => (GoodbyeReason::Timeout, Duration::ZERO),
        };
        Goodbye { reason, message: clip(self.to_string()), retry_after }
    }
}

/// Cuts a text for the wire to [`SENTENCE_LEN_MAX`], at a character boundary.
pub(crate) fn clip(mut text: String) -> String {
    if text.len() > SENTENCE_LEN_MAX {
        let end = (0..=SENTENCE_LEN_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(clip("short".to_owned()), "short");
        let cut = clip("ä".repeat(600));
        assert_eq!(cut.len(), 1024);
        let odd = clip(format!("x{}", "ä".repeat(600)));
        assert_eq!(odd.len(), 1023, "a character of two bytes is not split");
    }
}
