//! The write side of the index: it takes watch events and returns effects. Pure: reads from the API are effects too,
//! and their results come back as inputs.

mod bodies;
mod configs;
mod ending;
mod needed_objects;
pub(crate) mod nodes;
mod pods;
mod room;
#[cfg(test)]
mod tests;
mod tombstones;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tombolo_proto::object::ObjectVersion;
use tombolo_proto::session::Lookup;
use tombolo_proto::{NodeId, ObjectKey};
use tombolo_runtime::LineLimit;

use bodies::Bodies;
pub(super) use pods::PodList;
pub(crate) use room::INDEX_BYTES_MAX;
use room::{Holder, Item, Room};
pub use tombstones::ReadToken;
use tombstones::Tombstones;

use super::PodManager;
use super::kind::Kind;
use super::node_object_cache::{Cached, NodeObjectCache};
use super::observed_versions::ObservedVersion;
use super::trim::Trimmed;
use crate::kube::{ObjectError, ObjectEvent, RawObject, is_refusal};

/// What the caller has to do after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The node's state under this key may have changed.
    Offer(NodeId, ObjectKey),
    /// Everything that the node should hold is known: pending lookups can proceed.
    Ready(NodeId),
    /// The Node object was deleted: notify the edge and end its session.
    NodeDeleted(NodeId),
    /// Read this object. The answer "not found" counts only while the cache still has the expected version.
    Fetch(ObjectKey, Option<ObjectVersion>),
    /// List the pods that are bound to this node.
    ListPods(NodeId),
}

/// All that is known about edge nodes, and the rules that keep it consistent. It has many fields because one event may
/// change objects, pods, running lists and the accounted memory, which must then agree.
pub struct Index {
    down: Arc<NodeObjectCache>,
    pods: PodManager,
    /// Keys seen since the list of this kind began.
    relists: [Option<HashSet<ObjectKey>>; Kind::ALL.len()],
    synced: [bool; Kind::ALL.len()],
    pods_watched: bool,
    /// Nodes whose pods are being listed.
    listing: HashSet<NodeId>,
    tombstones: Tombstones,
    /// Objects that became needed while reads were running, each with the newest of those reads. Events of these
    /// objects were ignored before, so older answers do not count. Bounded by the number of objects in memory.
    anew: HashMap<ObjectKey, ReadToken>,
    /// Which pods have their body in memory.
    bodies: Bodies,
    /// Accounts for the memory that the index uses.
    room: Room,
    /// Limits log lines about nodes whose pods are too large.
    lines: LineLimit<NodeId>,
    /// Limits log lines about the holder with the largest part when the index is full.
    lines_of_holders: LineLimit<Holder>,
    /// Keys of which older events of the present batch were coalesced away.
    merged: HashSet<ObjectKey>,
    effects: Vec<Effect>,
    malformed: u64,
}

impl Index {
    /// Creates an empty index that writes into this read side.
    #[must_use]
    pub fn new(down: Arc<NodeObjectCache>) -> Self {
        Self {
            down,
            pods: PodManager::default(),
            relists: Default::default(),
            synced: [false; Kind::ALL.len()],
            pods_watched: false,
            listing: HashSet::new(),
            tombstones: Tombstones::default(),
            anew: HashMap::new(),
            bodies: Bodies::default(),
            room: Room::new(INDEX_BYTES_MAX),
            lines: LineLimit::new(1, 60),
            lines_of_holders: LineLimit::new(1, 60),
            merged: HashSet::new(),
            effects: Vec::new(),
            malformed: 0,
        }
    }

    /// Sets how many bytes the index may keep in all.
    #[must_use]
    pub fn with_memory(self, bytes: usize) -> Self {
        Self { room: Room::new(bytes), ..self }
    }

    /// Sets the keys of which the next events have replaced older ones. Replaces the previous set.
    pub fn set_merged(&mut self, keys: HashSet<ObjectKey>) {
        self.merged = keys;
    }

    /// Takes a watch event.
    pub fn handle(&mut self, kind: Kind, event: ObjectEvent) {
        let outcome = match event {
            ObjectEvent::Applied(raw) => self.applied(kind, raw),
            ObjectEvent::Deleted(raw) => self.deleted(kind, &raw),
            ObjectEvent::RelistStart => {
                self.relists[kind as usize] = Some(HashSet::new());
                self.pods_watched |= kind == Kind::Pod;
                Ok(())
            }
            ObjectEvent::RelistEnd => {
                self.relisted(kind);
                Ok(())
            }
        };
        self.note(outcome);
    }

