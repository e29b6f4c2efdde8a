//! Volumes and claims that a KubeEdge edge has asked for: it is notified when they change and when they are gone
//! (docs/reference/kubeedge.md#sync-controller).
//!
//! A connected edge asks for them whenever it needs them, and keeps the answer for a restart without a connection. Its
//! ledger records what it was given. The changes come from one watch per kind, which all nodes of this cloudcore share.
//! Attachments are not followed: KubeEdge edges keep them under a namespace that they do not have.
//!
//! A node has the right to a claim if one of its pods refers to it, and the right to a volume if the volume's claim is
//! such a claim, as the Node authorizer decides it. When the last such pod is gone, the right ends, and the edge is
//! notified that the object is gone.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tombolo_proto::object::SharedObject;
use tombolo_proto::session::Lookup;
use tombolo_proto::{ObjectKey, Resource, SubscriptionId};
use tombolo_runtime::doubled;

use super::closed::Closed;
use super::followed::Followed;
use super::registry::SessionHandle;
use super::shared::SharedWatch;
use crate::edgecontroller::node_object_cache::{PodsOn, WITHHELD};

/// The kinds, by their plurals in the core group.
const PLURALS: [&str; 2] = ["persistentvolumes", "persistentvolumeclaims"];

/// The subscriptions of the two watches in the node's mailbox, far from the numbers of the edge's own subscriptions.
const SUBSCRIPTIONS: [SubscriptionId; 2] = [SubscriptionId(u32::MAX - 1), SubscriptionId(u32::MAX)];

/// The kind that a watch follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VolumeKind(usize);

impl VolumeKind {
    /// The kind of a key, if it is a volume or claim.
    pub(super) fn of(key: &ObjectKey) -> Option<Self> {
        let resource = key.resource();
        let index = PLURALS.iter().position(|plural| **plural == *resource.name)?;
        resource.group.is_empty().then_some(Self(index))
    }

    /// The kind whose watch has this subscription.
    pub(super) fn of_subscription(subscription: SubscriptionId) -> Option<Self> {
        SUBSCRIPTIONS.iter().position(|own| *own == subscription).map(Self)
    }

    pub(super) fn resource(self) -> Resource {
        Resource::new("", "v1", PLURALS[self.0])
    }
}

/// Wait before the volumes of a kind are followed again. It doubles with each failure up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(5);

/// Longest wait, for as long as the kind is refused or there is no room for it.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// The volume watches of one session.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    watches: [Option<Followed>; 2],
    /// The node has a right to an object of the kind, so the kind must be followed.
    missing: [AtomicBool; 2],
    /// The watch is being opened, or waits after a failure.
    opening: [bool; 2],
    /// Consecutive failures of the kind.
    failures: [u32; 2],
    /// The claims of the node's pods, once they were needed.
    claims: Mutex<Option<Arc<ReferencedClaims>>>,
}

/// The claims that a node's pods refer to.
#[derive(Debug)]
struct ReferencedClaims {
    /// Namespaces and names.
    names: HashSet<(String, String)>,
    /// Whether these are all claims that a pod of the node may refer to.
    complete: bool,
}

impl ReferencedClaims {
    fn of(on: &PodsOn) -> Self {
        Self { names: on.pods.iter().flat_map(|pod| claims_of(pod)).collect(), complete: on.complete }
    }

    fn contains(&self, namespace: &str, name: &str) -> bool {
        self.names.contains(&(namespace.to_owned(), name.to_owned()))
    }
}

impl Volumes {
    /// The state of a key for this node; none when the key is of neither kind. Only called for keys that the edge
    /// holds. `pods` returns the node's pods, or none while they are not known.
    pub(super) fn lookup(&self, key: &ObjectKey, pods: impl FnOnce() -> Option<PodsOn>) -> Option<Lookup> {
        let kind = VolumeKind::of(key)?;
        let Some(claims) = self.claims(pods) else { return Some(Lookup::Pending) };
        let found = self.watches[kind.0].as_ref().map(|followed| followed.watch.lookup(key));
        let wanted = entitled(found.clone().unwrap_or(Lookup::Pending), key, &claims);
        if found.is_none() && matches!(wanted, Lookup::Pending) {
            self.missing[kind.0].store(true, Ordering::Relaxed);
        }
        Some(wanted)
    }

    fn claims(&self, pods: impl FnOnce() -> Option<PodsOn>) -> Option<Arc<ReferencedClaims>> {
        let mut claims = self.claims.lock();
        if claims.is_none() {
            *claims = Some(Arc::new(ReferencedClaims::of(&pods()?)));
        }
        claims.clone()
    }

