//! Pauses after attempts to register that create no Node: each attempt writes a Secret of up to 900 KiB twice.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tombolo_proto::NodeId;
use tombolo_runtime::{Backoff, BackoffConfig};

/// From half a second to a minute, growing with each consecutive attempt.
const PAUSE: BackoffConfig =
    BackoffConfig { first: Duration::from_secs(1), max: Duration::from_secs(60), factor: 2.0 };

/// Number of names whose attempts are remembered: as many as fit into the records.
const PAUSES_MAX: usize = 10_000;

#[derive(Debug)]
struct Pause {
    backoff: Backoff,
    until: Instant,
}

impl Pause {
    /// Whether the last attempt was so long ago that the next one counts as the first.
    fn is_forgotten(&self, now: Instant) -> bool {
        self.until + PAUSE.max < now
    }
}

/// The pauses of all names.
#[derive(Debug, Default)]
pub(super) struct Pauses(Mutex<HashMap<NodeId, Pause>>);

impl Pauses {
    /// How long a node must wait before its next attempt; none when it may try now.
    pub(super) fn left(&self, node: &NodeId) -> Option<Duration> {
        let left = self.0.lock().get(node)?.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// An attempt has created no Node, or its outcome is unknown.
    pub(super) fn failed(&self, node: &NodeId) {
        let (mut pauses, now) = (self.0.lock(), Instant::now());
        if pauses.len() >= PAUSES_MAX {
            pauses.retain(|_, pause| !pause.is_forgotten(now));
        }
        if pauses.len() >= PAUSES_MAX && !pauses.contains_key(node) {
            return;
        }
        let first = || Pause { backoff: Backoff::new(PAUSE), until: now };
        let pause = pauses.entry(node.clone()).or_insert_with(first);
        if pause.is_forgotten(now) {
            pause.backoff.reset();
        }
        pause.until = now + pause.backoff.next_delay(&mut rand::rng());
    }

    /// The Node exists.
    pub(super) fn over(&self, node: &NodeId) {
        self.0.lock().remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: usize) -> NodeId {
        NodeId::parse(&format!("n{number}")).expect("a name")
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_are_forgotten() {
        let pauses = Pauses::default();
        assert_eq!(pauses.left(&node(1)), None);
        for ceiling in [1, 2, 4, 8, 16, 32, 60, 60] {
            pauses.failed(&node(1));
            let (left, ceiling) = (pauses.left(&node(1)).expect("a pause"), Duration::from_secs(ceiling));
            assert!(left <= ceiling && left >= ceiling / 2, "{left:?} of {ceiling:?}");
            tokio::time::advance(left).await;
            assert_eq!(pauses.left(&node(1)), None);
        }
        tokio::time::advance(PAUSE.max + Duration::from_secs(1)).await;
        pauses.failed(&node(1));
        assert!(pauses.left(&node(1)).expect("a pause") <= PAUSE.first);
        pauses.over(&node(1));
        assert_eq!(pauses.left(&node(1)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn remembered_registration_attempts_are_bounded() {
        let pauses = Pauses::default();
        (0..=PAUSES_MAX).for_each(|number| pauses.failed(&node(number)));
        assert_eq!(pauses.left(&node(PAUSES_MAX)), None);
        assert_eq!(pauses.0.lock().len(), PAUSES_MAX);
        pauses.failed(&node(0));
        assert!(pauses.left(&node(0)).is_some(), "existing pauses continue");
        tokio::time::advance(PAUSE.max * 2).await;
        pauses.failed(&node(PAUSES_MAX));
        assert!(pauses.left(&node(PAUSES_MAX)).is_some(), "those that are forgotten make room");
    }
}
