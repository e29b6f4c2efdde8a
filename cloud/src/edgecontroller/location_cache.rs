//! Who needs which ConfigMap and Secret: a reference count from the pods that are bound right now
//! (docs/architecture.md#the-way-down).
//!
//! The index needs no object to exist: a reference to a ConfigMap that nobody has created yet is a place to deliver
//! it to as soon as somebody does. A pod counts until it is deleted, finished or not, because its containers may be
//! looked at and restarted until then.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use tombolo_proto::object::KeyHashes;
use tombolo_proto::{NodeId, ObjectKey, Uid};

#[cfg(test)]
mod tests;

/// What a change did to the set that a node needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Needed by the node from now on.
    pub gained: Vec<ObjectKey>,
    /// No longer needed by the node.
    pub lost: Vec<ObjectKey>,
}

/// (resource, namespace, name) → node → UIDs of the pods that refer to it. One task writes, any number read.
#[derive(Debug, Default)]
pub struct LocationCache {
    places: DashMap<ObjectKey, HashMap<NodeId, HashSet<Uid>>, KeyHashes>,
    pods: DashMap<NodeId, HashMap<Uid, BoundPod>>,
    /// Pods of which it is not known what they refer to.
    lacking: AtomicUsize,
}

#[derive(Debug)]
struct BoundPod {
    key: ObjectKey,
    references: Arc<[ObjectKey]>,
    /// There was no room for what it refers to.
    lacks: bool,
}

impl LocationCache {
    /// Notes that a pod is bound to a node and refers to these objects, in place of what was noted for its UID.
    pub fn set_pod(&self, node: &NodeId, uid: &Uid, key: &ObjectKey, references: &[ObjectKey]) -> Difference {
        let references: Arc<[ObjectKey]> = references.iter().map(|key| self.shared(key)).collect();
        let pod = BoundPod { key: key.clone(), references: Arc::clone(&references), lacks: false };
        self.replace(node, uid, pod)
    }

    /// Notes that a pod is bound to a node, and that there is no room for what it refers to; returns what its node is not known to
    /// need any longer.
    pub fn leave_out(&self, node: &NodeId, uid: &Uid, key: &ObjectKey) -> Vec<ObjectKey> {
        let pod = BoundPod { key: key.clone(), references: Arc::default(), lacks: true };
        self.replace(node, uid, pod).lost
    }

    fn replace(&self, node: &NodeId, uid: &Uid, pod: BoundPod) -> Difference {
        let references = Arc::clone(&pod.references);
        self.lacking.fetch_add(usize::from(pod.lacks), Ordering::Relaxed);
        let before = self.pods.entry(node.clone()).or_default().insert(uid.clone(), pod);
        self.count_out(before.as_ref());
        let before = before.map(|pod| pod.references).unwrap_or_default();
        let old: HashSet<&ObjectKey> = before.iter().collect();
        let new: HashSet<&ObjectKey> = references.iter().collect();
        let gained = new.difference(&old).filter(|key| self.refer(key, node, uid));
        let gained = gained.map(|key| (*key).clone()).collect();
        let lost = old.difference(&new).filter(|key| self.release(key, node, uid));
        Difference { gained, lost: lost.map(|key| (*key).clone()).collect() }
    }

    /// Forgets a pod; returns what its node needs no longer, the pod itself not included.
    pub fn remove_pod(&self, node: &NodeId, uid: &Uid) -> Vec<ObjectKey> {
        let Some(mut pods) = self.pods.get_mut(node) else { return Vec::new() };
        let removed = pods.remove(uid);
        let empty = pods.is_empty();
        drop(pods);
        if empty {
            self.pods.remove_if(node, |_, pods| pods.is_empty());
        }
        self.count_out(removed.as_ref());
        let Some(pod) = removed else { return Vec::new() };
        let lost: HashSet<&ObjectKey> =
            pod.references.iter().filter(|key| self.release(key, node, uid)).collect();
        lost.into_iter().cloned().collect()
    }

    /// Forgets a node and all its pods; returns the objects that no node needs any more, and the pods.
    pub fn remove_node(&self, node: &NodeId) -> NodeLosses {
        let Some((_, pods)) = self.pods.remove(node) else { return NodeLosses::default() };
        let mut losses = NodeLosses::default();
        for (uid, pod) in pods {
            self.count_out(Some(&pod));
            for key in pod.references.iter() {
                if self.release(key, node, &uid) && !self.is_referenced(key) {
                    losses.unreferenced.push(key.clone());
                }
            }
            losses.pods.push((uid, pod.key));
        }
        losses
    }

    /// The copy of this key that everybody shares who refers to the object: comparing it with itself reads no text.
    #[must_use]
    pub fn shared(&self, key: &ObjectKey) -> ObjectKey {
        self.places.get(key).map_or_else(|| key.clone(), |place| place.key().clone())
    }

