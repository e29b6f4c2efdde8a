//! A cloud as a map: the truth, and a cloudcore replica's view of it.
//!
//! A replica learns of the truth through independent watches. Each watch reads the same log of changes, up to its own
//! position, and selects its own changes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tombolo_proto::inventory::content_hash;
use tombolo_proto::session::{Certainty, Lookup, Loss, NodeView};
use tombolo_proto::{
    CloudRevision, Epoch, ObjectKey, ObjectVersion, Resource, SharedObject, SubscriptionId, Uid,
};

/// The pushed set is area 0; the others are followed by subscriptions. Area `n` is the namespace `area<n>`.
pub const AREAS: usize = 3;

/// The kinds of the pushed set, each with its own watch. The watch of pods also determines which ConfigMaps and Secrets
/// are needed.
pub const KINDS: [&str; 4] = ["configmaps", "secrets", "pods", "nodes"];

/// Index of the watch of pods, and of the watch of the single Node, in [`KINDS`].
const PODS: usize = 2;
const NODES: usize = 3;

/// The watches of the pushed set, and one for each other area.
pub const WATCHES: usize = KINDS.len() + AREAS - 1;

/// In the pushed set the kinds alternate.
pub fn key(area: usize, number: usize) -> ObjectKey {
    let kind = if area == 0 { KINDS[number % KINDS.len()] } else { "configmaps" };
    ObjectKey::new(Resource::new("", "v1", kind), &format!("area{area}"), &format!("object{number}"))
}

/// The number of a nearby ConfigMap or Secret: these are read by name, and may be unreadable.
pub fn read_by_name(number: usize) -> usize {
    number - number % KINDS.len() + number % 2
}

/// The watch that shows an object.
fn watch_of(key: &ObjectKey) -> usize {
    match Cloud::area_of(key) {
        0 => KINDS.iter().position(|kind| **kind == *key.resource().name).expect("made by `key`"),
        area => KINDS.len() + area - 1,
    }
}

/// The watch that shows whether an object is needed.
fn need_of(key: &ObjectKey) -> usize {
    match watch_of(key) {
        0 | 1 => PODS,
        watch => watch,
    }
}

/// Whether an object is a pod of the node: it is needed as long as it exists.
pub fn is_pod(key: &ObjectKey) -> bool {
    watch_of(key) == PODS
}

/// Whether an object is the node itself, which is always needed.
fn is_node(key: &ObjectKey) -> bool {
    watch_of(key) == NODES
}

/// One object of the truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub uid: u64,
    pub revision: u64,
    pub content: u64,
    pub len: usize,
}

impl Object {
    /// The body after this version of the trimming rules.
    pub fn body(&self, trim_version: u32) -> String {
        let padding = "x".repeat(self.len);
        format!(
            r#"{{"uid":"{}","content":{},"rules":{trim_version},"pad":"{padding}"}}"#,
            self.uid, self.content
        )
    }

    pub fn uid(&self) -> Uid {
        Uid::parse(&format!("uid-{}", self.uid)).expect("valid")
    }

    pub fn shared(&self, key: &ObjectKey, trim_version: u32) -> Arc<SharedObject> {
        let body = self.body(trim_version);
        let version = ObjectVersion {
            uid: self.uid(),
            revision: CloudRevision(self.revision),
            hash: content_hash(body.as_bytes()),
        };
        Arc::new(SharedObject::new(key.clone(), version, body.into(), Vec::new()))
    }
}

/// The beginning of an uninterrupted need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since {
    /// The serial number of the change.
    pub serial: u64,
    /// The revision of the cloud at that time.
    pub revision: u64,
}

/// The objects in the Kubernetes API, and their need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Truth {
    pub objects: BTreeMap<ObjectKey, Object>,
    pub wanted: [BTreeMap<ObjectKey, Since>; AREAS],
    pub revision: u64,
}

/// One change, as a watch shows it.
#[derive(Debug, Clone)]
struct Event {
    watch: usize,
    key: ObjectKey,
    revision: u64,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Object(Option<Object>),
    Need(Option<Since>),
}

