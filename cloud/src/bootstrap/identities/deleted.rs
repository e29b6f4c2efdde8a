//! Nodes that were deleted before their records were bound to them. Their certificates end with them.
//!
//! The deletion of a bound Node needs no write. The deletion of an unbound one ends its certificate by a write to the
//! record, which is retried until it succeeds, because the deletion is reported only once. What is known in memory
//! counts immediately, whether written or not.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tombolo_proto::NodeId;
use tombolo_runtime::{Backoff, BackoffConfig};

use super::{CLOCK_SKEW_SECONDS, Denied, Entry, Identities, IdentityError, Key, NodeFacts};

/// Waits between attempts to write.
const RETRY: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(200), max: Duration::from_secs(30), factor: 2.0 };

/// Deletions that are not in the records yet, one per name. There are at most as many as names with records.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    waiting: Mutex<HashMap<NodeId, Deletion>>,
    failed: Notify,
}

#[derive(Debug, Clone)]
struct Deletion {
    facts: NodeFacts,
    /// The certificates of the name at that time.
    keys: Vec<Key>,
}

impl Deletion {
    /// The record after the deletion; none if it is about another join, or does not need to end.
    fn end(&self, entry: &Entry) -> Option<Entry> {
        let NodeFacts { uid, created } = &self.facts;
        let ended = entry.after_deletion(uid, *created)?;
        // A later join has nothing to do with this deletion.
        let earlier = entry.joined.saturating_add(CLOCK_SKEW_SECONDS) < *created;
        let same = earlier || entry.keys.iter().any(|key| self.keys.contains(key));
        same.then_some(ended)
    }
}

impl Deletions {
    /// A record, with the known deletion applied.
    pub(super) fn applied<'a>(&self, node: &NodeId, entry: &'a Entry) -> Cow<'a, Entry> {
        let ended = self.waiting.lock().get(node).and_then(|deletion| deletion.end(entry));
        ended.map_or(Cow::Borrowed(entry), Cow::Owned)
    }

    /// Forgets the deletion, because the name has a new holder.
    pub(super) fn forget(&self, node: &NodeId) {
        self.waiting.lock().remove(node);
    }
}

impl Identities {
    /// A Node that was deleted before it was bound ends its certificate.
    pub(super) async fn node_gone(&self, node: &NodeId, facts: &NodeFacts) {
        let Some(entry) = self.shards.get(node) else { return };
        let deletion = Deletion { facts: facts.clone(), keys: entry.keys.clone() };
        if deletion.end(&entry).is_none() {
            return;
        }
        self.deletions.waiting.lock().insert(node.clone(), deletion);
        self.changed.send_modify(|count| *count += 1);
        if let Err(error) = self.end_deleted(node).await {
            tracing::warn!(%node, %error, "cannot record that a deleted Node's certificate is no longer in force; trying again");
            self.deletions.failed.notify_one();
        }
    }

    /// Records a pending deletion, unless the name has a rightful new holder by now.
    async fn end_deleted(&self, node: &NodeId) -> Result<(), IdentityError> {
        let Some(deletion) = self.deletions.waiting.lock().get(node).cloned() else { return Ok(()) };
        let ended = self.change(node, |entry| Ok::<_, Denied>(entry.and_then(|entry| deletion.end(entry))));
        let _ = ended.await?;
        let mut waiting = self.deletions.waiting.lock();
        // Another Node of the name may have been deleted meanwhile.
        if waiting.get(node).is_some_and(|now| now.facts == deletion.facts) {
            waiting.remove(node);
        }
        Ok(())
    }

    /// Tries to record all pending deletions. False when some could not be recorded.
    pub(crate) async fn end_all_deleted(&self) -> bool {
        let waiting: Vec<NodeId> = self.deletions.waiting.lock().keys().cloned().collect();
        for node in waiting {
            if let Err(error) = self.end_deleted(&node).await {
                tracing::debug!(%node, %error, "still cannot record that a deleted Node's certificate is no longer in force");
            }
        }
        self.deletions.waiting.lock().is_empty()
    }
}

/// Retries deletions that could not be recorded at once. Never returns.
pub(crate) async fn keep_ended(identities: Arc<Identities>) {
    let mut backoff = Backoff::new(RETRY);
    loop {
        identities.deletions.failed.notified().await;
        loop {
            let wait = backoff.next_delay(&mut rand::rng());
            tokio::time::sleep(wait).await;
            if identities.end_all_deleted().await {
                break;
            }
        }
        backoff.reset();
    }
}
