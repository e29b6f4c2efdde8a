//! Pods and the objects that they refer to.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tombolo_proto::object::SharedObject;
use tombolo_proto::{NodeId, ObjectKey, Uid};

use super::bodies::{Moves, NODE_MIRROR_PODS_MAX, NODE_PODS_BYTES_MAX, Rank};
use super::ending::{END_LEN_MAX, ENDING_LEN_MAX, is_ending, shortened};
use super::needed_objects::holder_of_pod;
use super::room::{Item, ItemPriority};
use super::{Cached, Effect, Index, Kind, ObjectError, RawObject, Trimmed};
use crate::edgecontroller::location_cache::Difference;
use crate::edgecontroller::pod_manager::{Known, Observed, Verdict};
use crate::edgecontroller::reference_shares::{NODE_REFERENCES_BYTES_MAX, total_weight};
use crate::kube::MIRROR;

/// A pod as a watch or a read reported it.
#[derive(Debug)]
pub(in crate::edgecontroller) struct SeenPod {
    rank: Rank,
    /// Length of its body in bytes, even if the body was left out.
    len: usize,
    pod: Trimmed,
}

impl SeenPod {
    /// # Errors
    /// As [`Kind::trimmed`].
    pub(in crate::edgecontroller) fn read(raw: RawObject) -> Result<Self, ObjectError> {
        let mut rank = rank_of(raw.value());
        let is_to_go = is_ending(raw.value());
        let mut pod = Kind::Pod.trimmed(raw)?;
        if rank == Rank::Mirror {
            // A node creates mirror pods itself and must not gain objects through them. The Node authorizer follows the
            // same rule.
            pod.object.dependencies.clear();
        } else if is_to_go {
            shorten(&mut pod, ENDING_LEN_MAX);
            rank = Rank::Ending;
        }
        // A pod that was not read whole exists, but gets no room for its body.
        let len = if pod.object.body.is_empty() { NODE_PODS_BYTES_MAX + 1 } else { pod.object.body.len() };
        Ok(Self { rank, len, pod })
    }

    pub(super) fn uid(&self) -> &Uid {
        &self.pod.object.version.uid
    }

    pub(super) fn key(&self) -> &ObjectKey {
        &self.pod.object.key
    }
}

/// The pods of one node as a list returns them. Bodies that exceed the node's share are left out while the list is
/// read, so that a user who creates many large pods cannot make the list large. The share is applied to mirror pods and
/// to all other pods separately.
#[derive(Debug, Default)]
pub(in crate::edgecontroller) struct PodList {
    pods: Vec<Result<SeenPod, ObjectError>>,
    mirrors: usize,
    others: usize,
    mirror_pods: usize,
}

impl PodList {
    pub(in crate::edgecontroller) fn add(&mut self, raw: RawObject) {
        let mut seen = SeenPod::read(raw);
        if let Ok(SeenPod { rank, len, pod }) = &mut seen {
            self.mirror_pods += usize::from(*rank == Rank::Mirror);
            // What is known of the skipped pods stays: a list removes nothing.
            if *rank == Rank::Mirror && self.mirror_pods > NODE_MIRROR_PODS_MAX {
                return;
            }
            let bytes = if *rank == Rank::Mirror { &mut self.mirrors } else { &mut self.others };
            if *bytes + *len <= NODE_PODS_BYTES_MAX {
                *bytes += *len;
            } else if *rank == Rank::Ending {
                shorten(pod, END_LEN_MAX);
            } else {
                pod.object.body = Bytes::new();
            }
        }
        self.pods.push(seen);
    }

    /// Bytes of the bodies in the list.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.mirrors + self.others
    }

    pub(super) fn into_pods(self) -> Vec<Result<SeenPod, ObjectError>> {
        self.pods
    }
}

