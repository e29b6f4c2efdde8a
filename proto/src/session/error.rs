//! Why a session ends by an error, and the one place that turns this into the goodbye on the wire.

use std::time::Duration;

use thiserror::Error;

use crate::frame::{Goodbye, GoodbyeReason};
use crate::limits::SENTENCE_LEN_MAX;

/// Wait that a peer is asked to keep after it broke the protocol or spoke another version: only an upgrade helps.
const RETRY_AFTER_MISTAKE: Duration = Duration::from_secs(60);

/// A frame or a silence that ends the session. The goodbye for the peer is queued already.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SessionError {
    /// The peer sent what the protocol forbids. The text names the frame, the offence and the rule.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The ranges of protocol versions do not meet.
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
        "the hello is from node {claimed:?}, but the certificate is of node {certified:?}: join again under the right name"
    )]
    WrongNode {
        /// What the hello says.
        claimed: String,
        /// What the certificate says.
        certified: String,
    },
    /// The peer makes the session hold more than it may, and does not read what waits for it.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// The peer was silent, or did not answer in time.
    #[error("timed out: {0}")]
    Timeout(String),
}

impl SessionError {
    /// What the peer is told.
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

/// Cuts a sentence for the wire to [`SENTENCE_LEN_MAX`], at a character boundary.
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
