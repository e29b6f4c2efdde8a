//! Converts between one object of the two kinds and a ledger entry.

use serde_json::{Value, json};
use tombolo_proto::session::kubeedge::LedgerEntry;
use tombolo_proto::{CloudRevision, NodeId, ObjectKey, Resource, Uid};

use crate::edgecontroller::Kind;

/// Recorded version of an object that was never acknowledged.
const NEVER: &str = "0";

/// The content of one record: this node was given this object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Given {
    pub(super) node: NodeId,
    pub(super) key: ObjectKey,
    pub(super) entry: LedgerEntry,
}

/// Reads a record. `None` when its name has another form, or its object is of a kind that is not pushed to nodes: those
/// belong to watches of MetaServer, which the edge requests again.
pub(super) fn read(object: &Value) -> Option<Given> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (node, uid) = text("/metadata/name").rsplit_once('.')?;
    let (kind, resource) = of_kind(text("/spec/objectKind"))?;
    let name = text("/spec/objectName");
    if text("/spec/objectAPIVersion") != "v1" || name.is_empty() {
        return None;
    }
    let version = Some(text("/status/objectResourceVersion")).filter(|version| *version != NEVER);
    let entry = LedgerEntry {
        kind: kind.into(),
        uid: Some(Uid::parse(uid).ok()?),
        revision: version.and_then(|version| CloudRevision::parse(version).ok()),
    };
    let key = ObjectKey::new(resource, text("/metadata/namespace"), name);
    Some(Given { node: NodeId::parse(node).ok()?, key, entry })
}

/// The kinds whose changes are sent to nodes without a watch by the node.
fn of_kind(name: &str) -> Option<(&'static str, Resource)> {
    let pushed = Kind::ALL.map(|kind| (kind.name(), kind.resource()));
    let asked_for =
        [("PersistentVolume", "persistentvolumes"), ("PersistentVolumeClaim", "persistentvolumeclaims")];
    let asked_for = asked_for.map(|(kind, plural)| (kind, Resource::new("", "v1", plural)));
    pushed.into_iter().chain(asked_for).find(|(kind, _)| *kind == name)
}

/// Path of the collection in which objects of this namespace are recorded, and the kind of its records.
pub(super) fn collection(namespace: &str) -> (String, &'static str) {
    match namespace {
        "" => (format!("{}/clusterobjectsyncs", super::API), "ClusterObjectSync"),
        namespace => (format!("{}/namespaces/{namespace}/objectsyncs", super::API), "ObjectSync"),
    }
}

/// The record of a ledger entry: its name, the object, and the patch of its status. `None` for an entry without a
/// certain incarnation, because the incarnation is part of the name.
pub(super) fn write(node: &NodeId, key: &ObjectKey, entry: &LedgerEntry) -> Option<(String, Value, Value)> {
    let uid = entry.uid.as_ref()?;
    let name = format!("{node}.{uid}");
    let resource = key.resource();
    let api_version = match &*resource.group {
        "" => resource.version.to_string(),
        group => format!("{group}/{}", resource.version),
    };
    let (_, kind) = collection(key.namespace());
    let mut metadata = json!({"name": name});
    if !key.namespace().is_empty() {
        metadata["namespace"] = key.namespace().into();
    }
    let object = json!({
        "apiVersion": super::API.trim_start_matches("/apis/"), "kind": kind, "metadata": metadata,
        "spec": {"objectAPIVersion": api_version, "objectKind": &*entry.kind, "objectName": key.name()},
    });
    let version = entry.revision.map_or_else(|| NEVER.to_owned(), |revision| revision.0.to_string());
    Some((name, object, json!({"status": {"objectResourceVersion": version}})))
}
