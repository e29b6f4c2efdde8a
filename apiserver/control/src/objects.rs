//! Objects of the store as JSON values, as authentication, admission and controllers read and write them.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::raw;
use tombolo_apicore::store::{
    Expect, Mutation, Revision, Store as _, StoreError, Stored, Write, WriteStore as _,
};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource};

/// Maximum number of tries of a read-modify-write. Each failed try means that another writer succeeded.
const UPDATE_TRIES: usize = 16;

/// A resource of the core group.
pub(super) fn core(plural: &str) -> Resource {
    Resource::new("", "v1", plural)
}

/// A resource of version v1 of a group.
pub(super) fn v1(group: &str, plural: &str) -> Resource {
    Resource::new(group, "v1", plural)
}

/// A stored object.
#[derive(Debug, Clone)]
pub(super) struct StoredObject {
    /// Its key.
    pub(super) key: ObjectKey,
    /// Its UID.
    pub(super) uid: Uid,
    /// Its revision.
    pub(super) revision: Revision,
    /// Its content.
    pub(super) value: Value,
}

impl StoredObject {
    fn read(stored: &Stored) -> Option<Self> {
        let value = serde_json::from_slice(&stored.body()).ok()?;
        Some(Self { key: stored.key.clone(), uid: stored.uid.clone(), revision: stored.revision, value })
    }

    /// The text at a JSON pointer; empty when there is none.
    pub(super) fn text(&self, pointer: &str) -> &str {
        text(&self.value, pointer)
    }

    /// Whether it is being deleted.
    pub(super) fn is_terminating(&self) -> bool {
        self.value.pointer("/metadata/deletionTimestamp").is_some()
    }
}

/// The text at a JSON pointer; empty when there is none.
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The elements of the list at a JSON pointer; none when there is no list.
pub(super) fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The member of an object, which is replaced by an empty object if it is not an object.
pub(super) fn member<'a>(value: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    let parent = make_object(value);
    make_object(parent.entry(name).or_insert(Value::Null))
}

/// The list of this name in an object, which is replaced by an empty list if it is not a list.
pub(super) fn list_member<'a>(parent: &'a mut Map<String, Value>, name: &str) -> &'a mut Vec<Value> {
    let list = parent.entry(name).or_insert(Value::Null);
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    list.as_array_mut().expect("the line above made it a list")
}

/// Sets a condition of an object's status. An equal condition keeps its time. Returns whether the condition changed.
pub(super) fn set_condition(
    object: &mut Value,
    kind: &str,
    (status, reason, message): (&str, &str, String),
) -> bool {
    let conditions = list_member(member(object, "status"), "conditions");
    let own = conditions.iter_mut().find(|condition| text(condition, "/type") == kind);
    let same = |own: &Value| {
        text(own, "/status") == status && text(own, "/reason") == reason && text(own, "/message") == message
    };
    if own.as_deref().is_some_and(same) {
        return false;
    }
    let condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": timestamp(jiff::Timestamp::now()),
    });
    match own {
        Some(own) => *own = condition,
        None => conditions.push(condition),
    }
    true
}

fn make_object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("the line above made it an object")
}

/// What to do with an object after reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit {
    /// Leave it unchanged.
    Keep,
    /// Store the changed value.
    Put,
    /// Remove it.
    Remove,
}

/// Reads and writes objects. Cheap to clone.
///
/// Writes go straight to the store, without admission: they are for data that the server itself owns (status,
/// bootstrap, finalizers).
#[derive(Clone)]
pub(super) struct Objects {
    store: MemoryStore,
}

impl Objects {
    /// Wraps a store.
    pub(super) fn new(store: MemoryStore) -> Self {
        Self { store }
    }

    /// The store.
    pub(super) fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// One object; `None` when there is none.
    pub(super) fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<StoredObject> {
        self.get_key(&ObjectKey::new(resource, namespace, name))
    }

    /// One object; `None` when there is none.
    pub(super) fn get_key(&self, key: &ObjectKey) -> Option<StoredObject> {
        self.store.get(key).ok().flatten().and_then(|stored| StoredObject::read(&stored))
    }

    /// Whether the object exists.
    pub(super) fn exists(&self, resource: Resource, namespace: &str, name: &str) -> bool {
        self.store.get(&ObjectKey::new(resource, namespace, name)).is_ok_and(|found| found.is_some())
    }

    /// All objects of a resource, of one namespace if given. They are parsed one at a time: a tree takes many times its
    /// text, and one client may fill the store with the worst case. Callers should keep only those that they need.
    pub(super) fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = StoredObject> + use<> {
        self.list_raw(resource, namespace).into_iter().filter_map(|stored| StoredObject::read(&stored))
    }

