//! Which pod events are delivered, and in what order (docs/architecture.md#the-way-down).

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use tombolo_proto::object::{ContentHash, ObjectVersion};
use tombolo_proto::{CloudRevision, NodeId, ObjectKey, Uid};

use super::trim::Trimmed;

#[cfg(test)]
mod tests;

/// What a pod event means for the node to which the pod is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The node must hold a pod that it did not hold before.
    Insert,
    /// The node must hold another version. Also used for an addition that already carries a deletion timestamp, and for
    /// an update of an unknown pod.
    Update,
    /// Nothing that a node acts on has changed; keep the newer version for readers.
    Keep,
    /// Older than the known version: ignore the event.
    Stale,
}

/// How a watch reported a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// It exists, and the watch had not reported it before.
    Added,
    /// It exists in another version.
    Modified,
}

/// How to handle one event: first remove the old incarnation, then apply the verdict to the new one.
#[derive(Debug, PartialEq, Eq)]
pub struct Decision {
    /// An older incarnation under the same name: delete it first.
    pub replaced: Option<Known>,
    /// What to do with the pod of the event.
    pub verdict: Verdict,
}

/// What is remembered about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its name.
    pub key: ObjectKey,
    /// The node to which it is bound.
    pub node: NodeId,
    /// The newest version seen.
    pub version: ObjectVersion,
    /// Since this revision the content that a node acts on has not changed, as far as was seen.
    pub same_since: CloudRevision,
    significant: ContentHash,
}

/// The pods of edge nodes, by UID.
#[derive(Debug, Default)]
pub struct PodManager {
    pods: HashMap<Uid, Known>,
    uids: HashMap<ObjectKey, Uid>,
}

impl PodManager {
    /// Judges an event of a pod that exists.
    pub fn handle(&mut self, observed: Observed, node: &NodeId, pod: &Trimmed) -> Decision {
        let (key, version) = (&pod.object.key, &pod.object.version);
        let other = self.uids.get(key).filter(|uid| **uid != version.uid).cloned();
        if let Some(newer) = other.as_ref().and_then(|uid| self.pods.get(uid))
            && newer.version.revision > version.revision
        {
            return Decision { replaced: None, verdict: Verdict::Stale };
        }
        let replaced = other.and_then(|uid| self.remove(&uid));
        // A pod that takes over the name of another is new, whatever the watch reports.
        let observed = if replaced.is_some() { Observed::Added } else { observed };
        let verdict = self.judge(observed, pod);
        if verdict != Verdict::Stale {
            let same_since = match self.pods.get(&version.uid) {
                Some(known) if verdict == Verdict::Keep => known.same_since,
                _ => version.revision,
            };
            let known = Known {
                key: key.clone(),
                node: node.clone(),
                version: version.clone(),
                same_since,
                significant: pod.significant,
            };
            self.uids.insert(key.clone(), version.uid.clone());
            self.pods.insert(version.uid.clone(), known);
        }
        Decision { replaced, verdict }
    }

    fn judge(&self, observed: Observed, pod: &Trimmed) -> Verdict {
        match self.pods.get(&pod.object.version.uid) {
            Some(known) if known.version.revision > pod.object.version.revision => Verdict::Stale,
            Some(known) if known.significant == pod.significant => Verdict::Keep,
            Some(_) => Verdict::Update,
            None if observed == Observed::Modified || is_being_deleted(&pod.object.body) => Verdict::Update,
            None => Verdict::Insert,
        }
    }

    /// Removes the pod with this UID; returns what was known about it.
    pub fn remove(&mut self, uid: &Uid) -> Option<Known> {
        let known = self.pods.remove(uid)?;
        if self.uids.get(&known.key) == Some(uid) {
            self.uids.remove(&known.key);
        }
        Some(known)
    }

    /// Records that versions of this incarnation were missed. Their content is unknown, so no older version counts as
    /// the same.
    pub fn passed_over(&mut self, uid: &Uid) {
        if let Some(known) = self.pods.get_mut(uid) {
            known.same_since = known.version.revision;
        }
    }

    /// What is known about the pod of this name.
    #[must_use]
    pub fn by_key(&self, key: &ObjectKey) -> Option<&Known> {
        self.pods.get(self.uids.get(key)?)
    }

    /// What is known about an incarnation.
    #[must_use]
    pub fn get(&self, uid: &Uid) -> Option<&Known> {
        self.pods.get(uid)
    }

    /// Names of all pods.
    pub fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.uids.keys()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

fn is_being_deleted(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Pod {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        #[serde(default)]
        deletion_timestamp: Value,
    }
    serde_json::from_slice::<Pod>(body).is_ok_and(|pod| !pod.metadata.deletion_timestamp.is_null())
}

/// Keeps only the newest event of each key, in the order of those newest events: several changes become one. `key_of`
/// returns `None` for events without an object; nothing is reordered across them. Returns the keys of which events were
/// dropped.
pub fn coalesce<E>(events: &mut Vec<E>, key_of: impl Fn(&E) -> Option<ObjectKey>) -> HashSet<ObjectKey> {
    let mut newer: HashSet<ObjectKey> = HashSet::new();
    let mut merged = HashSet::new();
    let mut kept: Vec<E> = Vec::with_capacity(events.len());
    for event in events.drain(..).rev() {
        match key_of(&event) {
            Some(key) if newer.contains(&key) => {
                merged.insert(key);
            }
            Some(key) => {
                newer.insert(key);
                kept.push(event);
            }
            None => {
                newer.clear();
                kept.push(event);
            }
        }
    }
    kept.reverse();
    *events = kept;
    merged
}
