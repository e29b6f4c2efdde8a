//! Single answers of the cloud as stores without a history.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tombolo_apicore::history::ChangeStream;
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::raw;
use tombolo_apicore::scale::is_scale;
use tombolo_apicore::status::ApiError;
use tombolo_apicore::store::{Revision, Snapshot, Store as ServedStore, StoreError, Stored};
use tombolo_proto::ids::Uid;
use tombolo_proto::object::{ObjectKey, Resource, ResourceParts};

use super::pass::tree;
use crate::store::Store;
use crate::store::splice::{facts, stamp};

/// One object, or the fact that it does not exist.
pub(super) struct One {
    object: Option<Arc<Stored>>,
    revision: Revision,
}

impl One {
    /// Wraps the object of an answer.
    ///
    /// # Errors
    /// 503 when the body is not an object.
    pub(super) fn of(key: ObjectKey, body: Bytes, revision: Revision) -> Result<Self, ApiError> {
        Ok(Self { object: Some(Arc::new(stored(key, body)?)), revision })
    }

    /// Wraps the Scale of an object, with the local resource version if this node holds the object in this version.
    ///
    /// # Errors
    /// 503 when the body is not a Scale.
    pub(super) fn scale(store: &Store, key: ObjectKey, body: Bytes) -> Result<Self, ApiError> {
        let scale = tree(&body)?;
        if !is_scale(&scale) {
            return Err(unreadable("it is not a Scale"));
        }
        let version = scale["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let body = localized(store, &key, version, body)?;
        Self::of(key, body, store.local_revision())
    }

    /// The cloud has no such object.
    pub(super) fn none(revision: Revision) -> Self {
        Self { object: None, revision }
    }
}

impl ServedStore for One {
    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        Ok(self.object.clone().filter(|object| object.key == *key))
    }

    fn list(&self, _: &Resource, _: Option<&str>) -> Result<Snapshot, StoreError> {
        Err(elsewhere())
    }

    fn list_at(&self, _: &Resource, _: Option<&str>, _: Revision) -> Result<Snapshot, StoreError> {
        Err(elsewhere())
    }

    fn watch(&self, _: &Resource, _: Revision) -> Result<ChangeStream, StoreError> {
        Err(elsewhere())
    }

    fn revision(&self) -> Revision {
        self.revision
    }
}

/// The objects of one list.
pub(super) struct Listed(Snapshot);

impl Listed {
    /// Wraps the objects of an answer, with local resource versions for those that this node holds in the same version.
    ///
    /// # Errors
    /// 503 when the body is not a list.
    pub(super) fn of(store: &Store, kind: &KindInfo, list: &[u8]) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct List<'a> {
            #[serde(borrow)]
            items: Vec<&'a RawValue>,
        }
        let revision = store.local_revision();
        let list: List<'_> = serde_json::from_slice(list).map_err(|_| unreadable("it is not a list"))?;
        let objects = list.items.into_iter().map(|item| listed(store, kind, item).map(Arc::new));
        let objects = objects.collect::<Result<_, _>>()?;
        Ok(Self(Snapshot { revision, items: objects }))
    }
}

impl ServedStore for Listed {
    fn get(&self, _: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
        Err(elsewhere())
    }

    fn list(&self, _: &Resource, _: Option<&str>) -> Result<Snapshot, StoreError> {
        Ok(self.0.clone())
    }

    fn list_at(&self, _: &Resource, _: Option<&str>, revision: Revision) -> Result<Snapshot, StoreError> {
        if revision == self.0.revision {
            return Ok(self.0.clone());
        }
        Err(StoreError::Expired { requested: revision, oldest: self.0.revision })
    }

    fn watch(&self, _: &Resource, _: Revision) -> Result<ChangeStream, StoreError> {
        Err(elsewhere())
    }

    fn revision(&self) -> Revision {
        self.0.revision
    }
}