    /// All objects of a resource as JSON text.
    pub(super) fn list_raw(&self, resource: &Resource, namespace: Option<&str>) -> Vec<Arc<Stored>> {
        self.store.list(resource, namespace).map(|snapshot| snapshot.items).unwrap_or_default()
    }

    /// Stores a new object with a UID and a creation time.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`], or another error of the store.
    pub(super) async fn create(
        &self,
        resource: Resource,
        mut value: Value,
    ) -> Result<Arc<Stored>, StoreError> {
        let uid = uuid::Uuid::new_v4().to_string();
        let metadata = member(&mut value, "metadata");
        metadata.insert("uid".into(), json!(uid));
        metadata.insert("creationTimestamp".into(), json!(timestamp(jiff::Timestamp::now())));
        let key =
            ObjectKey::new(resource, text(&value, "/metadata/namespace"), text(&value, "/metadata/name"));
        let uid = Uid::parse(&uid).expect("a UUID is a UID");
        self.store.commit(Mutation { key, expected: Expect::Absent, write: put(uid, &value) }).await
    }

    /// Stores a new object unless one of that name exists.
    ///
    /// # Errors
    /// The error of the store.
    pub(super) async fn ensure(&self, resource: Resource, value: Value) -> Result<(), StoreError> {
        if self.exists(resource.clone(), text(&value, "/metadata/namespace"), text(&value, "/metadata/name"))
        {
            return Ok(());
        }
        match self.create(resource, value).await {
            Ok(_) | Err(StoreError::AlreadyExists { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Stores a new value of an object if it has not changed since it was read.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] or [`StoreError::NotFound`] when it has, or another error of the store.
    pub(super) async fn replace(&self, object: &StoredObject) -> Result<Arc<Stored>, StoreError> {
        let (key, expected) = (object.key.clone(), Expect::Revision(object.revision));
        let write = put(object.uid.clone(), &object.value);
        self.store.commit(Mutation { key, expected, write }).await
    }

    /// Changes an object, and retries when another writer changed it meanwhile. `Ok(None)` when it does not exist.
    ///
    /// # Errors
    /// The error of the store.
    pub(super) async fn update(
        &self,
        key: &ObjectKey,
        mut edit: impl FnMut(&mut StoredObject) -> Edit + Send,
    ) -> Result<Option<Arc<Stored>>, StoreError> {
        let mut last = None;
        for _ in 0..UPDATE_TRIES {
            let Some(mut object) = self.get_key(key) else { return Ok(None) };
            let write = match edit(&mut object) {
                Edit::Keep => return self.store.get(key),
                Edit::Put => put(object.uid.clone(), &object.value),
                Edit::Remove => Write::Delete,
            };
            let expected = Expect::Revision(object.revision);
            match self.store.commit(Mutation { key: key.clone(), expected, write }).await {
                Ok(stored) => return Ok(Some(stored)),
                Err(StoreError::NotFound { .. }) => return Ok(None),
                Err(e @ StoreError::Conflict { .. }) => last = Some(e),
                Err(e) => return Err(e),
            }
        }
        Err(last.unwrap_or_else(|| StoreError::Unavailable { reason: format!("{key} changes too often") }))
    }
}

/// A time in the format of Kubernetes: RFC 3339 in UTC, whole seconds.
pub(super) fn timestamp(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn put(uid: Uid, value: &Value) -> Write {
    Write::Put { uid, body: raw::object_text(value) }
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::history::LogLimits;

    use super::*;

    fn objects() -> Objects {
        Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()))
    }

    #[tokio::test]
    async fn ensure_creates_once_and_update_is_conditional() {
        let objects = objects();
        let map = json!({"metadata": {"namespace": "default", "name": "m"}, "data": {"n": 0}});
        objects.ensure(core("configmaps"), map.clone()).await.unwrap();
        let first = objects.get(core("configmaps"), "default", "m").unwrap();
        objects.ensure(core("configmaps"), map).await.unwrap();
        assert_eq!(objects.get(core("configmaps"), "default", "m").unwrap().uid, first.uid);
        let bump = |object: &mut StoredObject| {
            let next = object.value["data"]["n"].as_u64().unwrap() + 1;
            object.value["data"]["n"] = json!(next);
            Edit::Put
        };
        futures::future::try_join_all((0..8).map(|_| objects.update(&first.key, bump))).await.unwrap();
        assert_eq!(objects.get_key(&first.key).unwrap().value["data"]["n"], 8);
        objects.update(&first.key, |_| Edit::Remove).await.unwrap();
        assert!(objects.update(&first.key, bump).await.unwrap().is_none());
    }
}
