//! One watch in the cloud, shared by any number of subscriptions
//! (docs/security.md#rights-are-asked-for-never-remembered).

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch as channel};
use tokio::time::Instant;
use tombolo_proto::documents::WARM_SET;
use tombolo_proto::limits::FOLLOWED_MAX;
use tombolo_proto::object::{ContentHash, ObjectVersion, SharedObject};
use tombolo_proto::session::Lookup;
use tombolo_proto::{CloudRevision, NodeId, ObjectKey, Resource, SubscriptionId};

use super::closed::Closed;
use super::registry::SessionHandle;
use crate::edgecontroller::node_object_cache::WITHHELD;
use crate::edgecontroller::trim;
use crate::kube::{ObjectEvent, RawObject, path_of};
use followers::Followers;
pub(super) use interned::Interned;
use interned::Stored;
use lists::{Lists, Order};
use namespace_limits::NamespaceUsages;
use payers::Lack;

mod eviction;
mod followers;
mod interned;
mod lists;
mod namespace_limits;
mod payers;

/// Capacity of the event queue of a shared watch's task.
pub(super) const EVENTS_MAX: usize = 256;

/// Number of recent deletions whose object versions are remembered. Sessions ask soon after the deletion.
const GONE_MAX: usize = 256;

/// Progress of a shared watch.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// The first list is not complete yet.
    Listing,
    /// The first list is complete, and changes follow.
    Following,
    /// The watch has ended.
    Failed(Closed),
}

/// The objects of one resource and selector, and the sessions that follow them. It has many fields because its parts
/// are locked separately: sessions read the copy while a list or a change is applied.
#[derive(Debug)]
pub(super) struct SharedWatch {
    resource: Resource,
    kind: String,
    /// The copy. An object that exists but was not read is stored as a version without a body.
    objects: DashMap<ObjectKey, Arc<Stored>>,
    interned: Interned,
    /// The newest deletions, oldest first. An edge that holds a newer incarnation through a write of its own keeps it.
    gone: Mutex<VecDeque<(ObjectKey, ObjectVersion)>>,
    revision: AtomicU64,
    /// Path and query of a list of everything that is selected.
    path: String,
    lists: Lists,
    /// Locked for every change of the copy.
    order: Mutex<Order>,
    stage: channel::Sender<Stage>,
    followers: Mutex<Followers>,
    /// The nodes that asked for the watch before its first list was complete; none if cloudcore itself asked.
    askers: channel::Sender<Option<Vec<NodeId>>>,
    /// Whether all nodes follow the watch and it covers a whole kind of the warm set. Such a watch does not end because
    /// of the objects of one namespace.
    is_common: bool,
    namespaces: Mutex<NamespaceUsages>,
    /// Bodies or objects that had to give way are being read again.
    restoring: AtomicBool,
}

/// Fails the watch when its task ends for any reason: by a return, a panic or an abort.
struct Ending<'w>(&'w SharedWatch);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.fail(&Closed::new(503, "the watch has ended: subscribe again"));
    }
}

impl SharedWatch {
    pub(super) fn new(resource: Resource, kind: String, interned: Interned) -> Self {
        let is_common = WARM_SET.contains(&(&*resource.group, &*resource.version, &*resource.name));
        Self {
            path: path_of(&resource, "", ""),
            resource,
            kind,
            objects: DashMap::new(),
            interned,
            gone: Mutex::default(),
            revision: AtomicU64::new(0),
            lists: Lists::default(),
            order: Mutex::default(),
            stage: channel::Sender::new(Stage::Listing),
            followers: Mutex::new(Followers::new(None)),
            askers: channel::Sender::new(None),
            is_common,
            namespaces: Mutex::default(),
            restoring: AtomicBool::new(false),
        }
    }

    /// The same, begun for a node, which pays for the copy as long as it has no followers. None for cloudcore's own
    /// needs.
    pub(super) fn begun_by(self, opener: Option<&NodeId>) -> Self {
        let askers = channel::Sender::new(opener.map(|node| vec![node.clone()]));
        Self { followers: Mutex::new(Followers::new(opener.cloned())), askers, ..self }
    }

