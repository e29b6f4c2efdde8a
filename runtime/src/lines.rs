//! Rate limit for log lines that a peer can cause: a number per minute for each peer and for all, and a count of
//! omitted lines.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The period that the limits apply to.
const WINDOW: Duration = Duration::from_secs(60);

/// Limits how many lines may be written. `K` identifies a peer.
#[derive(Debug)]
pub struct LineLimit<K> {
    of_one: u32,
    of_all: u32,
    state: Mutex<LineLimitState<K>>,
}

#[derive(Debug)]
struct LineLimitState<K> {
    since: Instant,
    /// Lines of each peer since `since`. There are never more peers than lines.
    peers: HashMap<K, u32>,
    lines: u32,
    left_out: u64,
}

impl<K: Clone + Eq + Hash> LineLimit<K> {
    /// Allows `of_one` lines a minute about one peer and `of_all` about all peers together.
    #[must_use]
    pub fn new(of_one: u32, of_all: u32) -> Self {
        let state = LineLimitState { since: Instant::now(), peers: HashMap::new(), lines: 0, left_out: 0 };
        Self { of_one, of_all, state: Mutex::new(state) }
    }

    /// Returns `Some` if a line about this peer may be written now, with the number of lines, about any peer, that were
    /// left out since the last one.
    #[must_use]
    pub fn admit(&self, peer: &K) -> Option<u64> {
        // A panic cannot leave the numbers inconsistent.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now.duration_since(state.since) >= WINDOW {
            (state.since, state.lines) = (now, 0);
            state.peers = HashMap::new();
        }
        let known = state.peers.get(peer).copied().unwrap_or_default();
        if known >= self.of_one || state.lines >= self.of_all {
            state.left_out = state.left_out.saturating_add(1);
            return None;
        }
        state.peers.insert(peer.clone(), known + 1);
        state.lines += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn log_lines_are_limited_per_peer() {
        let limit = LineLimit::new(3, 10);
        let loud = (0..1000).filter_map(|_| limit.admit(&0)).count();
        assert_eq!(loud, 3);
        assert_eq!(limit.admit(&1), Some(997), "the next line tells how many were left out");
        let others = (2..1000).filter_map(|peer| limit.admit(&peer)).count();
        assert_eq!((others, limit.state.lock().expect("whole").peers.len()), (6, 8));
        tokio::time::advance(WINDOW).await;
        assert_eq!(limit.admit(&0), Some(992), "a minute later");
        assert_eq!(limit.state.lock().expect("whole").peers.len(), 1);
    }
}
