//! One watch of the cloud that any number of subscriptions share (design 9.13).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch as channel};
use tokio::time::Instant;
use tombolo_proto::limits::FOLLOWED_MAX;
use tombolo_proto::object::{ObjectVersion, SharedObject};
use tombolo_proto::session::Lookup;
use tombolo_proto::{CloudRevision, NodeId, ObjectKey, Resource, ScopeId};

use super::interned::{Interned, Stored};
use super::registry::SessionHandle;
use super::subscriptions::Closed;
use crate::edgecontroller::trim;
use crate::kube::{ObjectEvent, RawObject, path_of};
use lists::{Lists, Order};

mod lists;

/// Events that wait for a shared watch's own task.
pub(super) const EVENTS_MAX: usize = 256;

/// Deletions of which is known what was deleted. Sessions ask soon after the deletion.
const GONE_MAX: usize = 256;

/// How far a shared watch has come.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// The first list is not complete.
    Listing,
    /// Everything is known.
    Following,
    /// It cannot go on.
    Failed(Closed),
}

/// The objects of one resource and selector, and the sessions that follow them.
#[derive(Debug)]
pub(super) struct SharedWatch {
    resource: Resource,
    kind: String,
    objects: DashMap<ObjectKey, Arc<Stored>>,
    interned: Interned,
    /// What was deleted last, oldest first: an edge that holds a newer incarnation by a write of its own keeps it.
    gone: Mutex<VecDeque<(ObjectKey, ObjectVersion)>>,
    revision: AtomicU64,
    /// Path and query of a list of all that is selected.
    path: String,
    lists: Lists,
    /// Taken by whoever changes the copy.
    order: Mutex<Order>,
    stage: channel::Sender<Stage>,
    followers: Mutex<Followers>,
}

/// Ends the watch with whatever ends its task: an answer, a panic, or somebody who stops it.
struct Ending<'w>(&'w SharedWatch);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.fail(&Closed::new(503, "the watch has ended: subscribe again"));
    }
}

#[derive(Debug)]
struct Followers {
    sessions: HashMap<(u64, ScopeId), Arc<SessionHandle>>,
    /// Since when nobody follows.
    idle_since: Instant,
}