impl Index {
    pub(super) fn pod_applied(&mut self, raw: RawObject) -> Result<(), ObjectError> {
        let is_in_part = raw.is_in_part();
        if is_in_part && self.pods.get(&raw.uid()?).is_some() {
            return self.pod_in_part(&raw);
        }
        let node = raw.value().pointer("/spec/nodeName").and_then(Value::as_str);
        let node = node.and_then(|name| NodeId::parse(name).ok());
        let Some(node) = node.filter(|node| self.is_registered(node)) else { return Ok(()) };
        let (uid, revision) = (raw.uid()?, raw.revision()?);
        self.pod_seen(&node, SeenPod::read(raw)?);
        // The pod exists. Its references have to be read.
        if is_in_part
            && let Some(known) = self.pods.get(&uid).filter(|known| known.version.revision == revision)
        {
            self.effects.push(Effect::Fetch(known.key.clone(), Some(known.version.clone())));
        }
        Ok(())
    }

    /// The references of a pod that is too long for an event are unknown. A known pod is read if its deletion is new.
    fn pod_in_part(&mut self, raw: &RawObject) -> Result<(), ObjectError> {
        let marks = |pod: &Value| {
            let metadata = pod.get("metadata");
            ["deletionTimestamp", "deletionGracePeriodSeconds"].map(|name| metadata?.get(name).cloned())
        };
        let reported = marks(raw.value());
        let Some(known) = self.pods.get(&raw.uid()?).filter(|_| reported[0].is_some()) else { return Ok(()) };
        let is_news = match self.down.present(&known.key) {
            Some(pod) => serde_json::from_slice(&pod.body).is_ok_and(|pod: Value| marks(&pod) != reported),
            None => true,
        };
        if is_news && known.version.revision < raw.revision()? {
            self.effects.push(Effect::Fetch(known.key.clone(), Some(known.version.clone())));
        }
        Ok(())
    }

    /// Records a pod that exists on this edge node.
    pub(super) fn pod_seen(&mut self, node: &NodeId, seen: SeenPod) {
        let SeenPod { rank, len, mut pod } = seen;
        let known = self.pods.get(&pod.object.version.uid).is_some();
        if rank == Rank::Mirror && !known && !self.bodies.has_room_for_mirror(node) {
            self.down.count_unheeded();
            self.replaced_by(&pod);
            return;
        }
        let observed = if known { Observed::Modified } else { Observed::Added };
        let decision = self.pods.handle(observed, node, &pod);
        if let Some(old) = decision.replaced {
            self.release(&old);
        }
        let uid = &pod.object.version.uid;
        if self.may_have_missed(Kind::Pod, &pod.object.key) {
            self.pods.passed_over(uid);
        }
        if let Some(known) = self.pods.get(uid) {
            pod.object.same_since = known.same_since;
        }
        let object = Arc::new(pod.object);
        match decision.verdict {
            Verdict::Stale => {}
            Verdict::Keep if !self.down.location.lacks(node, &object.version.uid) => {
                if self.hold_pod(node, rank, len, &object) {
                    self.offer(node, &object.key);
                }
            }
            Verdict::Keep | Verdict::Insert | Verdict::Update => {
                let key = object.key.clone();
                let change = self.refer(node, &object);
                self.hold_pod(node, rank, len, &object);
                self.need_gained(node, &change);
                self.doubt_absent(node, &object.dependencies);
                // The objects that a pod needs are offered before it, so that it does not wait for them at the edge.
                self.offer(node, &key);
                self.turn(node, &change);
                let (location, uid) = (&self.down.location, &object.version.uid);
                if !location.is_served(node, uid) && !location.lacks(node, uid) {
                    self.warn_of_references(node, &key);
                }
            }
        }
    }

    /// Records the references of the pod, if there is room for them.
    fn refer(&mut self, node: &NodeId, pod: &SharedObject) -> Difference {
        let (key, uid) = (&pod.key, &pod.version.uid);
        // References that can never be served are not kept.
        let is_kept = total_weight(&pod.dependencies) <= NODE_REFERENCES_BYTES_MAX;
        let kept = if is_kept { &pod.dependencies[..] } else { &[] };
        if !self.has_room_for_references(key, kept) {
            return self.down.location.leave_out(node, uid, key);
        }
        let lacked = self.down.location.lacks(node, uid);
        let change = self.down.location.set_pod(node, uid, key, &pod.dependencies);
        if lacked {
            self.doubt_no_more(node);
        }
        change
    }