    /// Takes the answer to [`Effect::Fetch`]; `None` if the object does not exist.
    pub fn fetched(&mut self, key: &ObjectKey, expected: Option<&ObjectVersion>, found: Option<RawObject>) {
        let Some(kind) = Kind::of(key) else { return };
        let outcome = match found {
            Some(raw) if kind == Kind::Pod && self.is_buried(&raw) => Ok(()),
            Some(raw) => {
                // A read may skip versions that the watch will show.
                self.merged.insert(key.clone());
                self.applied(kind, raw)
            }
            None => {
                self.not_found(kind, key, expected);
                Ok(())
            }
        };
        self.note(outcome);
    }

    /// Records that an object cannot be read, with the status code, so that nothing waits for it until a later read or
    /// the watch brings more. A known version stays. But an object that was considered absent is no longer so if the
    /// API server refuses to show it.
    pub fn unreadable(&mut self, key: &ObjectKey, code: u16) {
        let news = match self.down.objects.get(key).as_deref() {
            Some(Cached::Pending) => true,
            Some(Cached::Unreadable(known)) => *known != code,
            Some(Cached::Absent(_)) => is_refusal(code),
            Some(Cached::Present(_) | Cached::Withheld(_)) | None => false,
        };
        if news && matches!(Kind::of(key), Some(Kind::ConfigMap | Kind::Secret)) {
            self.set_config(key, Cached::Unreadable(code));
        }
    }

    /// Offers an object to all nodes that need it again: sessions may wait for the result of the read.
    pub fn look_again(&mut self, key: &ObjectKey) {
        for node in self.down.location.nodes_of(key) {
            self.offer(&node, key);
        }
    }

    /// Records that a read begins.
    pub fn read_begun(&mut self) -> ReadToken {
        if self.tombstones.newest().is_none() {
            self.anew.clear();
        }
        self.tombstones.begin()
    }

    /// Records that a read has ended. False when its answer may show pods whose deletion is no longer remembered.
    pub fn read_ended(&mut self, token: ReadToken) -> bool {
        self.tombstones.end(token)
    }

    /// Whether a read began before this object became needed. Events of the object between the two were ignored.
    #[must_use]
    pub fn is_outdated(&self, key: &ObjectKey, token: ReadToken) -> bool {
        self.anew.get(key).is_some_and(|newest| token <= *newest)
    }

    /// Records that events of this object were ignored until now.
    fn needed_anew(&mut self, key: &ObjectKey) {
        if let Some(newest) = self.tombstones.newest() {
            self.anew.insert(key.clone(), newest);
        }
    }

    /// Removes the object from memory.
    fn forget(&mut self, key: &ObjectKey) {
        self.down.objects.remove(key);
        self.anew.remove(key);
        self.give_up(&Item::Body(key.clone()));
    }

    /// One of the nodes that need this object.
    #[must_use]
    pub fn who_needs(&self, key: &ObjectKey) -> Option<NodeId> {
        match Kind::of(key)? {
            Kind::Node => NodeId::parse(key.name()).ok().filter(|node| self.down.nodes.contains_key(node)),
            Kind::Pod => self.pods.by_key(key).map(|pod| pod.node.clone()),
            Kind::ConfigMap | Kind::Secret => self.down.location.nodes_of(key).into_iter().next(),
        }
    }

    /// Whether the Node object exists, as far as the index knows.
    #[must_use]
    pub fn is_registered(&self, node: &NodeId) -> bool {
        self.down.registered(node).is_some()
    }

    /// Whether the node needs this object and it does not exist, as far as the index knows.
    #[must_use]
    pub fn is_absent(&self, node: &NodeId, key: &ObjectKey) -> bool {
        matches!(self.down.lookup(node, key), Lookup::Absent)
    }

    /// Takes the answer to [`Effect::ListPods`]: pods of this node, and errors for those that cannot be used.
    pub(super) fn pods_listed(&mut self, node: &NodeId, pods: PodList) {
        self.listing.remove(node);
        let pods = if self.is_registered(node) { pods } else { PodList::default() };
        for pod in pods.into_pods() {
            match pod {
                Ok(seen) if self.tombstones.has(seen.uid()) => {}
                Ok(seen) => {
                    self.merged.insert(seen.key().clone());
                    self.pod_seen(node, seen);
                }
                Err(error) => self.note(Err(error)),
            }
        }
        self.set_listed(node);
    }

