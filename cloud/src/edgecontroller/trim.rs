//! Reduces an object to what is sent to an edge, encoded so that equal content gives equal bytes.

use std::io;

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tombolo_proto::inventory::{ContentHasher, content_hash};
use tombolo_proto::object::{ContentHash, ObjectVersion, SharedObject};
use tombolo_proto::{CloudRevision, ObjectKey, Resource, Uid, references};

use crate::kube::{ObjectError, RawObject, resources};

mod others;

pub use others::for_others;

/// Version of the rules in this file. Content hashes of different versions cannot be compared, so every change of what
/// is dropped or how it is encoded must raise it. The rules for what other nodes receive of a Node are not included:
/// when they change, the hashes differ and the Node is sent once more.
pub const TRIM_VERSION: u32 = 3;

/// Annotation in which `kubectl apply` keeps a second copy of the whole object.
pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object ready to be sent.
#[derive(Debug)]
pub struct Trimmed {
    /// The object that is sent.
    pub object: SharedObject,
    /// Hash of the part whose changes are delivered: for pods everything except status and generation, for Nodes
    /// everything except the list of images, for all other objects the whole body.
    pub significant: ContentHash,
}

/// Drops what no node needs and encodes the rest.
///
/// Dropped are `managedFields`, `selfLink`, the annotation of `kubectl apply`, `resourceVersion` (it is sent beside the
/// body, so that an object of which only the revision changed keeps its bytes), and in Nodes the heartbeat times, which
/// the node itself reported. The images of a Node, also reported by the node, stay: a kubelet compares them with those
/// that it sees, and would report them for ever if it saw none. Members are sorted by name.
///
/// An object that was not read whole has an empty body, and a new hash each time. One exception: if a pod is being
/// deleted, the part that was read is sent, because the node terminates the pod on this and would never learn of the
/// deletion otherwise.
///
/// # Errors
/// [`ObjectError`] when the object has no uid or revision.
pub fn trim(resource: &Resource, kind: &str, raw: RawObject) -> Result<Trimmed, ObjectError> {
    let key = raw.key(resource);
    let (uid, revision) = (raw.uid()?, raw.revision()?);
    if raw.is_unread() && !is_ended_by(resource, raw.value()) {
        return Ok(without_body(key, uid, revision, &raw));
    }
    let mut value = raw.into_value();
    name_kind(resource, kind, &mut value);
    trim_metadata(&mut value);
    let is_node = *resource == resources::nodes();
    if is_node {
        trim_node(&mut value);
    }
    let mut body = value.to_string();
    // The text lives long and has grown by doubling: release the excess, because only its length is charged.
    body.shrink_to_fit();
    let hash = content_hash(body.as_bytes());
    let dependencies = dependencies_of(&key, &value);
    let significant = if *resource == resources::pods() {
        pod_significance(&mut value)
    } else if is_node {
        node_significance(&mut value)
    } else {
        hash
    };
    let version = ObjectVersion { uid, revision, hash };
    Ok(Trimmed { object: SharedObject::new(key, version, body.into(), dependencies), significant })
}

/// Whether the part of a pod that was read says that the node must terminate it.
fn is_ended_by(resource: &Resource, value: &Value) -> bool {
    let has = |pointer: &str| value.pointer(pointer).is_some_and(Value::is_string);
    *resource == resources::pods() && has("/metadata/deletionTimestamp") && has("/spec/nodeName")
}

fn without_body(key: ObjectKey, uid: Uid, revision: CloudRevision, raw: &RawObject) -> Trimmed {
    // The content is unknown, so the hash must not equal any other.
    let hash = ContentHash(rand::random());
    let dependencies = dependencies_of(&key, raw.value());
    let version = ObjectVersion { uid, revision, hash };
    Trimmed { object: SharedObject::new(key, version, Bytes::new(), dependencies), significant: hash }
}

/// The objects that a pod refers to; empty for other kinds.
fn dependencies_of(key: &ObjectKey, value: &Value) -> Vec<ObjectKey> {
    if *key.resource() == resources::pods() { references::of_pod(key.namespace(), value) } else { Vec::new() }
}

/// Items of a list carry neither kind nor version, but a body at the edge needs both.
fn name_kind(resource: &Resource, kind: &str, value: &mut Value) {
    let Some(object) = value.as_object_mut() else { return };
    if !kind.is_empty() {
        object.entry("kind").or_insert_with(|| kind.into());
    }
    object.entry("apiVersion").or_insert_with(|| match &*resource.group {
        "" => Value::from(&*resource.version),
        group => format!("{group}/{}", resource.version).into(),
    });
}

fn trim_metadata(value: &mut Value) {
    let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for field in ["managedFields", "selfLink", "resourceVersion"] {
        metadata.remove(field);
    }
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    annotations.remove(LAST_APPLIED);
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
}

fn trim_node(value: &mut Value) {
    let Some(status) = value.get_mut("status").and_then(Value::as_object_mut) else { return };
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.remove("lastHeartbeatTime");
    }
}

/// Hash of a pod without its status and generation; removes both from the value.
fn pod_significance(value: &mut Value) -> ContentHash {
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
    }
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("generation");
    }
    hash_of(value)
}

/// Hash of a Node without its images; removes them from the value.
fn node_significance(value: &mut Value) -> ContentHash {
    if let Some(status) = value.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("images");
    }
    hash_of(value)
}

