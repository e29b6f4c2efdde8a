//! Which nodes need which ConfigMaps and Secrets: a reference count over the pods that are bound right now
//! (docs/architecture.md#the-way-down).
//!
//! Referenced objects need not exist: a reference to a ConfigMap that is not created yet records where to deliver it
//! once it is. A pod counts until it is deleted, finished or not, because its containers may be inspected and restarted
//! until then. The references of one node are bounded ([`needs`](super::needs)): pods that are not served do not count.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use tombolo_proto::object::KeyHashes;
use tombolo_proto::{NodeId, ObjectKey, Uid};

use super::reference_shares::{Candidate, NODE_REFERENCES_BYTES_MAX, served, total_weight, weight};

#[cfg(test)]
mod tests;

/// How a change affects the set of objects that a node needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Needed by the node from now on.
    pub gained: Vec<ObjectKey>,
    /// No longer needed by the node.
    pub lost: Vec<ObjectKey>,
    /// Other pods that became served or unserved.
    pub moved: Vec<ObjectKey>,
}

/// (resource, namespace, name) -> node -> UIDs of the pods that refer to it. One task writes, any number read.
#[derive(Debug, Default)]
pub struct LocationCache {
    locations: DashMap<ObjectKey, HashMap<NodeId, HashSet<Uid>>, KeyHashes>,
    nodes: DashMap<NodeId, Pods>,
    /// Number of pods whose references are not known.
    lacking: AtomicUsize,
}

/// The pods of one node.
#[derive(Debug, Default)]
struct Pods {
    bound: HashMap<Uid, BoundPod>,
    /// Pods that are not served, and the total weight of their references.
    waiting: HashSet<Uid>,
    waiting_weight: usize,
    /// Weight of the served pods' references, each counted once.
    weight: usize,
}

#[derive(Debug)]
struct BoundPod {
    key: ObjectKey,
    /// Empty for a pod that can never be served.
    references: Arc<[ObjectKey]>,
    weight: usize,
    served: bool,
    /// The index had no room for its references.
    lacks: bool,
}

impl BoundPod {
    /// The references that count.
    fn counted(self) -> Arc<[ObjectKey]> {
        if self.served { self.references } else { Arc::default() }
    }
}

/// References of one pod that no longer count, and those that count instead.
struct ReferenceChange {
    uid: Uid,
    before: Arc<[ObjectKey]>,
    after: Arc<[ObjectKey]>,
}

impl Pods {
    fn remove(&mut self, uid: &Uid) -> Option<BoundPod> {
        let pod = self.bound.remove(uid)?;
        if self.waiting.remove(uid) {
            self.waiting_weight -= pod.weight;
        }
        Some(pod)
    }

    /// Decides again which pods' references count. While all fit, no pod has to be examined.
    fn settle(&mut self) -> Vec<ReferenceChange> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        if self.weight.saturating_add(self.waiting_weight) <= NODE_REFERENCES_BYTES_MAX {
            let waiting: Vec<_> = self.waiting.iter().cloned().collect();
            return waiting.into_iter().filter_map(|uid| self.turn(uid, true)).collect();
        }
        let with_references = self.bound.iter().filter(|(_, pod)| pod.weight > 0);
        let served = served(with_references.map(|(uid, pod)| {
            let BoundPod { key, references, weight, .. } = pod;
            Candidate { namespace: key.namespace(), weight: *weight, uid, references }
        }));
        let turned =
            self.bound.iter().filter(|(uid, pod)| pod.served != (pod.weight == 0 || served.contains(uid)));
        let turned: Vec<_> = turned.map(|(uid, pod)| (uid.clone(), !pod.served)).collect();
        turned.into_iter().filter_map(|(uid, serve)| self.turn(uid, serve)).collect()
    }

    fn turn(&mut self, uid: Uid, serve: bool) -> Option<ReferenceChange> {
        let pod = self.bound.get_mut(&uid)?;
        pod.served = serve;
        let (references, none) = (Arc::clone(&pod.references), Arc::default());
        if serve {
            self.waiting.remove(&uid);
            self.waiting_weight -= pod.weight;
            return Some(ReferenceChange { uid, before: none, after: references });
        }
        self.waiting.insert(uid.clone());
        self.waiting_weight += pod.weight;
        Some(ReferenceChange { uid, before: references, after: none })
    }
}

impl LocationCache {
    /// Records that a pod is bound to a node and refers to these objects. Replaces an earlier record of this UID.
    pub fn set_pod(&self, node: &NodeId, uid: &Uid, key: &ObjectKey, references: &[ObjectKey]) -> Difference {
        let weight = total_weight(references);
        let fits = weight <= NODE_REFERENCES_BYTES_MAX;
        let references = references.iter().filter(|_| fits).map(|key| self.shared(key)).collect();
        let pod = BoundPod { key: key.clone(), references, weight, served: false, lacks: false };
        self.replace(node, uid, pod)
    }