/// The cloud's side of the world.
#[derive(Debug, Clone)]
pub struct Cloud {
    pub truth: Truth,
    /// The state before the log begins.
    base: Truth,
    log: Vec<Event>,
    /// The state that the replica has seen: for each watch, the log up to its position.
    view: Truth,
    seen: [usize; WATCHES],
    pub stalled: [bool; WATCHES],
    /// Positions of the watches of another replica that will lag from here on.
    fork: Option<[usize; WATCHES]>,
    /// Needs that a list has shown. Information of the pod watch up to this position is older.
    listed: BTreeMap<ObjectKey, usize>,
    /// Wanted keys that the replica has not fetched.
    pub pending: BTreeSet<ObjectKey>,
    /// Keys to offer: their view has changed, or they waited for the view.
    offers: BTreeSet<ObjectKey>,
    /// Wanted keys that the API does not let cloudcore read.
    pub unreadable: BTreeSet<ObjectKey>,
    cache: RefCell<HashMap<ObjectKey, Arc<SharedObject>>>,
    pub snapshot: Truth,
    pub generation: u64,
    pub trim_version: u32,
    serial: u64,
    /// The area of each subscription of the present connection.
    pub subscriptions: BTreeMap<SubscriptionId, usize>,
    /// Lookups that were answered.
    pub lookups: Cell<u64>,
    /// The pushed set behaves as in Kubernetes: nothing is known before the node is known, a pod is needed while it
    /// exists, and an object changes when a selection gains or loses it.
    pub kinds: bool,
    node: ObjectKey,
    /// The view asks the API server before it deletes anything.
    pub asks: bool,
    /// The keys that it asks about.
    pub doubts: RefCell<BTreeSet<ObjectKey>>,
    /// Keys that the API server has confirmed to be deleted or not needed.
    pub certain: BTreeSet<ObjectKey>,
    /// Areas whose needs the API server has listed in this session.
    proven: [bool; AREAS],
    /// Keys that were looked up before the node was known.
    deferred: RefCell<BTreeSet<ObjectKey>>,
}

impl Cloud {
    pub fn new() -> Self {
        Self {
            truth: Truth::default(),
            base: Truth::default(),
            log: Vec::new(),
            view: Truth::default(),
            seen: [0; WATCHES],
            stalled: [false; WATCHES],
            fork: None,
            listed: BTreeMap::new(),
            pending: BTreeSet::new(),
            offers: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            cache: RefCell::default(),
            snapshot: Truth::default(),
            generation: 1,
            trim_version: 1,
            serial: 0,
            subscriptions: BTreeMap::new(),
            lookups: Cell::new(0),
            kinds: false,
            node: key(0, NODES),
            asks: false,
            doubts: RefCell::default(),
            certain: BTreeSet::new(),
            proven: [false; AREAS],
            deferred: RefCell::default(),
        }
    }

    pub fn epoch(&self) -> Epoch {
        Epoch { cluster: Uid::parse("kube-system-uid").expect("valid"), generation: self.generation }
    }

    /// A number that was never returned before.
    pub fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Creates or updates an object with new content of `len` bytes.
    pub fn put(&mut self, key: &ObjectKey, len: usize) {
        let content = self.serial();
        let uid = self.truth.objects.get(key).map(|object| object.uid);
        let uid = uid.unwrap_or_else(|| self.serial());
        self.truth.revision += 1;
        let object = Object { uid, revision: self.truth.revision, content, len };
        self.set_object(key, Some(object));
        if self.kinds && (is_pod(key) || is_node(key)) {
            self.set_need(0, key, true);
        }
    }

    /// A write without a change for edges: a new revision with the same content.
    pub fn touch(&mut self, key: &ObjectKey) {
        if let Some(mut object) = self.truth.objects.get(key).cloned() {
            self.truth.revision += 1;
            object.revision = self.truth.revision;
            self.set_object(key, Some(object));
        }
    }

    pub fn remove(&mut self, key: &ObjectKey) {
        if self.kinds && is_node(key) {
            return;
        }
        if self.kinds && is_pod(key) {
            self.set_need(0, key, false);
        }
        if self.truth.objects.contains_key(key) {
            self.truth.revision += 1;
            self.set_object(key, None);
        }
    }

    pub fn want(&mut self, area: usize, key: &ObjectKey, wanted: bool) {
        match area {
            0 if self.kinds && (is_node(key) || is_pod(key)) => {
                if !wanted {
                    self.remove(key);
                }
            }
            0 => self.set_need(area, key, wanted),
            _ => {
                // A selection gains or loses an object because the object has changed.
                if self.kinds && self.truth.wanted[area].contains_key(key) != wanted {
                    self.touch(key);
                }
                self.set_need(area, key, wanted);
            }
        }
    }

    /// Makes an object unreadable or readable in the API.
    pub fn set_readable(&mut self, key: &ObjectKey, readable: bool) {
        let changed =
            if readable { self.unreadable.remove(key) } else { self.unreadable.insert(key.clone()) };
        if changed {
            self.offers.insert(key.clone());
        }
    }

