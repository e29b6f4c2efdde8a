//! The cloud's knowledge: objects, the node's need of them, and the ledger's store.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tombolo_proto::inventory::content_hash;
use tombolo_proto::object::{ObjectVersion, SharedObject};
use tombolo_proto::session::kubeedge::{Ledger, LedgerEntry};
use tombolo_proto::session::{Lookup, NodeView};
use tombolo_proto::{CloudRevision, Epoch, NodeId, ObjectKey, Resource, SubscriptionId, Uid};

pub fn node() -> NodeId {
    NodeId::parse("edge1").expect("a name")
}

pub fn epoch() -> Epoch {
    Epoch { cluster: Uid::parse("cluster").expect("a uid"), generation: 1 }
}

/// Wire path of an object.
pub fn wire_path(key: &ObjectKey) -> String {
    let word = match &*key.resource().name {
        "pods" => "pod",
        "configmaps" => "configmap",
        "secrets" => "secret",
        "nodes" => "node",
        "endpointslices" => "endpointslice",
        other => panic!("{other}"),
    };
    let namespace = if key.namespace().is_empty() { "null" } else { key.namespace() };
    format!("{namespace}/{word}/{}", key.name())
}

pub fn key(kind: &str, name: &str) -> ObjectKey {
    let namespace = if kind == "nodes" { "" } else { "default" };
    let (group, version) = if kind == "endpointslices" { ("discovery.k8s.io", "v1") } else { ("", "v1") };
    ObjectKey::new(Resource::new(group, version, kind), namespace, name)
}

pub fn node_key() -> ObjectKey {
    key("nodes", "edge1")
}

fn kind(key: &ObjectKey) -> &'static str {
    match &*key.resource().name {
        "pods" => "Pod",
        "configmaps" => "ConfigMap",
        "secrets" => "Secret",
        "nodes" => "Node",
        _ => "EndpointSlice",
    }
}

/// The Kubernetes API and the index of the objects that the node needs.
#[derive(Debug, Default)]
pub struct Cluster {
    pub objects: BTreeMap<ObjectKey, Arc<SharedObject>>,
    /// By subscription: the node's own set, and its other subscriptions.
    pub wanted: BTreeMap<u32, BTreeSet<ObjectKey>>,
    /// Objects that the node can work without.
    pub optional: BTreeSet<ObjectKey>,
    /// Objects that the API does not let cloudcore read.
    pub unreadable: BTreeSet<ObjectKey>,
    revision: u64,
    incarnations: u64,
    /// Nothing is known yet.
    pub blind: bool,
    /// Keys that were requested meanwhile; their owner offers them again.
    deferred: RefCell<BTreeSet<ObjectKey>>,
}

impl Cluster {
    /// A cluster that cannot answer any query yet.
    pub fn unknown() -> Self {
        Self { blind: true, ..Self::default() }
    }