    /// Records that a pod is bound to a node and that the index has no room for its references.
    pub fn leave_out(&self, node: &NodeId, uid: &Uid, key: &ObjectKey) -> Difference {
        let references = Arc::default();
        self.replace(
            node,
            uid,
            BoundPod { key: key.clone(), references, weight: 0, served: false, lacks: true },
        )
    }

    fn replace(&self, node: &NodeId, uid: &Uid, pod: BoundPod) -> Difference {
        let mut pods = self.nodes.entry(node.clone()).or_default();
        self.lacking.fetch_add(usize::from(pod.lacks), Ordering::Relaxed);
        let before = pods.remove(uid);
        self.count_out(before.as_ref());
        pods.waiting.insert(uid.clone());
        pods.waiting_weight += pod.weight;
        pods.bound.insert(uid.clone(), pod);
        let changes = pods.settle();
        drop(pods);
        self.apply(node, uid, before.map(BoundPod::counted).unwrap_or_default(), changes)
    }

    /// Forgets a pod and returns the resulting changes, except those of the pod itself.
    pub fn remove_pod(&self, node: &NodeId, uid: &Uid) -> Difference {
        let Some(mut pods) = self.nodes.get_mut(node) else { return Difference::default() };
        let before = pods.remove(uid);
        self.count_out(before.as_ref());
        let changes = pods.settle();
        drop(pods);
        let difference = self.apply(node, uid, before.map(BoundPod::counted).unwrap_or_default(), changes);
        self.nodes.remove_if(node, |_, pods| pods.bound.is_empty());
        difference
    }

    /// Updates the reference counts. New references are added first, so that no needed object appears unneeded in
    /// between. `before` are the references that counted until now for the pod with this UID.
    fn apply(
        &self,
        node: &NodeId,
        uid: &Uid,
        before: Arc<[ObjectKey]>,
        mut changes: Vec<ReferenceChange>,
    ) -> Difference {
        let mut difference = Difference::default();
        let others: Vec<_> =
            changes.iter().map(|change| change.uid.clone()).filter(|other| other != uid).collect();
        match changes.iter_mut().find(|change| change.uid == *uid) {
            Some(change) => change.before = before,
            None => changes.push(ReferenceChange { uid: uid.clone(), before, after: Arc::default() }),
        }
        for ReferenceChange { uid, before, after } in &changes {
            let before: HashSet<_> = before.iter().collect();
            let new: HashSet<_> = after.iter().filter(|key| !before.contains(key)).collect();
            let gained = new.into_iter().filter(|key| self.refer(key, node, uid));
            difference.gained.extend(gained.cloned());
        }
        for ReferenceChange { uid, before, after } in &changes {
            let after: HashSet<_> = after.iter().collect();
            let old: HashSet<_> = before.iter().filter(|key| !after.contains(key)).collect();
            let lost = old.into_iter().filter(|key| self.release(key, node, uid));
            difference.lost.extend(lost.cloned());
        }
        if let Some(mut pods) = self.nodes.get_mut(node) {
            pods.weight += difference.gained.iter().map(weight).sum::<usize>();
            pods.weight -= difference.lost.iter().map(weight).sum::<usize>();
            difference.moved =
                others.iter().filter_map(|uid| pods.bound.get(uid)).map(|pod| pod.key.clone()).collect();
        }
        difference
    }

    /// Forgets a node and all its pods. Returns the pods and the objects that no node needs any more.
    pub fn remove_node(&self, node: &NodeId) -> NodeLosses {
        let Some((_, pods)) = self.nodes.remove(node) else { return NodeLosses::default() };
        let mut losses = NodeLosses::default();
        for (uid, pod) in pods.bound {
            self.count_out(Some(&pod));
            losses.pods.push((uid.clone(), pod.key.clone()));
            for key in pod.counted().iter() {
                if self.release(key, node, &uid) && !self.is_referenced(key) {
                    losses.unreferenced.push(key.clone());
                }
            }
        }
        losses
    }

    /// The copy of this key that all referring pods share. Comparing it with itself reads no text.
    #[must_use]
    pub fn shared(&self, key: &ObjectKey) -> ObjectKey {
        self.locations.get(key).map_or_else(|| key.clone(), |entry| entry.key().clone())
    }

    /// The nodes that need this object.
    #[must_use]
    pub fn nodes_of(&self, key: &ObjectKey) -> Vec<NodeId> {
        self.locations.get(key).map(|nodes| nodes.keys().cloned().collect()).unwrap_or_default()
    }

    /// Whether some node needs this object.
    #[must_use]
    pub fn is_referenced(&self, key: &ObjectKey) -> bool {
        self.locations.contains_key(key)
    }

    /// Whether this node needs this object.
    #[must_use]
    pub fn is_needed_by(&self, node: &NodeId, key: &ObjectKey) -> bool {
        self.locations.get(key).is_some_and(|nodes| nodes.contains_key(node))
    }