    /// The same, restricted to the part of the resource that this path lists.
    pub(super) fn listed_at(self, path: String) -> Self {
        let is_common = self.is_common && path == self.path;
        Self { path, is_common, ..self }
    }

    /// Which resource it is about.
    pub(super) fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The watch is about to relist. Called before the request is sent.
    pub(super) fn relist_begins(&self) {
        self.order.lock().relist_begins();
    }

    /// The keys of all selected objects.
    pub(super) fn keys(&self) -> Vec<ObjectKey> {
        self.objects.iter().map(|entry| entry.key().clone()).collect()
    }

    /// Number of selected objects.
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether this node alone pays for the copy.
    pub(super) fn is_paid_by(&self, node: &NodeId) -> bool {
        self.followers.lock().payer() == Some(node)
    }

    /// Whether the watch was begun for this node.
    pub(super) fn was_begun_by(&self, opener: Option<&NodeId>) -> bool {
        self.followers.lock().opener.as_ref() == opener
    }

    pub(super) fn lookup(&self, key: &ObjectKey) -> Lookup {
        match self.objects.get(key) {
            Some(stored) if stored.is_withheld() => Lookup::Unreadable(WITHHELD),
            Some(stored) => Lookup::Present(Arc::clone(&stored.object)),
            None if self.is_following() => self.lookup_missing(key),
            None => Lookup::Pending,
        }
    }

    fn lookup_missing(&self, key: &ObjectKey) -> Lookup {
        match self.last_version(key) {
            None if self.namespaces.lock().may_have(key) => Lookup::Unreadable(WITHHELD),
            version => Lookup::Unwanted(version),
        }
    }

    fn last_version(&self, key: &ObjectKey) -> Option<ObjectVersion> {
        let gone = self.gone.lock();
        gone.iter().rev().find(|(other, _)| other == key).map(|(_, version)| version.clone())
    }

    pub(super) fn revision(&self) -> CloudRevision {
        CloudRevision(self.revision.load(Ordering::Relaxed))
    }

    /// Notifies this session of changes from now on, until the session or the watch ends.
    ///
    /// # Errors
    /// The reason why the watch has ended, because a later follower would not be notified of its end. Or the node alone
    /// would follow more than it may.
    pub(super) fn follow(
        &self,
        session: &Arc<SessionHandle>,
        subscription: SubscriptionId,
    ) -> Result<(), Closed> {
        loop {
            let mut followers = self.followers.lock();
            // The end is recorded before the followers are notified of it, so this session gets it in one of the two
            // ways.
            if let Stage::Failed(closed) = &*self.stage.borrow() {
                return Err(closed.clone());
            }
            let added = followers.add(session, subscription, &self.interned.payers);
            drop(followers);
            let Err(lack) = added else {
                // The watch's own list may be waiting for the list turn of its only follower; it need not do so any
                // more.
                self.askers.send_modify(|_| ());
                return Ok(());
            };
            self.make_room(&lack)?;
        }
    }

    pub(super) fn unfollow(&self, session: &SessionHandle, subscription: SubscriptionId) {
        self.followers.lock().remove(session, subscription, &self.interned.payers);
    }

    /// Charges the copy to the node that alone follows it. Ends the watch when the node's share is too small.
    pub(super) fn settle(&self) {
        loop {
            let charged = self.followers.lock().charge(&self.interned.payers);
            let Err(lack) = charged else { return };
            if let Err(closed) = self.make_room(&lack) {
                return self.fail(&closed);
            }
        }
    }