    fn set_object(&mut self, key: &ObjectKey, object: Option<Object>) {
        match &object {
            Some(object) => self.truth.objects.insert(key.clone(), object.clone()),
            None => self.truth.objects.remove(key),
        };
        self.log(watch_of(key), key, What::Object(object));
    }

    fn set_need(&mut self, area: usize, key: &ObjectKey, wanted: bool) {
        if self.truth.wanted[area].contains_key(key) == wanted {
            return;
        }
        let since = Since { serial: self.serial(), revision: self.truth.revision };
        match wanted {
            true => self.truth.wanted[area].insert(key.clone(), since),
            false => self.truth.wanted[area].remove(key),
        };
        self.log(need_of(key), key, What::Need(wanted.then_some(since)));
    }

    fn log(&mut self, watch: usize, key: &ObjectKey, what: What) {
        let revision = self.truth.revision;
        self.log.push(Event { watch, key: key.clone(), revision, what });
    }

    /// Advances a watch by a number of changes, although it is stalled.
    pub fn advance(&mut self, watch: usize, changes: usize) {
        let own = (self.seen[watch]..self.log.len()).filter(|index| self.log[*index].watch == watch);
        let end = own.take(changes).last().map_or(self.log.len(), |index| index + 1);
        self.advance_to(watch, end);
    }

    fn advance_to(&mut self, watch: usize, end: usize) {
        for index in std::mem::replace(&mut self.seen[watch], end)..end {
            if self.log[index].watch == watch {
                let event = self.log[index].clone();
                self.show(index, event);
            }
        }
    }

    /// Applies one change to the view, unless a list has shown something newer.
    fn show(&mut self, index: usize, Event { key, revision, what, .. }: Event) {
        let area = Self::area_of(&key);
        self.view.revision = self.view.revision.max(revision);
        match what {
            What::Need(_) if self.listed.get(&key).is_some_and(|upto| index < *upto) => {}
            What::Need(Some(since)) => _ = self.view.wanted[area].insert(key.clone(), since),
            What::Need(None) => _ = self.view.wanted[area].remove(&key),
            What::Object(_) if self.view.objects.get(&key).is_some_and(|known| known.revision > revision) => {
            }
            What::Object(Some(object)) => self.put_in_view(&key, object),
            What::Object(None) => _ = self.view.objects.remove(&key),
        }
        self.cache.borrow_mut().remove(&key);
        self.offers.insert(key);
    }

    fn put_in_view(&mut self, key: &ObjectKey, object: Object) {
        self.view.objects.insert(key.clone(), object);
        self.cache.borrow_mut().remove(key);
        if *key == self.node {
            self.offers.append(&mut self.deferred.take());
            self.offers.extend(self.view.wanted[0].keys().cloned());
        }
    }

    /// The keys to offer now, from the watches that are not stalled.
    pub fn take_offers(&mut self) -> Vec<ObjectKey> {
        for watch in 0..WATCHES {
            if !self.stalled[watch] {
                self.advance_to(watch, self.log.len());
            }
        }
        std::mem::take(&mut self.offers).into_iter().collect()
    }

    /// All pending keys have been fetched.
    pub fn fetched(&mut self) {
        self.offers.append(&mut self.pending);
    }

    /// Remembers the present view, for a replica that will lag from here on. A `new` one does not know the node yet.
    pub fn fork_replica(&mut self, new: bool) {
        let mut fork = self.seen;
        if new {
            fork[NODES] = 0;
        }
        self.fork = Some(fork);
    }

    /// Another replica serves the edge from now on: either an up-to-date one, or one whose view is older than what the
    /// edge has seen already, and which catches up later. Returns whether it lags.
    pub fn fail_over(&mut self, lagging: bool) -> bool {
        self.subscriptions.clear();
        let fork = self.fork.take().filter(|_| lagging);
        let lags = fork.is_some();
        self.stalled = [lags; WATCHES];
        if let Some(seen) = fork {
            self.rewind();
            for (watch, end) in seen.into_iter().enumerate() {
                self.advance_to(watch, end);
            }
        }
        self.take_offers();
        lags
    }

    /// The view of a replica that has seen nothing of the log.
    fn rewind(&mut self) {
        self.view = self.base.clone();
        self.seen = [0; WATCHES];
        self.listed.clear();
        self.cache.borrow_mut().clear();
    }

    /// Begins a session without any answers from the API server.
    pub fn begin_session(&mut self) {
        self.doubts.take();
        self.deferred.take();
        self.certain.clear();
        self.proven = [false; AREAS];
    }