    /// Rechecks objects that stayed on the node only because a pod might refer to them.
    fn doubt_no_more(&mut self, node: &NodeId) {
        self.effects.push(Effect::Ready(node.clone()));
    }

    /// Another pod has replaced a known one, which is thereby deleted.
    fn replaced_by(&mut self, pod: &Trimmed) {
        let version = &pod.object.version;
        let former = self.pods.by_key(&pod.object.key).map(|known| known.version.clone());
        if let Some(former) = former.filter(|former| former.revision < version.revision) {
            self.pod_deleted(&former.uid);
        }
    }

    /// Keeps the pod, with its body if the node's share has room for it, and shortened if it is being deleted. Returns
    /// whether it can be read again.
    fn hold_pod(&mut self, node: &NodeId, rank: Rank, len: usize, object: &Arc<SharedObject>) -> bool {
        let (key, version) = (&object.key, &object.version);
        let moves = self.bodies.set(node, &version.uid, rank, len);
        let fits = self.fits(node, rank, len, object);
        let whole = match object.body.is_empty() {
            true => self.down.present(key).filter(|known| known.version == *version),
            false => Some(Arc::clone(object)),
        };
        let cached = match whole {
            Some(object) if fits => Cached::Present(object),
            Some(object) if rank == Rank::Ending => Cached::Present(end_of(object)),
            Some(_) | None => Cached::Withheld(version.clone()),
        };
        let is_present = matches!(cached, Cached::Present(_));
        if fits && !is_present {
            self.effects.push(Effect::Fetch(key.clone(), Some(version.clone())));
        }
        let before = self.down.objects.insert(key.clone(), cached);
        let was_withheld = matches!(before, Some(Cached::Withheld(_)));
        self.move_bodies(node, moves);
        if !self.bodies.is_inside(node, &version.uid) && !was_withheld {
            self.warn_of_bodies(node);
        }
        is_present && was_withheld
    }

    /// Whether the node's share and the index have room for the pod's body.
    fn fits(&mut self, node: &NodeId, rank: Rank, len: usize, object: &SharedObject) -> bool {
        let (key, uid) = (&object.key, &object.version.uid);
        let is_ending = rank == Rank::Ending;
        if !self.bodies.is_inside(node, uid) || (self.down.location.lacks(node, uid) && !is_ending) {
            self.give_up(&Item::Body(key.clone()));
            return false;
        }
        let standing = if is_ending { ItemPriority::Ending } else { ItemPriority::Body };
        self.has_room(key, &holder_of_pod(node, key, rank), standing, len)
    }

    /// Drops bodies that no longer fit the node's share, and reads those that fit again.
    fn move_bodies(&mut self, node: &NodeId, moves: Moves) {
        if !moves.out.is_empty() {
            self.warn_of_bodies(node);
        }
        for uid in moves.out {
            let Some(key) = self.pods.get(&uid).map(|known| known.key.clone()) else { continue };
            if let Some(mut cached) = self.down.objects.get_mut(&key)
                && let Some(version) = cached.version().filter(|version| version.uid == uid).cloned()
            {
                *cached = match &*cached {
                    Cached::Present(pod) if self.bodies.is_ending(node, &uid) => {
                        Cached::Present(end_of(Arc::clone(pod)))
                    }
                    _ => Cached::Withheld(version),
                };
            }
            self.give_up(&Item::Body(key.clone()));
            self.offer(node, &key);
        }
        for uid in moves.back {
            if let Some(known) = self.pods.get(&uid) {
                self.effects.push(Effect::Fetch(known.key.clone(), Some(known.version.clone())));
            }
        }
    }

    fn warn_of_bodies(&self, node: &NodeId) {
        if let Some(left_out) = self.lines.admit(node) {
            tracing::warn!(%node, left_out, "the pods of a node exceed its share: not all are delivered to it");
        }
    }

    pub(super) fn pod_deleted(&mut self, uid: &Uid) {
        self.tombstones.add(uid);
        if let Some(known) = self.pods.remove(uid) {
            self.release(&known);
        }
    }

