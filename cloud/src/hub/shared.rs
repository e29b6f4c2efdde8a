//! One watch of the cloud that any number of subscriptions share (design 9.13).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch as channel};
use tokio::time::Instant;
use tombolo_proto::limits::INVENTORY_MAX;
use tombolo_proto::object::SharedObject;
use tombolo_proto::session::Lookup;
use tombolo_proto::{CloudRevision, ObjectKey, Resource, ScopeId};

use super::registry::SessionHandle;
use super::subscriptions::Closed;
use crate::edgecontroller::trim;
use crate::kube::{ObjectEvent, RawObject};

/// Events that wait for a shared watch's own task.
pub(super) const EVENTS_MAX: usize = 256;

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
    objects: DashMap<ObjectKey, Arc<SharedObject>>,
    revision: AtomicU64,
    stage: channel::Sender<Stage>,
    followers: Mutex<Followers>,
}

#[derive(Debug)]
struct Followers {
    sessions: HashMap<(u64, ScopeId), Arc<SessionHandle>>,
    /// Since when nobody follows.
    idle_since: Instant,
}

impl SharedWatch {
    pub(super) fn new(resource: Resource, kind: String) -> Self {
        let followers = Followers { sessions: HashMap::new(), idle_since: Instant::now() };
        Self {
            resource,
            kind,
            objects: DashMap::new(),
            revision: AtomicU64::new(0),
            stage: channel::Sender::new(Stage::Listing),
            followers: Mutex::new(followers),
        }
    }

    /// Everything that the watch selects.
    pub(super) fn keys(&self) -> Vec<ObjectKey> {
        self.objects.iter().map(|entry| entry.key().clone()).collect()
    }

    pub(super) fn lookup(&self, key: &ObjectKey) -> Lookup {
        match self.objects.get(key) {
            Some(object) => Lookup::Present(Arc::clone(&object)),
            None if matches!(*self.stage.borrow(), Stage::Following) => Lookup::Unwanted(None),
            None => Lookup::Pending,
        }
    }

    pub(super) fn revision(&self) -> CloudRevision {
        CloudRevision(self.revision.load(Ordering::Relaxed))
    }

    pub(super) fn follow(&self, session: &Arc<SessionHandle>, scope: ScopeId) {
        self.followers.lock().sessions.insert((session.generation, scope), Arc::clone(session));
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

    /// Ends the watch for everybody.
    pub(super) fn fail(&self, closed: &Closed) {
        self.stage.send_replace(Stage::Failed(closed.clone()));
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

    /// Takes the watch's events until it ends.
    pub(super) async fn run(self: Arc<Self>, mut events: mpsc::Receiver<ObjectEvent>) {
        let mut listed: Option<HashSet<ObjectKey>> = None;
        while let Some(event) = events.recv().await {
            match event {
                ObjectEvent::Applied(raw) => {
                    if let Some(listed) = &mut listed {
                        listed.insert(raw.key(&self.resource));
                    }
                    self.apply(raw);
                }
                ObjectEvent::Deleted(raw) => self.delete(&raw.key(&self.resource)),
                ObjectEvent::RelistStart => listed = Some(HashSet::new()),
                ObjectEvent::RelistEnd => {
                    self.keep_only(&listed.take().unwrap_or_default());
                    self.stage.send_replace(Stage::Following);
                }
            }
            if self.objects.len() > INVENTORY_MAX {
                let reason = format!("more than {INVENTORY_MAX} objects match: select fewer");
                return self.fail(&Closed::new(413, &reason));
            }
        }
    }

    fn apply(&self, raw: RawObject) {
        let object = match trim::trim(&self.resource, &self.kind, trim::for_others(&self.resource, raw)) {
            Ok(trimmed) => Arc::new(trimmed.object),
            Err(error) => return tracing::warn!(%error, "an object that cannot be used"),
        };
        self.revision.fetch_max(object.version.revision.0, Ordering::Relaxed);
        let key = object.key.clone();
        let (uid, hash) = (object.version.uid.clone(), object.version.hash);
        let before = self.objects.insert(key.clone(), object);
        if before.is_none_or(|before| before.version.uid != uid || before.version.hash != hash) {
            self.tell(&key);
        }
    }

    fn delete(&self, key: &ObjectKey) {
        if self.objects.remove(key).is_some() {
            self.tell(key);
        }
    }

    fn keep_only(&self, listed: &HashSet<ObjectKey>) {
        for key in self.keys() {
            if !listed.contains(&key) {
                self.delete(&key);
            }
        }
    }

    fn tell(&self, key: &ObjectKey) {
        for ((_, scope), session) in &self.followers.lock().sessions {
            session.mailbox.offer(*scope, key);
        }
    }
}
