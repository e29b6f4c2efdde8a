//! Memory that one node may make the hub keep: one share for all its sessions, however often it connects.

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tombolo_proto::NodeId;
use tombolo_runtime::{Budget, Share};

/// Bytes that one node may make the hub keep, in all its sessions together: partial frames, its inventory, answers that
/// it has not read, and its requests. What it alone follows has a separate share.
pub const NODE_BYTES_MAX: usize = 7 * 1024 * 1024;

/// The part of [`NODE_BYTES_MAX`] that its pending and running requests may take: the largest request, and small ones
/// beside it.
pub const NODE_REQUEST_BYTES_MAX: usize = 13 * 256 * 1024;

/// Concurrent sessions of one node: the newest, and one that is ending. A further session waits until one has ended.
const SESSIONS_MAX: usize = 2;

/// One node's share and its parts.
#[derive(Debug)]
pub(super) struct NodeMemory {
    /// The whole share, and directly everything that has no part of its own.
    pub(super) all: Share,
    pub(super) requests: Share,
    /// Permit for one large answer at a time, held until the node has read it.
    pub(super) large: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
}

impl NodeMemory {
    fn new(bytes: &Budget) -> Self {
        let all = bytes.share(NODE_BYTES_MAX);
        let requests = all.part(NODE_REQUEST_BYTES_MAX);
        let large = Arc::new(Semaphore::new(1));
        Self { all, requests, large, sessions: Arc::new(Semaphore::new(SESSIONS_MAX)) }
    }

    /// Waits for a permit for one session. The semaphore is never closed, so this does not fail.
    pub(super) async fn permit(&self) -> OwnedSemaphorePermit {
        match Arc::clone(&self.sessions).acquire_owned().await {
            Ok(permit) => permit,
            Err(_) => std::future::pending().await,
        }
    }
}

/// The shares of all nodes that have a session or something left of one.
#[derive(Debug)]
pub(super) struct NodeMemories {
    bytes: Budget,
    nodes: DashMap<NodeId, Weak<NodeMemory>>,
}

impl NodeMemories {
    pub(super) fn new(bytes: &Budget) -> Self {
        Self { bytes: bytes.clone(), nodes: DashMap::new() }
    }

    /// The share of a node. It stays the same for as long as any task holds it.
    pub(super) fn of(&self, node: &NodeId) -> Arc<NodeMemory> {
        let mut entry = self.nodes.entry(node.clone()).or_default();
        entry.upgrade().unwrap_or_else(|| {
            let memory = Arc::new(NodeMemory::new(&self.bytes));
            *entry = Arc::downgrade(&memory);
            memory
        })
    }

    /// The highest use by one node: of the whole share, and of its requests.
    pub(super) fn highest(&self) -> (usize, usize) {
        let living = self.nodes.iter().filter_map(|memory| memory.upgrade());
        living.fold((0, 0), |(all, requests), memory| {
            (all.max(memory.all.used()), requests.max(memory.requests.used()))
        })
    }

    /// Forgets the shares that are no longer in use.
    pub(super) fn sweep(&self) {
        self.nodes.retain(|_, memory| memory.strong_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn node_share_lasts_as_long_as_any_user() {
        let memories = NodeMemories::new(&Budget::new(usize::MAX));
        let node = |name: &str| NodeId::parse(name).expect("valid");
        let first = memories.of(&node("a"));
        let held = first.all.take(NODE_BYTES_MAX).expect("all of it");
        let second = memories.of(&node("a"));
        drop(first);
        memories.sweep();
        assert!(memories.of(&node("a")).requests.take(1).is_none(), "a new session has no new share");
        let other = memories.of(&node("b"));
        let request = other.requests.take(100).expect("its own share");
        assert_eq!(memories.highest(), (NODE_BYTES_MAX, 100), "each of the node that has most of it");
        drop((held, second, request, other));
        memories.sweep();
        assert!(memories.nodes.is_empty(), "no state is kept for disconnected nodes");
    }

    #[test]
    fn node_has_two_sessions_at_most_and_a_third_waits() {
        let memories = NodeMemories::new(&Budget::new(usize::MAX));
        let memory = memories.of(&NodeId::parse("a").expect("valid"));
        let [first, _second] = [(); 2].map(|()| memory.permit().now_or_never().expect("a place"));
        let mut third = Box::pin(memory.permit());
        assert!(third.as_mut().now_or_never().is_none(), "one has to end first");
        drop(first);
        assert!(third.now_or_never().is_some());
    }
}