    fn store(&mut self, key: &ObjectKey, uid: Uid) {
        self.revision += 1;
        let namespace = match key.namespace() {
            "" => String::new(),
            namespace => format!(r#""namespace":"{namespace}","#),
        };
        // As trimmed bodies are: members sorted, no version.
        let body = format!(
            r#"{{"apiVersion":"v1","data":{{"n":"{}"}},"kind":"{}","metadata":{{"name":"{}",{namespace}"uid":"{uid}"}}}}"#,
            self.revision,
            kind(key),
            key.name(),
        );
        self.insert(key, uid, body.into());
    }

    fn insert(&mut self, key: &ObjectKey, uid: Uid, body: Bytes) {
        let version =
            ObjectVersion { uid, revision: CloudRevision(self.revision), hash: content_hash(&body) };
        let mut object = SharedObject::new(key.clone(), version, body, Vec::new());
        // A version with equal content is equivalent to the previous one.
        if let Some(former) =
            self.objects.get(key).filter(|former| former.version.hash == object.version.hash)
        {
            object.same_since = former.same_since;
        }
        self.objects.insert(key.clone(), Arc::new(object));
    }

    /// The node has reported a status: a new version without new content for the node.
    pub fn report(&mut self, key: &ObjectKey) {
        let Some(object) = self.objects.get(key).cloned() else { return };
        self.revision += 1;
        self.insert(key, object.version.uid.clone(), object.body.clone());
    }

    /// Whether a row of the edge is equivalent to what the node should hold.
    pub fn is_served_by(&self, path: &str, uid: &str, revision: u64) -> bool {
        let mut keys = self.wanted.values().flatten().filter(|key| wire_path(key) == path);
        keys.any(|key| match self.objects.get(key) {
            Some(object) => {
                let (version, since) = (&object.version, object.same_since.0);
                version.uid.as_str() == uid && (since..=version.revision.0).contains(&revision)
            }
            None => uid.is_empty() && self.optional.contains(key),
        })
    }

    /// Creates or updates an object.
    pub fn put(&mut self, key: &ObjectKey) {
        let uid = match self.objects.get(key) {
            Some(object) => object.version.uid.clone(),
            None => {
                self.incarnations += 1;
                Uid::parse(&format!("uid-{}-{}", key.name(), self.incarnations)).expect("a uid")
            }
        };
        self.store(key, uid);
    }

    /// Creates an object of this size in bytes.
    pub fn put_large(&mut self, key: &ObjectKey, len: usize) {
        self.put(key);
        let object = &self.objects[key];
        let body = String::from_utf8(object.body.to_vec()).expect("text");
        let body = body.replacen(r#""data":{"#, &format!(r#""data":{{"m":"{}","#, "x".repeat(len)), 1);
        self.insert(key, object.version.uid.clone(), body.into());
    }

    pub fn delete(&mut self, key: &ObjectKey) {
        self.revision += 1;
        self.objects.remove(key);
    }

    pub fn want(&mut self, key: &ObjectKey, wanted: bool) {
        let set = self.wanted.entry(0).or_default();
        if wanted {
            set.insert(key.clone());
        } else {
            set.remove(key);
        }
    }

    /// Everything is known from now on; returns the keys that were waiting for it.
    pub fn see(&mut self) -> BTreeSet<ObjectKey> {
        self.blind = false;
        self.deferred.take()
    }

    /// The objects that the node should hold, by wire path.
    pub fn truth(&self) -> BTreeMap<String, (String, u64)> {
        let keys: BTreeSet<_> = self.wanted.values().flatten().collect();
        let present = keys.into_iter().filter_map(|key| Some((key, self.objects.get(key)?)));
        present
            .map(|(key, object)| {
                (wire_path(key), (object.version.uid.as_str().to_owned(), object.version.revision.0))
            })
            .collect()
    }

    /// The object including its version, as the API returns it.
    pub fn json(&self, key: &ObjectKey) -> Option<String> {
        let object = self.objects.get(key)?;
        let text = String::from_utf8(object.body.to_vec()).expect("text");
        let version = format!(r#""metadata":{{"resourceVersion":"{}","#, object.version.revision);
        Some(text.replacen(r#""metadata":{"#, &version, 1))
    }
}

impl NodeView for Cluster {
    fn wanted(&self, subscription: SubscriptionId) -> Vec<ObjectKey> {
        self.wanted.get(&subscription.0).into_iter().flatten().cloned().collect()
    }

    fn lookup(&self, subscription: SubscriptionId, key: &ObjectKey) -> Lookup {
        if self.blind {
            self.deferred.borrow_mut().insert(key.clone());
            return Lookup::Pending;
        }
        if !self.wanted.get(&subscription.0).is_some_and(|set| set.contains(key)) {
            return Lookup::Unwanted(None);
        }
        if subscription == SubscriptionId::NODE && self.unreadable.contains(key) {
            return Lookup::Unreadable(403);
        }
        self.objects.get(key).map_or(Lookup::Absent, |object| Lookup::Present(Arc::clone(object)))
    }

    fn is_optional(&self, key: &ObjectKey) -> bool {
        self.wanted.values().any(|set| set.contains(key)) && self.optional.contains(key)
    }

    fn revision(&self, _subscription: SubscriptionId) -> CloudRevision {
        CloudRevision(self.revision)
    }
}

/// The ledgers' store between connections: one object with compare-and-swap.
#[derive(Debug, Default)]
pub struct LedgerStore {
    pub stored: Ledger,
    /// Increases with every write of any writer.
    pub version: u64,
}

impl LedgerStore {
    /// Another cloudcore has delivered this to the node.
    pub fn foreign_write(&mut self, key: ObjectKey) {
        let entry = LedgerEntry { kind: kind(&key).into(), uid: None, revision: None };
        if self.stored.get(&key).is_none() {
            self.stored.insert(key, entry).expect("room");
        }
        self.version += 1;
    }
}
