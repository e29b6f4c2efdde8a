//! Changes single members in JSON text without parsing the rest, so that bodies stay as the cloud sent them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use thiserror::Error;
use tombolo_apicore::raw::{span, splice};
use tombolo_apicore::tree::tree_bytes;
use tombolo_proto::inventory::content_hash;
use tombolo_proto::object::ContentHash;

/// Why a text is not an object whose members can be changed.
#[derive(Debug, Error)]
pub(crate) enum SpliceError {
    /// The text is no JSON object.
    #[error("it is not a JSON object: {0}")]
    NotObject(serde_json::Error),
    /// The text is another JSON value.
    #[error("it is not an object")]
    OtherValue,
    /// The object has no metadata.
    #[error("it has no metadata")]
    NoMetadata,
    /// The metadata is no object.
    #[error("its metadata is not an object")]
    NoMetadataObject,
    /// A member of the metadata has a wrong type.
    #[error("its metadata is not readable: {0}")]
    Metadata(serde_json::Error),
    /// The members of the metadata cannot be told apart.
    #[error("its metadata is not an object: {0}")]
    Members(serde_json::Error),
    /// The parsed object would take too much memory.
    #[error("it has too many parts")]
    TooLarge,
    /// Any other text that is not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Members by name. If a name is repeated, the last member counts, as in Kubernetes.
type JsonMembers<'a> = BTreeMap<Cow<'a, str>, Cow<'a, RawValue>>;

/// The fields of an object's metadata that the store needs.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Facts {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) resource_version: String,
    pub(crate) deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<String>>,
}

impl Facts {
    /// Whether this is the last state of an object: it is being deleted, and neither a finalizer nor a grace period
    /// delays that (Kubernetes convention).
    pub(crate) fn is_gone(&self) -> bool {
        self.deletion_timestamp.is_some()
            && self.deletion_grace_period_seconds == Some(0)
            && self.finalizers.as_ref().is_none_or(Vec::is_empty)
    }
}

#[derive(Deserialize)]
struct WithMetadata<'a> {
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
}

/// Reads name, namespace, UID and version of an object. A text that has them can be stamped.
///
/// # Errors
/// [`SpliceError`] when the text is not a JSON object with a `metadata` object.
pub(crate) fn facts(body: &[u8]) -> Result<Facts, SpliceError> {
    let metadata = metadata(body)?;
    if !metadata.get().starts_with('{') {
        return Err(SpliceError::NoMetadataObject);
    }
    serde_json::from_str(metadata.get()).map_err(SpliceError::Metadata)
}

/// The text with this `metadata.resourceVersion` and without `metadata.managedFields`.
pub(crate) fn stamp(body: &[u8], revision: u64) -> Result<Bytes, SpliceError> {
    let old = metadata(body)?;
    let mut members: JsonMembers<'_> = serde_json::from_str(old.get()).map_err(SpliceError::Members)?;
    members.remove("managedFields");
    let version = to_raw_value(&revision.to_string())?;
    members.insert("resourceVersion".into(), Cow::Owned(version));
    let new = serde_json::to_string(&members)?;
    Ok(splice(body, span(body, old), &new))
}

/// A member of an object, as it is in the text; `None` if there is none.
pub(crate) fn member<'a>(body: &'a [u8], name: &str) -> Option<&'a RawValue> {
    serde_json::from_slice::<BTreeMap<Cow<'a, str>, &'a RawValue>>(body).ok()?.remove(name)
}

/// The text with this value of a member.
pub(crate) fn with_member(body: &[u8], name: &str, new: &str) -> Result<Bytes, SpliceError> {
    // An object with metadata has at least that member, so that the comma below is right.
    metadata(body)?;
    if let Some(old) = member(body, name) {
        return Ok(splice(body, span(body, old), new));
    }
    let brace = body.iter().position(|byte| *byte == b'{').ok_or(SpliceError::OtherValue)?;
    let name = serde_json::to_string(name)?;
    Ok(splice(body, brace + 1..brace + 1, &format!("{name}:{new},")))
}

/// Version of the cloud's trimming rules that [`trimmed`] follows.
pub(crate) const TRIM_VERSION: u32 = 3;

/// Annotation in which `kubectl apply` stores a copy of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Maximum bytes that the parsed tree of an object may take in addition to its text. The cloud delivers no object that
/// takes more.
const KEPT_TREE_MAX: usize = 16 * 1024 * 1024;

/// An object as the cloud would deliver it, and the hash of that text. So the object of a reply is not delivered again
/// after a reconnect. A mistake here only costs a delivery. `is_node` is for a Node as the cloud delivers it to the node
/// itself; other nodes receive less of it.
pub(crate) fn trimmed(body: &[u8], is_node: bool) -> Result<(Bytes, ContentHash), SpliceError> {
    if tree_bytes(body) > KEPT_TREE_MAX {
        return Err(SpliceError::TooLarge);
    }
    let mut object: Value = serde_json::from_slice(body)?;
    let metadata =
        object.get_mut("metadata").and_then(Value::as_object_mut).ok_or(SpliceError::NoMetadata)?;
    for member in ["managedFields", "selfLink", "resourceVersion"] {
        metadata.remove(member);
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    if is_node {
        remove_heartbeats(&mut object);
    }
    let body = object.to_string();
    let hash = content_hash(body.as_bytes());
    Ok((body.into(), hash))
}

/// Removes from a Node the times of its conditions that change with each report.
fn remove_heartbeats(node: &mut Value) {
    let conditions = node.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.remove("lastHeartbeatTime");
    }
}