    /// A pod of the node was added, changed or deleted.
    pub(super) fn pods_changed(&self) {
        *self.claims.lock() = None;
    }

    /// A kind whose watch must be opened. Each kind is returned once, until [`Self::open`] or [`Self::retry`] is
    /// called.
    pub(super) fn take_missing(&mut self) -> Option<VolumeKind> {
        let index = (0..2).find(|index| {
            self.missing[*index].swap(false, Ordering::Relaxed)
                && !self.opening[*index]
                && self.watches[*index].is_none()
        })?;
        self.opening[index] = true;
        Some(VolumeKind(index))
    }

    /// The watch of a kind could not be opened, or has ended. Returns the wait before [`Self::retry`].
    pub(super) fn failed(&mut self, kind: VolumeKind) -> Duration {
        self.watches[kind.0] = None;
        self.opening[kind.0] = true;
        let failures = &mut self.failures[kind.0];
        *failures = failures.saturating_add(1);
        doubled(RETRY_MIN, *failures, RETRY_MAX)
    }

    /// The wait is over. The kind is opened again if a key of it is still looked up to which the node has a right.
    pub(super) fn retry(&mut self, kind: VolumeKind) {
        self.opening[kind.0] = false;
    }

    /// Follows the volumes of a kind.
    ///
    /// # Errors
    /// The reason why the watch has ended.
    pub(super) fn open(
        &mut self,
        kind: VolumeKind,
        watch: Arc<SharedWatch>,
        session: &Arc<SessionHandle>,
    ) -> Result<(), Closed> {
        watch.follow(session, SUBSCRIPTIONS[kind.0])?;
        self.watches[kind.0] = Some(Followed::new(watch));
        (self.opening[kind.0], self.failures[kind.0]) = (false, 0);
        Ok(())
    }

    pub(super) fn followed(&self, kind: VolumeKind) -> Option<&Followed> {
        self.watches[kind.0].as_ref()
    }

    /// The question to ask before a volume or claim is deleted at the edge, if the copy does not have it and the node
    /// may have a right to it. Requires that the node's pods are known.
    pub(super) fn confirmation_needed(&self, kind: VolumeKind, key: &ObjectKey) -> Option<SubscriptionId> {
        let followed = self.followed(kind)?;
        let there = matches!(followed.watch.lookup(key), Lookup::Present(_));
        let may = |claims: &Arc<ReferencedClaims>| may_have(key, claims) || !claims.complete;
        let may = self.claims.lock().as_ref().is_none_or(may);
        (!there && may && !followed.is_proven()).then_some(SUBSCRIPTIONS[kind.0])
    }

    pub(super) fn close(&mut self, session: &SessionHandle) {
        for (watch, subscription) in self.watches.iter_mut().zip(SUBSCRIPTIONS) {
            if let Some(followed) = watch.take() {
                followed.watch.unfollow(session, subscription);
            }
        }
    }
}

/// Whether a key is a volume or a claim.
pub(super) fn is_volume(key: &ObjectKey) -> bool {
    VolumeKind::of(key).is_some()
}

/// Whether these claims can give a right to the claim or volume with this key.
fn may_have(key: &ObjectKey, claims: &ReferencedClaims) -> bool {
    match key.namespace() {
        "" => !claims.names.is_empty(),
        namespace => claims.contains(namespace, key.name()),
    }
}

/// The lookup result, restricted by the node's right to it.
fn entitled(found: Lookup, key: &ObjectKey, claims: &ReferencedClaims) -> Lookup {
    let allowed = match &found {
        Lookup::Present(volume) if key.namespace().is_empty() => {
            let body: Value = serde_json::from_slice(&volume.body).unwrap_or_default();
            let claim = |member: &str| body.pointer("/spec/claimRef")?.get(member)?.as_str();
            claim("namespace")
                .zip(claim("name"))
                .is_some_and(|(namespace, name)| claims.contains(namespace, name))
        }
        _ => may_have(key, claims),
    };
    match allowed {
        true => found,
        false if claims.complete => Lookup::Unwanted(None),
        // A pod of which only the version is known may refer to the object, so the edge keeps what it has.
        false => Lookup::Unreadable(WITHHELD),
    }
}