    /// The API is restored from a backup: revisions go back, which makes a new epoch.
    pub fn restore(&mut self) {
        self.truth = self.snapshot.clone();
        self.generation += 1;
        self.reset_view();
    }

    pub fn change_rules(&mut self) {
        self.trim_version += 1;
        self.reset_view();
    }

    fn reset_view(&mut self) {
        self.base = self.truth.clone();
        self.log.clear();
        self.fork = None;
        self.stalled = [false; WATCHES];
        self.rewind();
        self.offers.clear();
        self.subscriptions.clear();
    }

    /// The API server answers the view's doubts. The content of the answer enters the view first. Returns how many
    /// doubts it has confirmed and how many it has denied.
    pub fn answer_doubts(&mut self) -> (u64, u64) {
        let doubts = self.doubts.take();
        let areas: BTreeSet<usize> = doubts.iter().map(Self::area_of).collect();
        areas.into_iter().for_each(|area| self.list(area));
        let (mut confirmed, mut denied) = (0, 0);
        for key in doubts {
            let area = Self::area_of(&key);
            let (needed, object) = (&self.truth.wanted[area], self.truth.objects.get(&key));
            match object.filter(|_| needed.contains_key(&key)).cloned() {
                None => confirmed += 1,
                Some(object) => {
                    denied += 1;
                    self.put_in_view(&key, object);
                }
            }
            if !self.truth.objects.contains_key(&key) {
                self.certain.insert(key.clone());
            }
            self.offers.insert(key);
        }
        (confirmed, denied)
    }

    /// Lists the needs of an area; for the pushed set, the node's pods and the objects that they refer to.
    fn list(&mut self, area: usize) {
        let needed = self.truth.wanted[area].clone();
        for (key, since) in needed {
            let shown = area > 0 || is_pod(&key);
            if let Some(object) = self.truth.objects.get(&key).filter(|_| shown).cloned() {
                self.put_in_view(&key, object);
            }
            self.listed.insert(key.clone(), self.log.len());
            if self.view.wanted[area].insert(key.clone(), since).is_none() || shown {
                self.offers.insert(key);
            }
        }
        self.proven[area] = true;
    }

    pub fn area_of(key: &ObjectKey) -> usize {
        key.namespace().trim_start_matches("area").parse().expect("made by `key`")
    }

    /// Whether the view can say anything about the pushed set.
    fn knows_the_node(&self) -> bool {
        !self.kinds || self.view.objects.contains_key(&self.node)
    }
}

impl NodeView for Cloud {
    fn wanted(&self, subscription: SubscriptionId) -> Vec<ObjectKey> {
        let area = *self.subscriptions.get(&subscription).expect("only open subscriptions are requested");
        let known = |key: &&ObjectKey| area > 0 || is_node(key) || self.knows_the_node();
        self.view.wanted[area].keys().filter(known).cloned().collect()
    }

    fn lookup(&self, subscription: SubscriptionId, key: &ObjectKey) -> Lookup {
        self.lookups.set(self.lookups.get() + 1);
        let area = *self.subscriptions.get(&subscription).expect("only open subscriptions are requested");
        if area == 0 && !self.knows_the_node() {
            self.deferred.borrow_mut().insert(key.clone());
            return Lookup::Pending;
        }
        if !self.view.wanted[area].contains_key(key) {
            return Lookup::Unwanted(None);
        }
        if self.pending.contains(key) {
            return Lookup::Pending;
        }
        if self.unreadable.contains(key) {
            return Lookup::Unreadable(403);
        }
        let Some(object) = self.view.objects.get(key) else { return Lookup::Absent };
        let mut cache = self.cache.borrow_mut();
        Lookup::Present(
            cache.entry(key.clone()).or_insert_with(|| object.shared(key, self.trim_version)).clone(),
        )
    }

    fn revision(&self, _subscription: SubscriptionId) -> CloudRevision {
        CloudRevision(self.view.revision)
    }

    fn certainty(&self, subscription: SubscriptionId, key: &ObjectKey, loss: Loss) -> Certainty {
        let area = *self.subscriptions.get(&subscription).expect("only open subscriptions are requested");
        let told = match loss {
            // The watch that has shown the need has shown its end as well.
            Loss::Need { claimed: false } => area > 0 || is_pod(key) || is_node(key),
            Loss::Need { claimed: true } | Loss::Object => false,
        };
        let listed = self.proven[area] && matches!(loss, Loss::Need { .. });
        if !self.asks || told || listed || self.certain.contains(key) {
            return Certainty::Certain;
        }
        self.doubts.borrow_mut().insert(key.clone());
        Certainty::Asked
    }
}