/// Parses an item of a list, which lacks `kind` and `apiVersion`.
fn listed(store: &Store, kind: &KindInfo, item: &RawValue) -> Result<Stored, ApiError> {
    let ResourceParts { group, version, .. } = &*kind.storage;
    let api_version = if group.is_empty() { version.to_string() } else { format!("{group}/{version}") };
    let rest = raw::without_type(item.get().as_bytes()).ok_or_else(|| unreadable("item is not an object"))?;
    let head = format!("{{\"kind\":{},\"apiVersion\":{},", json!(&*kind.kind), json!(api_version));
    let body = Bytes::from([head.as_bytes(), &rest[1..]].concat());
    let facts = facts(&body).map_err(|why| unreadable(&why.to_string()))?;
    let key = ObjectKey::new(kind.storage.clone(), &facts.namespace, &facts.name);
    let body = localized(store, &key, &facts.resource_version, body)?;
    stored(key, body)
}

/// Replaces the cloud's resource version with the local one if this node holds the object in this version.
fn localized(store: &Store, key: &ObjectKey, version: &str, body: Bytes) -> Result<Bytes, ApiError> {
    let held = store.revisions(key).ok().flatten();
    match held.filter(|(_, cloud)| cloud.0.to_string() == version) {
        Some((local, _)) => stamp(&body, local.0).map_err(|why| unreadable(&why.to_string())),
        None => Ok(body),
    }
}

fn stored(key: ObjectKey, body: Bytes) -> Result<Stored, ApiError> {
    let facts = facts(&body).map_err(|why| unreadable(&why.to_string()))?;
    let uid = Uid::parse(&facts.uid).map_err(|error| unreadable(&error.to_string()))?;
    let revision = facts.resource_version.parse().unwrap_or_default();
    Ok(Stored::new(key, uid, Revision(revision), body))
}

fn unreadable(why: &str) -> ApiError {
    ApiError::unavailable(format!("the cloud's answer cannot be read: {why}"))
}

fn elsewhere() -> StoreError {
    StoreError::NotSynced { reason: "only a single answer of the cloud is available here".to_owned() }
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::kinds::Kinds;
    use tombolo_testkit::{Growth, alone};

    use super::*;
    use crate::store::{FaultyDisk, LogBounds, Sealer};

    #[tokio::test]
    async fn list_with_many_parts_is_split_as_text() {
        if !alone(module_path!(), "list_with_many_parts_is_split_as_text") {
            return;
        }
        let store = Store::open_on(Box::new(FaultyDisk::new(1)), Sealer::new(&[9; 32]), LogBounds::default());
        let store = store.unwrap().store;
        let kinds = Kinds::builtin();
        let kind = kinds.iter().find(|kind| &*kind.kind == "ConfigMap").unwrap();
        let item = |name: &str| {
            let parts = r#"{"":0},"#.repeat(200_000);
            let metadata =
                format!(r#"{{"name":"{name}","namespace":"a","uid":"u-{name}","resourceVersion":"5"}}"#);
            format!(r#"{{"metadata":{metadata},"data":[{parts}0]}}"#)
        };
        let list = format!(r#"{{"kind":"ConfigMapList","items":[{},{}]}}"#, item("x"), item("y"));
        let growth = Growth::begin();
        let listed = Listed::of(&store, kind, list.as_bytes()).unwrap();
        assert!(growth.most() < 16 * 1024 * 1024, "{} bytes for {}", growth.most(), list.len());
        let objects = listed.list(&kind.storage, None).unwrap().items;
        assert_eq!(objects.iter().map(|one| one.key.name()).collect::<Vec<_>>(), ["x", "y"]);
        assert!(
            objects[0].body().starts_with(br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x""#)
        );
        for wrong in [&br#"{"items":[7]}"#[..], br#"{"items":[{}]}"#, b"[]", b"{}", br#"{"items":{}}"#] {
            assert!(Listed::of(&store, kind, wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn absent_object_is_known_to_be_absent() {
        let key = ObjectKey::new(Resource::new("", "v1", "pods"), "a", "b");
        assert_eq!(One::none(Revision(7)).get(&key), Ok(None));
        let body = r#"{"metadata":{"name":"b","namespace":"a","uid":"u","resourceVersion":"5"}}"#;
        let one = One::of(key.clone(), body.into(), Revision(7)).unwrap();
        assert_eq!(one.get(&key).unwrap().unwrap().revision, Revision(5));
        let other = ObjectKey::new(Resource::new("", "v1", "pods"), "a", "c");
        assert_eq!(one.get(&other), Ok(None));
        assert!(One::of(key, "[]".into(), Revision(7)).is_err());
    }
}