    /// Since when there are no followers; none while there are some.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.followers.lock().idle_since()
    }

    /// Waits until the first list is complete.
    ///
    /// # Errors
    /// The reason why that will not happen.
    pub(super) async fn synced(&self) -> Result<(), Closed> {
        let mut stage = self.stage.subscribe();
        let done = stage.wait_for(|stage| !matches!(stage, Stage::Listing)).await;
        match done.as_deref() {
            Ok(Stage::Failed(closed)) => Err(closed.clone()),
            Ok(Stage::Following) => Ok(()),
            Ok(Stage::Listing) | Err(_) => Err(Closed::new(503, "the watch has ended")),
        }
    }

    /// Ends the watch for all followers. Only the first reason counts. The followers are notified first, then the copy
    /// is dropped.
    pub(super) fn fail(&self, closed: &Closed) {
        self.stage.send_if_modified(|stage| {
            let first = !matches!(stage, Stage::Failed(_));
            if first {
                *stage = Stage::Failed(closed.clone());
            }
            first
        });
        let followers = self.followers.lock().take();
        for ((_, subscription), session) in followers {
            session.mailbox.end_subscription(subscription, closed.code, &closed.reason);
        }
        let _order = self.order.lock();
        self.objects.clear();
        *self.namespaces.lock() = NamespaceUsages::default();
        self.gone.lock().clear();
        self.followers.lock().forget();
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Failed(_))
    }

    /// Whether the watch is past its first list and has not ended.
    pub(super) fn is_following(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Following)
    }

    /// Processes the watch's events until the watch ends. Its followers are notified however it ends.
    pub(super) async fn run(self: Arc<Self>, mut events: mpsc::Receiver<ObjectEvent>) {
        let _ending = Ending(&self);
        let mut listed: Option<HashSet<ObjectKey>> = None;
        while let Some(event) = events.recv().await {
            match event {
                ObjectEvent::Applied(raw) => {
                    let key = raw.key(&self.resource);
                    if let Err(closed) = self.apply(raw) {
                        return self.fail(&closed);
                    }
                    // At the end of the list only keys that are in the copy matter.
                    if let Some(listed) = &mut listed
                        && self.objects.contains_key(&key)
                    {
                        listed.insert(key);
                    }
                }
                ObjectEvent::Deleted(raw) => self.delete(&raw),
                ObjectEvent::RelistStart => {
                    self.order.lock().relist_taken();
                    self.namespaces.lock().list_begins();
                    listed = Some(HashSet::new());
                }
                ObjectEvent::RelistEnd => {
                    self.keep_only(&listed.take().unwrap_or_default());
                    self.namespaces.lock().list_ends(true);
                    self.complete();
                }
            }
            if let Err(closed) = self.check_size() {
                return self.fail(&closed);
            }
        }
    }

    fn check_size(&self) -> Result<(), Closed> {
        if self.objects.len() <= FOLLOWED_MAX { Ok(()) } else { Err(too_many()) }
    }

    /// The list is complete. A watch that has ended meanwhile stays ended.
    fn complete(&self) {
        self.stage.send_if_modified(|stage| {
            let first = matches!(stage, Stage::Listing);
            if first {
                *stage = Stage::Following;
            }
            first
        });
    }

    fn apply(&self, raw: RawObject) -> Result<(), Closed> {
        let Some(object) = self.trimmed(raw) else { return Ok(()) };
        while let Err(lack) = self.try_apply(&object) {
            self.make_room(&lack)?;
        }
        Ok(())
    }

    fn try_apply(&self, object: &Arc<SharedObject>) -> Result<(), Lack> {
        let mut order = self.order.lock();
        // A watch that has ended stores nothing more.
        if self.has_failed() || order.is_older(&object.key, object.version.revision) {
            return Ok(());
        }
        self.put(self.interned.keep(object).ok_or(Lack::Whole)?)
    }

    fn trimmed(&self, raw: RawObject) -> Option<Arc<SharedObject>> {
        let _permit = raw.permit();
        let trimmed = trim::trim(&self.resource, &self.kind, trim::for_others(&self.resource, raw));
        trimmed
            .inspect_err(|error| tracing::warn!(%error, "ignoring an invalid object"))
            .ok()
            .map(|trimmed| Arc::new(trimmed.object))
    }

    fn put(&self, stored: Arc<Stored>) -> Result<(), Lack> {
        let object = &stored.object;
        let key = object.key.clone();
        if !self.has_slot(&key) {
            return Ok(());
        }
        let before = self.objects.get(&key).map(|known| Arc::clone(&known));
        let bytes = before.as_ref().map_or(0, |before| before.bytes());
        if stored.is_withheld()
            && !stored.gave_way()
            && !before.as_ref().is_some_and(|before| before.is_withheld())
        {
            tracing::warn!(%key, "a followed object has too many parts: its newest version is not delivered");
        }
        self.followers.lock().resize(bytes, stored.bytes(), &self.interned.payers)?;
        self.revision.fetch_max(object.version.revision.0, Ordering::Relaxed);
        let (uid, hash) = (object.version.uid.clone(), object.version.hash);
        let mut namespaces = self.namespaces.lock();
        if let Some(before) = &before {
            namespaces.remove(before);
        }
        namespaces.add(&stored);
        drop(namespaces);
        self.objects.insert(key.clone(), stored);
        if before.is_none_or(|before| before.object.version.uid != uid || before.object.version.hash != hash)
        {
            self.notify_followers(&key);
        }
        Ok(())
    }

    fn remove(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        let (_, stored) = self.objects.remove(key)?;
        self.namespaces.lock().remove(&stored);
        // An error here needs no action: the next growth of the copy checks the share again.
        let _ = self.followers.lock().resize(stored.bytes(), 0, &self.interned.payers);
        Some(stored)
    }

    fn delete(&self, raw: &RawObject) {
        let key = &raw.key(&self.resource);
        let revision = raw.revision().unwrap_or(CloudRevision(u64::MAX));
        let mut order = self.order.lock();
        if order.is_older(key, revision) {
            return;
        }
        order.bury(key, revision);
        let version = match self.remove(key) {
            Some(stored) => Some(stored.object.version.clone()),
            // A node may hold the object although it was left out of the copy.
            None => raw.uid().ok().filter(|_| self.namespaces.lock().may_have(key)).map(|uid| {
                let hash = ContentHash::default();
                ObjectVersion { uid, revision, hash }
            }),
        };
        if let Some(version) = version {
            let mut gone = self.gone.lock();
            if gone.len() == GONE_MAX {
                gone.pop_front();
            }
            gone.push_back((key.clone(), version));
            drop(gone);
            self.notify_followers(key);
        }
    }

    /// Removes the objects that are missing from a list. They were deleted while the watch was interrupted, perhaps in
    /// an incarnation that this copy never had.
    fn keep_only(&self, listed: &HashSet<ObjectKey>) {
        self.gone.lock().clear();
        let mut order = self.order.lock();
        for key in self.keys() {
            if !listed.contains(&key)
                && let Some(stored) = self.remove(&key)
            {
                order.bury(&key, stored.object.version.revision);
                self.notify_followers(&key);
            }
        }
        order.relist_complete();
    }

    fn notify_followers(&self, key: &ObjectKey) {
        self.followers.lock().each(|subscription, session| session.mailbox.offer(subscription, key));
    }
}