fn metadata(body: &[u8]) -> Result<&RawValue, SpliceError> {
    let object: WithMetadata<'_> = serde_json::from_slice(body).map_err(SpliceError::NotObject)?;
    object.metadata.ok_or(SpliceError::NoMetadata)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_testkit::{Growth, alone};

    use super::*;

    fn parse(text: &[u8]) -> Value {
        serde_json::from_slice(text).unwrap()
    }

    #[test]
    fn stamping_changes_the_version_and_drops_managed_fields() {
        let body = br#" {"a":1.50,"metadata":{"name":"x","managedFields":[{"a":{}}],"resourceVersion":"9","z":{}}, "spec":{"b":12345678901234567890}}"#;
        let stamped = stamp(body, 42).unwrap();
        assert_eq!(
            parse(&stamped),
            json!({"a": 1.50, "metadata": {"name": "x", "resourceVersion": "42", "z": {}}, "spec": {"b": 12345678901234567890_u64}})
        );
        assert!(String::from_utf8_lossy(&stamped).contains("1.50"), "numbers stay as they were written");
        let stamped = stamp(br#"{"metadata":{}}"#, 1).unwrap();
        assert_eq!(parse(&stamped), json!({"metadata": {"resourceVersion": "1"}}));
    }

    #[test]
    fn a_status_is_replaced_or_added() {
        for body in [r#"{"metadata":{},"status":{"phase":"Pending"}}"#, r#"{ "metadata":{}}"#] {
            let new = with_member(body.as_bytes(), "status", r#"{"phase":"Running"}"#).unwrap();
            assert_eq!(parse(&new), json!({"metadata": {}, "status": {"phase": "Running"}}));
            assert_eq!(member(&new, "status").unwrap().get(), r#"{"phase":"Running"}"#);
        }
    }

    #[test]
    fn non_objects_are_refused() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"metadata":7}"#,
            r#"{"metadata":null}"#,
            r#"{"metadata":["u","n","default"]}"#,
            r#"{"metadata":{"\ud800":1}}"#,
            "{\"metadata\":{}",
            "nul",
        ] {
            assert!(stamp(body.as_bytes(), 1).is_err(), "{body}");
            assert!(facts(body.as_bytes()).is_err(), "{body}");
        }
        assert!(with_member(b"{}", "status", "{}").is_err());
    }

    #[test]
    fn reply_is_stored_in_the_form_of_a_delivery() {
        let reply = br#"{"spec":{},"metadata":{"uid":"u","resourceVersion":"7","name":"n","managedFields":[],
            "annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"}},"kind":"Pod"}"#;
        let (body, hash) = trimmed(reply, false).unwrap();
        assert_eq!(body, r#"{"kind":"Pod","metadata":{"name":"n","uid":"u"},"spec":{}}"#);
        assert_eq!(hash, content_hash(&body));
    }

    #[test]
    fn node_in_a_reply_is_trimmed_as_in_a_delivery() {
        let reply = br#"{"metadata":{"name":"n","uid":"u"},"status":{"conditions":[
            {"type":"Ready","lastHeartbeatTime":"2026-01-01T00:00:00Z"},7],"images":[{"names":["i"]}]}}"#;
        let (body, hash) = trimmed(reply, true).unwrap();
        assert_eq!(
            body,
            r#"{"metadata":{"name":"n","uid":"u"},"status":{"conditions":[{"type":"Ready"},7],"images":[{"names":["i"]}]}}"#
        );
        assert_eq!(hash, content_hash(&body));
        assert!(trimmed(br#"{"metadata":{},"status":{"conditions":{}}}"#, true).is_ok());
    }

    #[test]
    fn reply_with_too_many_parts_is_not_parsed() {
        if !alone(module_path!(), "reply_with_too_many_parts_is_not_parsed") {
            return;
        }
        let parts = r#"{"":0},"#.repeat(200_000);
        let reply =
            format!(r#"{{"metadata":{{"name":"n","uid":"u","resourceVersion":"7"}},"parts":[{parts}0]}}"#);
        let growth = Growth::begin();
        assert!(trimmed(reply.as_bytes(), false).is_err());
        assert_eq!(facts(reply.as_bytes()).unwrap().uid, "u", "what decides is read all the same");
        assert!(growth.most() < 8 * 1024 * 1024, "{} bytes for {}", growth.most(), reply.len());
    }

    #[test]
    fn facts_are_read() {
        let facts = facts(br#"{"metadata":{"uid":"u","name":"n","resourceVersion":"5"}}"#).unwrap();
        assert_eq!(
            (facts.uid.as_str(), facts.name.as_str(), facts.resource_version.as_str()),
            ("u", "n", "5")
        );
        assert_eq!(facts.namespace, "");
    }
}