impl SharedWatch {
    pub(super) fn new(resource: Resource, kind: String, interned: Interned) -> Self {
        let followers = Followers { sessions: HashMap::new(), idle_since: Instant::now() };
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
            followers: Mutex::new(followers),
        }
    }

    /// The same of a part of the resource, which this path lists.
    pub(super) fn listed_at(self, path: String) -> Self {
        Self { path, ..self }
    }

    /// Which resource it is about.
    pub(super) fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The watch is about to list everything by itself: called before it asks.
    pub(super) fn relist_begins(&self) {
        self.order.lock().relist_begins();
    }

    /// Everything that the watch selects.
    pub(super) fn keys(&self) -> Vec<ObjectKey> {
        self.objects.iter().map(|entry| entry.key().clone()).collect()
    }

    /// How many objects it selects.
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether nobody but this node follows.
    pub(super) fn is_alone(&self, node: &NodeId) -> bool {
        self.followers.lock().sessions.values().all(|session| session.node == *node)
    }

    pub(super) fn lookup(&self, key: &ObjectKey) -> Lookup {
        match self.objects.get(key) {
            Some(stored) => Lookup::Present(Arc::clone(&stored.object)),
            None if self.is_following() => Lookup::Unwanted(self.last_version(key)),
            None => Lookup::Pending,
        }
    }

    fn last_version(&self, key: &ObjectKey) -> Option<ObjectVersion> {
        let gone = self.gone.lock();
        gone.iter().rev().find(|(other, _)| other == key).map(|(_, version)| version.clone())
    }

    pub(super) fn revision(&self) -> CloudRevision {
        CloudRevision(self.revision.load(Ordering::Relaxed))
    }

    /// Tells this session from now on what changes, until it ends or the watch does.
    ///
    /// # Errors
    /// Why the watch has ended: whoever followed it now would never hear of that.
    pub(super) fn follow(&self, session: &Arc<SessionHandle>, scope: ScopeId) -> Result<(), Closed> {
        let mut followers = self.followers.lock();
        // The end is written down before the followers are told of it, so one of the two is seen here.
        if let Stage::Failed(closed) = &*self.stage.borrow() {
            return Err(closed.clone());
        }
        followers.sessions.insert((session.generation, scope), Arc::clone(session));
        Ok(())
    }

    pub(super) fn unfollow(&self, session: &SessionHandle, scope: ScopeId) {
        let mut followers = self.followers.lock();
        followers.sessions.remove(&(session.generation, scope));
        if followers.sessions.is_empty() {
            followers.idle_since = Instant::now();
        }
    }

    /// Since when nobody follows; none while somebody does.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let followers = self.followers.lock();
        followers.sessions.is_empty().then_some(followers.idle_since)
    }

    /// Waits until everything is known.
    ///
    /// # Errors
    /// Why that will not happen.
    pub(super) async fn synced(&self) -> Result<(), Closed> {
        let mut stage = self.stage.subscribe();
        let done = stage.wait_for(|stage| !matches!(stage, Stage::Listing)).await;
        match done.as_deref() {
            Ok(Stage::Failed(closed)) => Err(closed.clone()),
            Ok(Stage::Following) => Ok(()),
            Ok(Stage::Listing) | Err(_) => Err(Closed::new(503, "the watch has ended")),
        }
    }

    /// Ends the watch for everybody. The first reason stands.
    pub(super) fn fail(&self, closed: &Closed) {
        self.stage.send_if_modified(|stage| {
            let first = !matches!(stage, Stage::Failed(_));
            if first {
                *stage = Stage::Failed(closed.clone());
            }
            first
        });
        let followers = std::mem::take(&mut self.followers.lock().sessions);
        for ((_, scope), session) in followers {
            session.mailbox.end_subscription(scope, closed.code, &closed.reason);
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Failed(_))
    }

    /// Whether the first list was complete once.
    pub(super) fn is_following(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Following)
    }

    /// Takes the watch's events until it ends. However that comes about, its followers hear of it.
    pub(super) async fn run(self: Arc<Self>, mut events: mpsc::Receiver<ObjectEvent>) {
        let _ending = Ending(&self);
        let mut listed: Option<HashSet<ObjectKey>> = None;
        while let Some(event) = events.recv().await {
            match event {
                ObjectEvent::Applied(raw) => {
                    if let Some(listed) = &mut listed {
                        listed.insert(raw.key(&self.resource));
                    }
                    if let Err(closed) = self.apply(raw) {
                        return self.fail(&closed);
                    }
                }
                ObjectEvent::Deleted(raw) => self.delete(&raw),
                ObjectEvent::RelistStart => {
                    self.order.lock().relist_taken();
                    listed = Some(HashSet::new());
                }
                ObjectEvent::RelistEnd => {
                    self.keep_only(&listed.take().unwrap_or_default());
                    self.complete();
                }
            }
            if !self.check_size() {
                return;
            }
        }
    }

    /// Ends a watch that selects too much; false then.
    fn check_size(&self) -> bool {
        let fits = self.objects.len() <= FOLLOWED_MAX;
        if !fits {
            let reason = format!("more than {FOLLOWED_MAX} objects match: select fewer");
            self.fail(&Closed::new(413, &reason));
        }
        fits
    }

    /// The list is complete; a watch that has ended meanwhile stays ended.
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
        let mut order = self.order.lock();
        if !order.is_older(&object.key, object.version.revision) {
            self.put(self.interned.keep(object).ok_or_else(no_room)?);
        }
        Ok(())
    }

    fn trimmed(&self, raw: RawObject) -> Option<SharedObject> {
        let trimmed = trim::trim(&self.resource, &self.kind, trim::for_others(&self.resource, raw));
        trimmed
            .inspect_err(|error| tracing::warn!(%error, "an object that cannot be used"))
            .ok()
            .map(|trimmed| trimmed.object)
    }

    fn put(&self, stored: Arc<Stored>) {
        let object = &stored.object;
        self.revision.fetch_max(object.version.revision.0, Ordering::Relaxed);
        let key = object.key.clone();
        let (uid, hash) = (object.version.uid.clone(), object.version.hash);
        let before = self.objects.insert(key.clone(), stored);
        if before.is_none_or(|before| before.object.version.uid != uid || before.object.version.hash != hash)
        {
            self.tell(&key);
        }
    }

    fn delete(&self, raw: &RawObject) {
        let key = &raw.key(&self.resource);
        let revision = raw.revision().unwrap_or(CloudRevision(u64::MAX));
        let mut order = self.order.lock();
        if order.is_older(key, revision) {
            return;
        }
        order.bury(key, revision);
        if let Some((_, stored)) = self.objects.remove(key) {
            let mut gone = self.gone.lock();
            if gone.len() == GONE_MAX {
                gone.pop_front();
            }
            gone.push_back((key.clone(), stored.object.version.clone()));
            drop(gone);
            self.tell(key);
        }
    }

    /// What a list does not have was deleted while nobody watched, perhaps in an incarnation that was never seen here.
    fn keep_only(&self, listed: &HashSet<ObjectKey>) {
        self.gone.lock().clear();
        let mut order = self.order.lock();
        for key in self.keys() {
            if !listed.contains(&key)
                && let Some((_, stored)) = self.objects.remove(&key)
            {
                order.bury(&key, stored.object.version.revision);
                self.tell(&key);
            }
        }
        order.relist_complete();
    }

    fn tell(&self, key: &ObjectKey) {
        for ((_, scope), session) in &self.followers.lock().sessions {
            session.mailbox.offer(*scope, key);
        }
    }
}

fn no_room() -> Closed {
    Closed::new(503, "this hub has no memory left for objects that are followed")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn store() -> Interned {
        Interned::new(&tombolo_runtime::Budget::new(usize::MAX))
    }

    fn raw(name: &str, uid: &str, revision: u64) -> RawObject {
        let version = revision.to_string();
        let metadata = json!({"name": name, "namespace": "default", "uid": uid, "resourceVersion": version});
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata})).unwrap()
    }

    #[tokio::test]
    async fn other_nodes_are_shown_without_their_images() {
        let nodes = Resource::new("", "v1", "nodes");
        let watch = Arc::new(SharedWatch::new(nodes.clone(), "Node".to_owned(), store()));
        let metadata = json!({"name": "n", "uid": "u", "resourceVersion": "5"});
        let status = json!({"images": [{"names": ["x"]}], "phase": "Running"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status});
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        events.send(ObjectEvent::Applied(serde_json::from_value(node).unwrap())).await.unwrap();
        drop(events);
        Arc::clone(&watch).run(receiver).await;
        let Lookup::Present(object) = watch.lookup(&ObjectKey::new(nodes, "", "n")) else {
            panic!("the node is not there");
        };
        let body: serde_json::Value = serde_json::from_slice(&object.body).unwrap();
        assert_eq!(body["status"], json!({"phase": "Running"}));
    }

    #[tokio::test]
    async fn a_deletion_that_was_watched_tells_what_went_and_one_that_a_list_shows_does_not() {
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
}