    /// Takes the pending effects, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether every kind has been listed once.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced.iter().all(|synced| *synced)
    }

    /// Whether a kind has been listed once.
    #[must_use]
    pub fn has_listed(&self, kind: Kind) -> bool {
        self.synced[kind as usize]
    }

    /// Number of unusable objects received since the start.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Forgets everything except which nodes have joined: the cloud's history went back, so revisions no longer
    /// compare.
    pub fn reset(&mut self) {
        let down = Arc::clone(&self.down);
        down.clear();
        *self = Self { malformed: self.malformed, ..Self::new(down).with_memory(self.room.max()) };
    }

    fn applied(&mut self, kind: Kind, raw: RawObject) -> Result<(), ObjectError> {
        let _permit = raw.permit();
        self.down.saw(ObservedVersion {
            key: raw.key(&kind.resource()),
            uid: raw.uid()?,
            revision: raw.revision()?,
        });
        if let Some(seen) = &mut self.relists[kind as usize] {
            let key = raw.key(&kind.resource());
            // Only keys that are in memory matter at the end of the list.
            if self.down.objects.contains_key(&key) {
                seen.insert(key);
            }
        }
        match kind {
            Kind::Node => self.node_applied(raw),
            Kind::Pod => self.pod_applied(raw),
            Kind::ConfigMap | Kind::Secret => self.config_applied(kind, raw),
        }
    }

    fn deleted(&mut self, kind: Kind, raw: &RawObject) -> Result<(), ObjectError> {
        match kind {
            Kind::Node => self.node_deleted(raw),
            Kind::Pod => self.pod_deleted(&raw.uid()?),
            Kind::ConfigMap | Kind::Secret => self.config_deleted(kind, raw)?,
        }
        Ok(())
    }

    /// The list of a kind is complete: objects in memory that were not in it have to be read.
    fn relisted(&mut self, kind: Kind) {
        let seen = self.relists[kind as usize].take().unwrap_or_default();
        let resource = kind.resource();
        let first = !std::mem::replace(&mut self.synced[kind as usize], true);
        let unseen: Vec<_> = self
            .down
            .objects
            .iter()
            .filter(|entry| *entry.key().resource() == resource && !seen.contains(entry.key()))
            .map(|entry| (entry.key().clone(), entry.value().clone()))
            .collect();
        for (key, cached) in unseen {
            // Absent objects are not read again: if one was created while no watch ran, it was in the list.
            let asked = match cached {
                Cached::Present(_) | Cached::Withheld(_) => Some(cached.version().cloned()),
                Cached::Pending | Cached::Unreadable(_) if first => Some(None),
                Cached::Pending | Cached::Absent(_) | Cached::Unreadable(_) => None,
            };
            if let Some(expected) = asked {
                self.effects.push(Effect::Fetch(key, expected));
            }
        }
        if kind == Kind::Pod && first {
            self.first_pods_listed();
        }
    }

    fn not_found(&mut self, kind: Kind, key: &ObjectKey, expected: Option<&ObjectVersion>) {
        let current = self.down.objects.get(key).map(|cached| cached.clone());
        let unchanged = match (&current, expected) {
            (Some(Cached::Pending | Cached::Unreadable(_)), None) => true,
            // The same version may be kept with more or less of its body.
            (Some(cached), Some(expected)) => cached.version().is_some_and(|version| {
                (&version.uid, version.revision) == (&expected.uid, expected.revision)
            }),
            _ => false,
        };
        if !unchanged {
            return;
        }
        match kind {
            Kind::Node => self.remove_node(key.name()),
            Kind::Pod => {
                if let Some(expected) = expected {
                    self.pod_deleted(&expected.uid);
                }
            }
            Kind::ConfigMap | Kind::Secret => {
                self.set_config(key, Cached::Absent(tombolo_proto::CloudRevision(0)));
            }
        }
    }

    /// Whether the index may have missed versions of the object before the one being handled.
    fn may_have_missed(&self, kind: Kind, key: &ObjectKey) -> bool {
        self.relists[kind as usize].is_some() || self.merged.contains(key)
    }

    fn offer(&mut self, node: &NodeId, key: &ObjectKey) {
        self.effects.push(Effect::Offer(node.clone(), key.clone()));
    }

    fn note(&mut self, outcome: Result<(), ObjectError>) {
        if let Err(error) = outcome {
            self.malformed += 1;
            tracing::warn!(%error, "the API server sent an object that cannot be used");
        }
    }

    fn is_buried(&self, raw: &RawObject) -> bool {
        raw.uid().is_ok_and(|uid| self.tombstones.has(&uid))
    }
}
