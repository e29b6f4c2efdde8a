//! Pods and what they refer to.

use std::sync::Arc;

use serde_json::Value;
use tombolo_proto::{NodeId, ObjectKey, Uid};

use super::{Cached, Effect, Index, Kind, ObjectError, RawObject, Trimmed};
use crate::edgecontroller::pod_manager::{Known, Observed, Verdict};

impl Index {
    pub(super) fn pod_applied(&mut self, raw: RawObject) -> Result<(), ObjectError> {
        let node = raw.value().pointer("/spec/nodeName").and_then(Value::as_str);
        let Some(node) = node.and_then(|name| NodeId::parse(name).ok()) else { return Ok(()) };
        if self.is_registered(&node) {
            self.pod_seen(&node, Kind::Pod.trimmed(raw)?);
        }
        Ok(())
    }

    /// A pod of this edge node is there.
    pub(super) fn pod_seen(&mut self, node: &NodeId, mut pod: Trimmed) {
        let known = self.pods.get(&pod.object.version.uid).is_some();
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
            Verdict::Keep => {
                self.down.objects.insert(object.key.clone(), Cached::Present(object));
            }
            Verdict::Insert | Verdict::Update => {
                let (key, uid) = (object.key.clone(), object.version.uid.clone());
                let change = self.down.location.set_pod(node, &uid, &key, &object.dependencies);
                self.down.objects.insert(key.clone(), Cached::Present(Arc::clone(&object)));
                for gained in &change.gained {
                    self.need(node, gained);
                }
                self.doubt_absent(node, &object.dependencies);
                // What a pod needs is offered before it, so that it need not wait at the edge.
                self.offer(node, &key);
                self.lose(node, &change.lost);
            }
        }
    }

    pub(super) fn pod_deleted(&mut self, uid: &Uid) {
        self.graves.dig(uid);
        if let Some(known) = self.pods.remove(uid) {
            self.release(&known);
        }
    }

    /// The pod is bound to its node no longer.
    fn release(&mut self, pod: &Known) {
        let lost = self.down.location.remove_pod(&pod.node, &pod.version.uid);
        let same = |cached: &Cached| cached.version().is_some_and(|version| version.uid == pod.version.uid);
        self.down.objects.remove_if(&pod.key, |_, cached| same(cached));
        self.offer(&pod.node, &pod.key);
        self.lose(&pod.node, &lost);
    }

    /// The node refers to an object for the first time.
    fn need(&mut self, node: &NodeId, key: &ObjectKey) {
        let mut fresh = false;
        self.down.objects.entry(key.clone()).or_insert_with(|| {
            fresh = true;
            Cached::Pending
        });
        // Before the first list of its kind is complete, the list will bring it.
        let listed = Kind::of(key).is_some_and(|kind| self.has_listed(kind));
        if fresh && listed {
            self.effects.push(Effect::Fetch(key.clone(), None));
        }
        self.offer(node, key);
    }

    /// A stock edge may hold empty objects in place of these while no pod needed them (reference 5.1): now one may.
    fn doubt_absent(&mut self, node: &NodeId, keys: &[ObjectKey]) {
        for key in keys {
            let absent = matches!(self.down.objects.get(key).as_deref(), Some(Cached::Absent(_)));
            if absent {
                self.offer(node, key);
            }
        }
    }

    /// The node refers to these objects no longer; those that nobody refers to leave memory.
    fn lose(&mut self, node: &NodeId, keys: &[ObjectKey]) {
        for key in keys {
            if !self.down.location.is_referenced(key) {
                self.down.objects.remove(key);
            }
            self.offer(node, key);
        }
    }
}
