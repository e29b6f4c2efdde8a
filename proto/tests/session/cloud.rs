//! A cloud as a map: the truth, and the view of it that a cloudcore replica has.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tombolo_proto::inventory::content_hash;
use tombolo_proto::session::{Certainty, Lookup, NodeView};
use tombolo_proto::{CloudRevision, Epoch, ObjectKey, ObjectVersion, Resource, ScopeId, SharedObject, Uid};

/// The pushed set is area 0; the others are followed by subscriptions. Area `n` is the namespace `area<n>`.
pub const AREAS: usize = 3;

pub fn key(area: usize, number: usize) -> ObjectKey {
    ObjectKey::new(Resource::new("", "v1", "configmaps"), &format!("area{area}"), &format!("object{number}"))
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
    /// What trimming rules of this version leave of the object.
    pub fn body(&self, trim_version: u32) -> String {
        let padding = "x".repeat(self.len);
        format!(
            r#"{{"uid":"{}","content":{},"rules":{trim_version},"pad":"{padding}"}}"#,
            self.uid, self.content
        )
    }

    pub fn shared(&self, key: &ObjectKey, trim_version: u32) -> Arc<SharedObject> {
        let body = self.body(trim_version);
        let version = ObjectVersion {
            uid: Uid::parse(&format!("uid-{}", self.uid)).expect("valid"),
            revision: CloudRevision(self.revision),
            hash: content_hash(body.as_bytes()),
        };
        Arc::new(SharedObject::new(key.clone(), version, body.into(), Vec::new()))
    }
}

/// What the Kubernetes API holds and who needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Truth {
    pub objects: BTreeMap<ObjectKey, Object>,
    pub wanted: [BTreeSet<ObjectKey>; AREAS],
    pub revision: u64,
}

/// The cloud's side of the world.
#[derive(Debug, Clone)]
pub struct Cloud {
    pub truth: Truth,
    /// What the replica has seen; stays behind while the watch is stalled.
    view: Truth,
    old_view: Option<Truth>,
    pub stalled: bool,
    /// Wanted keys that the replica has not fetched.
    pub pending: BTreeSet<ObjectKey>,
    /// Wanted keys that the API lets nobody read.
    pub unreadable: BTreeSet<ObjectKey>,
    /// Changed since the stall: offered when the watch goes on.
    changed: BTreeSet<ObjectKey>,
    cache: RefCell<HashMap<ObjectKey, Arc<SharedObject>>>,
    pub snapshot: Truth,
    pub generation: u64,
    pub trim_version: u32,
    serial: u64,
    /// Which area a scope of the present connection is.
    pub scopes: BTreeMap<ScopeId, usize>,
    /// Lookups that were answered.
    pub lookups: Cell<u64>,
    /// The view asks the API server before it takes anything away.
    pub asks: bool,
    /// What it asks about.
    pub doubts: RefCell<BTreeSet<ObjectKey>>,
    /// What the API server has confirmed to be gone or not needed.
    pub certain: BTreeSet<ObjectKey>,
}

impl Cloud {
    pub fn new() -> Self {
        Self {
            truth: Truth::default(),
            view: Truth::default(),
            old_view: None,
            stalled: false,
            pending: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            changed: BTreeSet::new(),
            cache: RefCell::default(),
            snapshot: Truth::default(),
            generation: 1,
            trim_version: 1,
            serial: 0,
            scopes: BTreeMap::new(),
            lookups: Cell::new(0),
            asks: false,
            doubts: RefCell::default(),
            certain: BTreeSet::new(),
        }
    }

    pub fn epoch(&self) -> Epoch {
        Epoch { cluster: Uid::parse("kube-system-uid").expect("valid"), generation: self.generation }
    }

    fn serial(&mut self) -> u64 {
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
        self.truth.objects.insert(key.clone(), object);
        self.change(key);
    }

    /// A write that changes nothing an edge sees: another revision, the same content.
    pub fn touch(&mut self, key: &ObjectKey) {
        if let Some(object) = self.truth.objects.get_mut(key) {
            self.truth.revision += 1;
            object.revision = self.truth.revision;
            self.change(key);
        }
    }

    pub fn remove(&mut self, key: &ObjectKey) {
        if self.truth.objects.remove(key).is_some() {
            self.truth.revision += 1;
            self.change(key);
        }
    }

    pub fn want(&mut self, area: usize, key: &ObjectKey, wanted: bool) {
        let set = &mut self.truth.wanted[area];
        if if wanted { set.insert(key.clone()) } else { set.remove(key) } {
            self.change(key);
        }
    }

    /// The API lets an object be read no longer, or again.
    pub fn set_readable(&mut self, key: &ObjectKey, readable: bool) {
        let changed =
            if readable { self.unreadable.remove(key) } else { self.unreadable.insert(key.clone()) };
        if changed {
            self.change(key);
        }
    }

    fn change(&mut self, key: &ObjectKey) {
        self.changed.insert(key.clone());
    }

    /// The keys to offer now: none while the watch is stalled.
    pub fn take_offers(&mut self) -> Vec<ObjectKey> {
        if self.stalled || self.changed.is_empty() {
            return Vec::new();
        }
        self.view = self.truth.clone();
        let changed = std::mem::take(&mut self.changed);
        self.cache.borrow_mut().clear();
        changed.into_iter().collect()
    }

    /// Remembers the present view: a replica that will lag from here on.
    pub fn fork_replica(&mut self) {
        self.old_view = Some(self.view.clone());
    }

    /// Another replica serves the edge from now on: one that is up to date, or one whose view is older than what the
    /// edge has seen already, and that catches up later. Whether it lags.
    pub fn fail_over(&mut self, lagging: bool) -> bool {
        self.scopes.clear();
        self.cache.borrow_mut().clear();
        match self.old_view.take().filter(|_| lagging) {
            None => {
                self.stalled = false;
                self.take_offers();
                false
            }
            Some(view) => {
                self.view = view;
                self.stalled = true;
                let keys = [&self.view, &self.truth]
                    .into_iter()
                    .flat_map(|side| side.objects.keys().chain(side.wanted.iter().flatten()));
                self.changed.extend(keys.cloned());
                true
            }
        }
    }

    /// The API comes back from a backup: revisions go back, which makes a new epoch.
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
        self.view = self.truth.clone();
        self.old_view = None;
        self.stalled = false;
        self.changed.clear();
        self.cache.borrow_mut().clear();
        self.scopes.clear();
    }

    pub fn area_of(key: &ObjectKey) -> usize {
        key.namespace().trim_start_matches("area").parse().expect("made by `key`")
    }
}

impl NodeView for Cloud {
    fn wanted(&self, scope: ScopeId) -> Vec<ObjectKey> {
        let area = self.scopes.get(&scope).expect("only open scopes are asked for");
        self.view.wanted[*area].iter().cloned().collect()
    }

    fn lookup(&self, scope: ScopeId, key: &ObjectKey) -> Lookup {
        self.lookups.set(self.lookups.get() + 1);
        let area = self.scopes.get(&scope).expect("only open scopes are asked for");
        if !self.view.wanted[*area].contains(key) {
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

    fn revision(&self, _scope: ScopeId) -> CloudRevision {
        CloudRevision(self.view.revision)
    }

    fn certainty(&self, scope: ScopeId, key: &ObjectKey, held: CloudRevision) -> Certainty {
        match self.asks {
            true if self.certain.contains(key) => Certainty::Certain,
            true => {
                self.doubts.borrow_mut().insert(key.clone());
                Certainty::Asked
            }
            false if held > self.revision(scope) => Certainty::Late,
            false => Certainty::Certain,
        }
    }
}