    /// Removes a pod that is no longer bound to its node.
    fn release(&mut self, pod: &Known) {
        let lacked = self.down.location.lacks(&pod.node, &pod.version.uid);
        let change = self.down.location.remove_pod(&pod.node, &pod.version.uid);
        let same = |cached: &Cached| cached.version().is_some_and(|version| version.uid == pod.version.uid);
        self.down.objects.remove_if(&pod.key, |_, cached| same(cached));
        self.offer(&pod.node, &pod.key);
        self.follow_references(&pod.node, &change);
        self.give_up(&Item::References(pod.key.clone()));
        self.give_up(&Item::Body(pod.key.clone()));
        if lacked {
            self.doubt_no_more(&pod.node);
        }
        let moves = self.bodies.remove(&pod.node, &pod.version.uid);
        self.move_bodies(&pod.node, moves);
    }

    /// Records that the node refers to an object for the first time.
    fn need(&mut self, node: &NodeId, key: &ObjectKey) {
        let mut fresh = false;
        self.down.objects.entry(key.clone()).or_insert_with(|| {
            fresh = true;
            Cached::Pending
        });
        if fresh {
            self.needed_anew(key);
        }
        // Until the first list of its kind is complete, that list will deliver it.
        let listed = Kind::of(key).is_some_and(|kind| self.has_listed(kind));
        if fresh && listed {
            self.effects.push(Effect::Fetch(key.clone(), None));
        }
        self.offer(node, key);
    }

    /// While no pod needed these objects, a KubeEdge edge may hold empty objects in their place
    /// (docs/reference/kubeedge.md#safe-answers). Now a pod may need them.
    fn doubt_absent(&mut self, node: &NodeId, keys: &[ObjectKey]) {
        for key in keys {
            let absent = matches!(self.down.objects.get(key).as_deref(), Some(Cached::Absent(_)));
            if absent {
                self.offer(node, key);
            }
        }
    }

    /// Reads objects that the node newly refers to, forgets those it no longer refers to, and offers the affected pods
    /// again.
    pub(super) fn follow_references(&mut self, node: &NodeId, change: &Difference) {
        self.need_gained(node, change);
        self.turn(node, change);
    }

    fn need_gained(&mut self, node: &NodeId, change: &Difference) {
        for gained in &change.gained {
            // The pod's references may have been dropped to make room for its body.
            if self.down.location.is_needed_by(node, gained) {
                self.need(node, gained);
            }
        }
    }

    /// Other pods are now served, or no longer: offers them again, with or without their dependencies.
    fn turn(&mut self, node: &NodeId, change: &Difference) {
        for pod in &change.moved {
            self.offer(node, pod);
            let known = self.pods.by_key(pod);
            if known.is_some_and(|known| !self.down.location.is_served(node, &known.version.uid)) {
                self.warn_of_references(node, pod);
            }
        }
        self.lose(node, &change.lost);
    }

    fn warn_of_references(&self, node: &NodeId, pod: &ObjectKey) {
        if let Some(left_out) = self.lines.admit(node) {
            tracing::warn!(%node, %pod, left_out,
                "the pods of a node refer to more objects than its share allows: this pod is delivered without the objects that it refers to");
        }
    }

    /// The node no longer refers to these objects. Those that no node refers to leave memory.
    fn lose(&mut self, node: &NodeId, keys: &[ObjectKey]) {
        for key in keys {
            if !self.down.location.is_referenced(key) {
                self.forget(key);
            }
            self.offer(node, key);
        }
    }
}

fn shorten(pod: &mut Trimmed, most: usize) {
    if let Some(short) = shortened(&pod.object, most) {
        pod.object = short;
    }
}

/// A pod that is being deleted, in the form sent when there is no room for it.
fn end_of(pod: Arc<SharedObject>) -> Arc<SharedObject> {
    shortened(&pod, END_LEN_MAX).map_or(pod, Arc::new)
}

fn rank_of(pod: &Value) -> Rank {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str);
    match phase {
        _ if pod.pointer("/metadata/annotations").is_some_and(|all| all.get(MIRROR).is_some()) => {
            Rank::Mirror
        }
        Some("Succeeded" | "Failed") => Rank::Finished,
        _ => Rank::Active,
    }
}