/// Hash of a value's JSON encoding.
pub(crate) fn hash_of(value: &impl Serialize) -> ContentHash {
    let mut hasher = HashWriter(ContentHasher::default());
    match serde_json::to_writer(&mut hasher, value) {
        Ok(()) => hasher.0.finish(),
        // Writing into a hasher cannot fail. A constant would merge different objects; a random hash merges nothing.
        Err(_) => ContentHash(rand::random()),
    }
}

struct HashWriter(ContentHasher);

impl io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kube::resources;

    fn trimmed(resource: &Resource, kind: &str, value: Value) -> Trimmed {
        trim(resource, kind, RawObject::new(value)).expect("an object with identity")
    }

    fn pod(change: impl FnOnce(&mut Value)) -> Trimmed {
        let mut value = json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "7", "generation": 1,
                "managedFields": [{"manager": "x"}], "labels": {"b": "1", "a": "2"},
                "annotations": {LAST_APPLIED: "{}"}},
            "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}
        });
        change(&mut value);
        trimmed(&resources::pods(), "Pod", value)
    }

    #[test]
    fn bodies_are_sorted_and_trimmed() {
        let body = pod(|_| {}).object.body;
        let expected = concat!(
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"generation":1,"labels":{"a":"2","b":"1"},"#,
            r#""name":"p","namespace":"d","uid":"u"},"spec":{"nodeName":"n"},"status":{"phase":"Pending"}}"#
        );
        assert_eq!(body, expected);
    }

    /// What changed is unknown, so everything may have changed.
    #[test]
    fn unparsed_objects_never_count_as_equal() {
        let unread = || {
            let metadata = json!({"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "7"});
            let mut raw = RawObject::new(json!({"metadata": metadata, "spec": {"nodeName": "n"}}));
            raw.leave_unread("it is too long");
            trim(&resources::pods(), "Pod", raw).expect("an object with identity")
        };
        let (one, other) = (unread(), unread());
        assert!(one.object.body.is_empty());
        assert!(one.significant != other.significant && one.object.version != other.object.version);
    }

    #[test]
    fn only_fields_that_a_node_uses_are_significant_in_a_pod() {
        let base = pod(|_| {});
        for (what, change) in [
            ("revision", json!({"metadata": {"resourceVersion": "8"}})),
            ("generation", json!({"metadata": {"generation": 2}})),
            ("status", json!({"status": {"phase": "Running"}})),
            ("managedFields", json!({"metadata": {"managedFields": []}})),
        ] {
            let other = pod(|value| json_patch::merge(value, &change));
            assert_eq!(other.significant, base.significant, "{what}");
        }
        for (what, change) in [
            ("label", json!({"metadata": {"labels": {"a": "3"}}})),
            ("deletion", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            ("spec", json!({"spec": {"nodeName": "m"}})),
        ] {
            let other = pod(|value| json_patch::merge(value, &change));
            assert_ne!(other.significant, base.significant, "{what}");
        }
    }

    #[test]
    fn the_hash_leaves_the_revision_out() {
        let config = |revision: &str, data: &str| {
            let metadata = json!({"name": "c", "namespace": "d", "uid": "u", "resourceVersion": revision});
            let value = json!({"metadata": metadata, "data": {"k": data}});
            trimmed(&resources::configmaps(), "ConfigMap", value).object.version
        };
        assert_eq!(config("1", "a").hash, config("2", "a").hash);
        assert_ne!(config("1", "a").hash, config("1", "b").hash);
        assert_eq!(config("9", "a").revision.0, 9);
    }

    #[test]
    fn node_heartbeats_are_trimmed_and_image_changes_cause_no_delivery() {
        let node = |time: &str, image: &str| {
            let value = json!({
                "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
                "status": {"images": [{"names": [image]}], "conditions": [
                    {"type": "Ready", "status": "True", "lastHeartbeatTime": time, "lastTransitionTime": "t"}]}
            });
            trimmed(&resources::nodes(), "Node", value)
        };
        assert_eq!(node("a", "x").object.version.hash, node("b", "x").object.version.hash);
        assert_eq!(node("a", "x").significant, node("a", "y").significant);
        assert_ne!(node("a", "x").object.version.hash, node("a", "y").object.version.hash);
        let body = node("a", "x").object.body;
        let expected = concat!(
            r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","uid":"u"},"#,
            r#""status":{"conditions":[{"lastTransitionTime":"t","status":"True","type":"Ready"}],"#,
            r#""images":[{"names":["x"]}]}}"#
        );
        assert_eq!(body, expected);
    }

    #[test]
    fn the_revision_can_be_put_back() {
        let object = pod(|_| {}).object;
        let value: Value = object.with_revision().expect("has metadata").read().expect("JSON");
        assert_eq!(value["metadata"]["resourceVersion"], "7");
        assert_eq!(value["spec"]["nodeName"], "n");
    }

    #[test]
    fn an_object_without_uid_is_refused() {
        let value = json!({"metadata": {"name": "c", "namespace": "d", "resourceVersion": "1"}});
        let error = trim(&resources::configmaps(), "ConfigMap", RawObject::new(value)).expect_err("no uid");
        assert!(error.to_string().contains("metadata.uid"), "{error}");
    }
}