fn too_many() -> Closed {
    Closed::new(413, &format!("more than {FOLLOWED_MAX} objects match: select fewer"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn store() -> Interned {
        Interned::new(usize::MAX)
    }

    fn raw(name: &str, uid: &str, revision: u64) -> RawObject {
        let version = revision.to_string();
        let metadata = json!({"name": name, "namespace": "default", "uid": uid, "resourceVersion": version});
        RawObject::new(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata}))
    }

    #[tokio::test]
    async fn other_nodes_are_shown_without_their_images() {
        let nodes = Resource::new("", "v1", "nodes");
        let watch = Arc::new(SharedWatch::new(nodes.clone(), "Node".to_owned(), store()));
        let metadata = json!({"name": "n", "uid": "u", "resourceVersion": "5"});
        let status = json!({"images": [{"names": ["x"]}], "phase": "Running"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status});
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let running = tokio::spawn(Arc::clone(&watch).run(receiver));
        events.send(ObjectEvent::Applied(RawObject::new(node))).await.unwrap();
        while events.capacity() < EVENTS_MAX {
            tokio::task::yield_now().await;
        }
        let Lookup::Present(object) = watch.lookup(&ObjectKey::new(nodes, "", "n")) else {
            panic!("the node is not there");
        };
        let body: serde_json::Value = serde_json::from_slice(&object.body).unwrap();
        assert_eq!(body["status"], json!({"phase": "Running"}));
        drop(events);
        running.await.unwrap();
        assert!(matches!(watch.lookup(&object.key), Lookup::Pending), "an ended subscription keeps no state");
    }

    #[tokio::test]
    async fn watched_deletion_names_its_version_and_listed_one_does_not() {
        let services = Resource::new("", "v1", "services");
        let watch = Arc::new(SharedWatch::new(services.clone(), "Service".to_owned(), store()));
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let running = tokio::spawn(Arc::clone(&watch).run(receiver));
        let many = (0..=GONE_MAX as u64).map(|number| raw(&format!("s{number}"), "u", number + 1));
        let many: Vec<RawObject> = many.collect();
        events.send(ObjectEvent::RelistStart).await.unwrap();
        for object in many.iter().cloned().chain([raw("last", "u", 900)]) {
            events.send(ObjectEvent::Applied(object)).await.unwrap();
        }
        events.send(ObjectEvent::RelistEnd).await.unwrap();
        for object in many {
            events.send(ObjectEvent::Deleted(object)).await.unwrap();
        }
        let key = |name: &str| ObjectKey::new(services.clone(), "default", name);
        let went = |name: &str| match watch.lookup(&key(name)) {
            Lookup::Unwanted(version) => version.map(|version| version.revision.0),
            other => panic!("{name}: {other:?}"),
        };
        events.send(ObjectEvent::RelistStart).await.unwrap();
        while events.capacity() < EVENTS_MAX {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            (went("s0"), went("s1"), went("none")),
            (None, Some(2), None),
            "the last {GONE_MAX} are known"
        );
        events.send(ObjectEvent::RelistEnd).await.unwrap();
        while events.capacity() < EVENTS_MAX {
            tokio::task::yield_now().await;
        }
        assert_eq!((went("s1"), went("last")), (None, None));
        drop(events);
        running.await.unwrap();
    }

    /// Sessions that hold a version keep it, and others learn that the object exists. It is counted and listed like any
    /// other object.
    #[test]
    fn followed_object_that_cannot_be_parsed_is_unreadable_not_gone() {
        let services = Resource::new("", "v1", "services");
        let watch = SharedWatch::new(services.clone(), "Service".to_owned(), store());
        watch.apply(raw("s", "u", 5)).expect("room");
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let text = |name: &str| {
            format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"default","uid":"u","resourceVersion":"6"}},"status":{deep}}}"#
            )
        };
        for name in ["s", "t"] {
            let unread: RawObject = serde_json::from_str(&text(name)).expect("an object");
            assert!(unread.is_unread());
            watch.apply(unread).expect("room");
        }
        watch.complete();
        let found = |name: &str| watch.lookup(&ObjectKey::new(services.clone(), "default", name));
        for name in ["s", "t"] {
            assert!(matches!(found(name), Lookup::Unreadable(WITHHELD)), "it is not gone: {:?}", found(name));
        }
        assert_eq!((watch.len(), watch.keys().len()), (2, 2));
        watch.delete(&raw("t", "u", 7));
        assert!(matches!(found("t"), Lookup::Unwanted(Some(_))), "{:?}", found("t"));
        watch.apply(raw("s", "u", 8)).expect("room");
        assert!(matches!(found("s"), Lookup::Present(_)), "it can be read again: {:?}", found("s"));
        watch.keep_only(&HashSet::new());
        assert!(matches!(found("s"), Lookup::Unwanted(None)), "{:?}", found("s"));
    }
}