/// The claims that a pod refers to, by name or through an ephemeral volume.
fn claims_of(pod: &SharedObject) -> Vec<(String, String)> {
    let body: Value = serde_json::from_slice(&pod.body).unwrap_or_default();
    let volumes = body.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let claim = |volume: &Value| {
        let named =
            volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str).map(str::to_owned);
        let own = volume.get("ephemeral").filter(|source| source.is_object());
        let own = own.and(volume.get("name")).and_then(Value::as_str);
        named.or_else(|| Some(format!("{}-{}", pod.key.name(), own?)))
    };
    volumes.filter_map(claim).map(|name| (pod.key.namespace().to_owned(), name)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_proto::object::{ContentHash, ObjectVersion};
    use tombolo_proto::session::kubeedge::{CloudConfig, CloudSession, Ledger, LedgerEntry};
    use tombolo_proto::{CloudRevision, Epoch, Moment, NodeId, Uid};

    use super::super::shared::Interned;
    use super::super::view::View;
    use super::*;
    use crate::edgecontroller::{Index, Kind, NodeObjectCache};
    use crate::kube::{ObjectEvent, RawObject};

    fn object(plural: &str, namespace: &str, name: &str, spec: &Value) -> Arc<SharedObject> {
        let key = ObjectKey::new(Resource::new("", "v1", plural), namespace, name);
        let uid = Uid::parse("u").expect("a UID");
        let version = ObjectVersion { uid, revision: CloudRevision(7), hash: ContentHash(1) };
        Arc::new(SharedObject::new(key, version, json!({"spec": spec}).to_string().into(), Vec::new()))
    }

    fn pod(volumes: &Value) -> Arc<SharedObject> {
        object("pods", "d", "p", &json!({ "volumes": volumes }))
    }

    fn is_told(found: &Arc<SharedObject>, pods: &[Arc<SharedObject>]) -> bool {
        let claims = ReferencedClaims::of(&PodsOn { pods: pods.to_vec(), complete: true });
        matches!(entitled(Lookup::Present(Arc::clone(found)), &found.key, &claims), Lookup::Present(_))
    }

    #[test]
    fn claim_is_sent_while_a_pod_on_the_node_refers_to_it() {
        let claim = object("persistentvolumeclaims", "d", "data", &json!({}));
        let by_name = pod(&json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
        let other =
            pod(&json!([{"name": "v", "persistentVolumeClaim": {"claimName": "other"}}, {"name": "data"}]));
        assert!(is_told(&claim, &[other.clone(), by_name.clone()]));
        assert!(!is_told(&claim, &[other]) && !is_told(&claim, &[]));
        let elsewhere = object("persistentvolumeclaims", "e", "data", &json!({}));
        assert!(!is_told(&elsewhere, &[by_name]));
        let own = object("persistentvolumeclaims", "d", "p-scratch", &json!({}));
        assert!(is_told(&own, &[pod(&json!([{"name": "scratch", "ephemeral": {}}]))]));
    }

    #[test]
    fn volume_is_sent_while_its_claim_is_referenced() {
        let by_name = pod(&json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
        let volume = |claim: &Value| object("persistentvolumes", "", "v", &json!({ "claimRef": claim }));
        assert!(is_told(&volume(&json!({"namespace": "d", "name": "data"})), std::slice::from_ref(&by_name)));
        assert!(!is_told(
            &volume(&json!({"namespace": "e", "name": "data"})),
            std::slice::from_ref(&by_name)
        ));
        assert!(!is_told(&volume(&Value::Null), &[by_name]));
        assert!(!is_told(&volume(&json!({"namespace": "d", "name": "data"})), &[]));
    }

    #[test]
    fn right_to_a_claim_ends_with_the_last_pod() {
        let (resource, kind) = (VolumeKind(1).resource(), "PersistentVolumeClaim".to_owned());
        let interned = Interned::new(usize::MAX);
        let watch = Arc::new(SharedWatch::new(resource, kind, interned));
        let mut volumes = Volumes::default();
        let claim = object("persistentvolumeclaims", "d", "data", &json!({})).key.clone();
        volumes.watches[1] = Some(Followed::new(watch));
        assert!(matches!(volumes.lookup(&claim, || None), Some(Lookup::Pending)), "the pods are unknown");
        let by_name = pod(&json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
        let on = |pods: &[Arc<SharedObject>], complete| Some(PodsOn { pods: pods.to_vec(), complete });
        let pods = [by_name];
        // The list of the watch is not complete, so the state of a key to which the node has a right is unknown.
        assert!(matches!(volumes.lookup(&claim, || on(&pods, true)), Some(Lookup::Pending)));
        assert!(matches!(volumes.lookup(&claim, || on(&[], true)), Some(Lookup::Pending)), "remembered");
        volumes.pods_changed();
        let found = volumes.lookup(&claim, || on(&[], false));
        assert!(matches!(found, Some(Lookup::Unreadable(WITHHELD))), "a pod without body may refer to it");
        volumes.pods_changed();
        assert!(matches!(volumes.lookup(&claim, || on(&[], true)), Some(Lookup::Unwanted(None))));
    }

    /// Pods come and go, and everything that the edge holds is looked up each time.
    #[test]
    fn refused_volume_watch_backs_off_and_ends_with_the_need() {
        let mut volumes = Volumes::default();
        let claim = object("persistentvolumeclaims", "d", "data", &json!({})).key.clone();
        let volume = object("persistentvolumes", "", "v", &json!({})).key.clone();
        let using = vec![pod(&json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]))];
        let on = |pods: &[Arc<SharedObject>]| PodsOn { pods: pods.to_vec(), complete: true };
        let look = |volumes: &mut Volumes, pods: &[Arc<SharedObject>]| {
            volumes.pods_changed();
            let looked = [&claim, &volume].map(|key| volumes.lookup(key, || Some(on(pods))));
            let opened = std::iter::from_fn(|| volumes.take_missing()).count();
            (opened, looked.iter().filter(|found| matches!(found, Some(Lookup::Unwanted(_)))).count())
        };
        assert_eq!(look(&mut volumes, &using), (2, 0), "both kinds, each once");
        let mut waits = Vec::new();
        for _ in 0..8 {
            for _ in 0..100 {
                assert_eq!(look(&mut volumes, &using), (0, 0), "they are being opened, or wait");
            }
            waits.push([0, 1].map(|kind| volumes.failed(VolumeKind(kind)).as_secs()));
            assert_eq!(look(&mut volumes, &using), (0, 0));
            [0, 1].into_iter().for_each(|kind| volumes.retry(VolumeKind(kind)));
            assert_eq!(look(&mut volumes, &using), (2, 0), "a pod needs them");
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300].map(|wait| [wait, wait]));
        [0, 1].into_iter().for_each(|kind| volumes.retry(VolumeKind(kind)));
        assert_eq!(look(&mut volumes, &[]), (0, 2), "no pod does: the right has ended, and no call is made");
    }

    /// Everything that the session has to send now. Ledger writes that it needs are stored at once.
    fn told(session: &mut CloudSession, view: &View) -> Vec<String> {
        let now = Moment::default();
        let mut told = Vec::new();
        loop {
            while let Some(document) = session.poll_transmit(now, view) {
                told.push(String::from_utf8(document.to_bytes().to_vec()).expect("text"));
            }
            let Some(write) = session.poll_ledger(now, view) else { return told };
            session.ledger_saved(write.number);
        }
    }

    /// A KubeEdge edge holds a claim that it was given for a pod. While it was disconnected, the pod was deleted, and
    /// with it the right.
    #[test]
    fn right_that_ended_while_the_node_was_away_is_reported_on_reconnect() {
        let node = NodeId::parse("edge-1").expect("valid");
        let down = Arc::new(NodeObjectCache::default());
        let mut index = Index::new(Arc::clone(&down));
        index.joined(&node);
        let metadata = json!({"name": "edge-1", "uid": "u-node", "resourceVersion": "1"});
        for kind in Kind::ALL {
            index.handle(kind, ObjectEvent::RelistStart);
            if kind == Kind::Node {
                let raw = RawObject::new(json!({ "metadata": metadata }));
                index.handle(kind, ObjectEvent::Applied(raw));
            }
            index.handle(kind, ObjectEvent::RelistEnd);
        }
        let claim = object("persistentvolumeclaims", "d", "data", &json!({})).key.clone();
        let (uid, revision) = (Uid::parse("u").ok(), Some(CloudRevision(7)));
        let epoch = Epoch { cluster: Uid::parse("c").expect("valid"), generation: 1 };
        let mut ledger = Ledger::new(Some(epoch.clone()), Vec::new());
        let entry = LedgerEntry { kind: "PersistentVolumeClaim".into(), uid, revision };
        ledger.insert(claim.clone(), entry).expect("room");

        let mut view = View::kubeedge(node.clone(), down);
        let config = CloudConfig::new(node, epoch, 0, [1; 16]);
        let mut session = CloudSession::new(config, ledger, Moment::default(), &view);
        let deletions = |session: &mut CloudSession, view: &View| {
            let told = told(session, view);
            told.iter().filter(|text| text.contains("\"delete\"") && text.contains("data")).count()
        };
        assert_eq!(deletions(&mut session, &view), 0, "the API server is asked for the pods first");
        assert_eq!(view.take_unconfirmed(|_| false).len(), 1);
        view.prove(Vec::new());
        session.offer(SubscriptionId::NODE, claim, &view);
        // The claim itself is not known, but it is known that no pod of the node refers to it. So the kind need not be
        // followed.
        assert_eq!(deletions(&mut session, &view), 1, "the right has ended");
        assert_eq!(view.volumes.take_missing(), None);
    }
}