    /// The pods on this node that refer to this object, including unserved pods.
    #[must_use]
    pub fn pods_that_need(&self, node: &NodeId, key: &ObjectKey) -> Vec<ObjectKey> {
        let served = self.locations.get(key).and_then(|nodes| nodes.get(node).cloned()).unwrap_or_default();
        let Some(pods) = self.nodes.get(node) else { return Vec::new() };
        // The references of a pod that can never be served are not known here.
        let refers = |pod: &&BoundPod| pod.references.is_empty() || pod.references.contains(key);
        let waiting = pods.bound.iter().filter(|(uid, pod)| pod.lacks || pods.waiting.contains(*uid));
        let waiting = waiting.map(|(_, pod)| pod);
        let waiting = waiting.filter(|pod| pod.key.namespace() == key.namespace()).filter(refers);
        let served = served.iter().filter_map(|uid| pods.bound.get(uid));
        served.chain(waiting).map(|pod| pod.key.clone()).collect()
    }

    /// The pods of a namespace on this node.
    #[must_use]
    pub fn pods_in(&self, node: &NodeId, namespace: &str) -> Vec<ObjectKey> {
        let Some(pods) = self.nodes.get(node) else { return Vec::new() };
        let keys = pods.bound.values().map(|pod| &pod.key);
        keys.filter(|key| key.namespace() == namespace).cloned().collect()
    }

    /// Whether the references of this pod are unknown.
    #[must_use]
    pub fn lacks(&self, node: &NodeId, uid: &Uid) -> bool {
        self.nodes.get(node).is_some_and(|pods| pods.bound.get(uid).is_some_and(|pod| pod.lacks))
    }

    /// Whether this node has a pod in this namespace whose references are unknown.
    #[must_use]
    pub fn lacks_in(&self, node: &NodeId, namespace: &str) -> bool {
        // Usually there is no such pod anywhere.
        self.lacking.load(Ordering::Relaxed) > 0
            && self.nodes.get(node).is_some_and(|pods| {
                pods.bound.values().any(|pod| pod.lacks && pod.key.namespace() == namespace)
            })
    }

    fn count_out(&self, pod: Option<&BoundPod>) {
        self.lacking.fetch_sub(usize::from(pod.is_some_and(|pod| pod.lacks)), Ordering::Relaxed);
    }

    /// Whether the pod with this UID is bound to this node.
    #[must_use]
    pub fn is_bound(&self, node: &NodeId, uid: &Uid) -> bool {
        self.nodes.get(node).is_some_and(|pods| pods.bound.contains_key(uid))
    }

    /// Whether the references of this pod are delivered to the node.
    #[must_use]
    pub fn is_served(&self, node: &NodeId, uid: &Uid) -> bool {
        self.nodes.get(node).is_some_and(|pods| {
            !pods.waiting.contains(uid) && !pods.bound.get(uid).is_some_and(|pod| pod.lacks)
        })
    }

    /// Pods of a node and everything that they refer to, without duplicates.
    #[must_use]
    pub fn needed_by(&self, node: &NodeId) -> Vec<ObjectKey> {
        let Some(pods) = self.nodes.get(node) else { return Vec::new() };
        let mut keys: HashSet<&ObjectKey> = HashSet::new();
        for pod in pods.bound.values() {
            keys.insert(&pod.key);
            keys.extend(pod.references.iter().filter(|_| pod.served));
        }
        keys.into_iter().cloned().collect()
    }

    /// Number of objects that some node needs.
    #[cfg(test)]
    pub(super) fn references(&self) -> usize {
        self.locations.len()
    }

    /// Number of pods bound to nodes.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.nodes.iter().map(|pods| pods.bound.len()).sum()
    }

    /// Number of pods whose references are not delivered to their nodes.
    #[must_use]
    pub fn unserved(&self) -> usize {
        self.nodes.iter().map(|pods| pods.waiting.len()).sum()
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.locations.clear();
        self.nodes.clear();
        self.lacking.store(0, Ordering::Relaxed);
    }

    /// Adds one pod's reference; true when it is the node's first.
    fn refer(&self, key: &ObjectKey, node: &NodeId, uid: &Uid) -> bool {
        let mut nodes = self.locations.entry(key.clone()).or_default();
        let pods = nodes.entry(node.clone()).or_default();
        let first = pods.is_empty();
        pods.insert(uid.clone());
        first
    }

    /// Removes one pod's reference; true when it was the node's last.
    fn release(&self, key: &ObjectKey, node: &NodeId, uid: &Uid) -> bool {
        let Some(mut nodes) = self.locations.get_mut(key) else { return false };
        let Some(pods) = nodes.get_mut(node) else { return false };
        let was_last = pods.remove(uid) && pods.is_empty();
        if was_last {
            nodes.remove(node);
        }
        let empty = nodes.is_empty();
        drop(nodes);
        if empty {
            self.locations.remove_if(key, |_, nodes| nodes.is_empty());
        }
        was_last
    }
}

/// What was removed with a node.
#[derive(Debug, Default)]
pub struct NodeLosses {
    /// Its pods.
    pub pods: Vec<(Uid, ObjectKey)>,
    /// Objects that no node needs any more.
    pub unreferenced: Vec<ObjectKey>,
}