    /// The nodes that need this object.
    #[must_use]
    pub fn nodes_of(&self, key: &ObjectKey) -> Vec<NodeId> {
        self.places.get(key).map(|nodes| nodes.keys().cloned().collect()).unwrap_or_default()
    }

    /// Whether some node needs this object.
    #[must_use]
    pub fn is_referenced(&self, key: &ObjectKey) -> bool {
        self.places.contains_key(key)
    }

    /// Whether this node needs this object.
    #[must_use]
    pub fn is_needed_by(&self, node: &NodeId, key: &ObjectKey) -> bool {
        self.places.get(key).is_some_and(|nodes| nodes.contains_key(node))
    }

    /// The pods on this node that refer to this object.
    #[must_use]
    pub fn pods_that_need(&self, node: &NodeId, key: &ObjectKey) -> Vec<ObjectKey> {
        let Some(uids) = self.places.get(key).and_then(|nodes| nodes.get(node).cloned()) else {
            return Vec::new();
        };
        let Some(pods) = self.pods.get(node) else { return Vec::new() };
        uids.iter().filter_map(|uid| pods.get(uid)).map(|pod| pod.key.clone()).collect()
    }

    /// The pods of a namespace on this node.
    #[must_use]
    pub fn pods_in(&self, node: &NodeId, namespace: &str) -> Vec<ObjectKey> {
        let Some(pods) = self.pods.get(node) else { return Vec::new() };
        pods.values().map(|pod| &pod.key).filter(|key| key.namespace() == namespace).cloned().collect()
    }

    /// Whether it is not known what this pod refers to.
    #[must_use]
    pub fn lacks(&self, node: &NodeId, uid: &Uid) -> bool {
        self.pods.get(node).is_some_and(|pods| pods.get(uid).is_some_and(|pod| pod.lacks))
    }

    /// Whether this node has a pod in this namespace of which it is not known what it refers to.
    #[must_use]
    pub fn lacks_in(&self, node: &NodeId, namespace: &str) -> bool {
        // Mostly there is none anywhere.
        self.lacking.load(Ordering::Relaxed) > 0
            && self
                .pods
                .get(node)
                .is_some_and(|pods| pods.values().any(|pod| pod.lacks && pod.key.namespace() == namespace))
    }

    fn count_out(&self, pod: Option<&BoundPod>) {
        self.lacking.fetch_sub(usize::from(pod.is_some_and(|pod| pod.lacks)), Ordering::Relaxed);
    }

    /// Whether the pod with this UID is bound to this node.
    #[must_use]
    pub fn is_bound(&self, node: &NodeId, uid: &Uid) -> bool {
        self.pods.get(node).is_some_and(|pods| pods.contains_key(uid))
    }

    /// Pods of a node and everything that they refer to, each once.
    #[must_use]
    pub fn needed_by(&self, node: &NodeId) -> Vec<ObjectKey> {
        let Some(pods) = self.pods.get(node) else { return Vec::new() };
        let mut keys: HashSet<&ObjectKey> = HashSet::new();
        for pod in pods.values() {
            keys.insert(&pod.key);
            keys.extend(pod.references.iter());
        }
        keys.into_iter().cloned().collect()
    }

    /// Number of objects that some node needs.
    #[must_use]
    pub fn references(&self) -> usize {
        self.places.len()
    }

    /// Number of pods bound to nodes.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.pods.iter().map(|pods| pods.len()).sum()
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.places.clear();
        self.pods.clear();
        self.lacking.store(0, Ordering::Relaxed);
    }

    /// Adds one pod's reference; true when it is the node's first.
    fn refer(&self, key: &ObjectKey, node: &NodeId, uid: &Uid) -> bool {
        let mut nodes = self.places.entry(key.clone()).or_default();
        let pods = nodes.entry(node.clone()).or_default();
        let first = pods.is_empty();
        pods.insert(uid.clone());
        first
    }

    /// Takes one pod's reference away; true when it was the node's last.
    fn release(&self, key: &ObjectKey, node: &NodeId, uid: &Uid) -> bool {
        let Some(mut nodes) = self.places.get_mut(key) else { return false };
        let Some(pods) = nodes.get_mut(node) else { return false };
        let was_last = pods.remove(uid) && pods.is_empty();
        if was_last {
            nodes.remove(node);
        }
        let empty = nodes.is_empty();
        drop(nodes);
        if empty {
            self.places.remove_if(key, |_, nodes| nodes.is_empty());
        }
        was_last
    }
}

/// What went with a node.
#[derive(Debug, Default)]
pub struct NodeLosses {
    /// Its pods.
    pub pods: Vec<(Uid, ObjectKey)>,
    /// Objects that no node needs any more.
    pub unreferenced: Vec<ObjectKey>,
}
