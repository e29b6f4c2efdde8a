//! What is kept of a child: the parts that its grid needs in each pass, and a hash of everything that a manifest can
//! set. The rest is as large as the template, once for each unit.

use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tombolo_grid::labels::GRID_SELECTOR;
use tombolo_grid::reconcile::manifest::APPLIED;
use tombolo_proto::object::ContentHash;

use crate::edgecontroller::trim::hash_of;

/// Longest status that is kept whole, in bytes. Of a longer one only the numbers are kept.
const STATUS_LEN_MAX: usize = 16 * 1024;

/// Numbers in a status that show whether a child works.
const NUMBERS: [&str; 4] = ["observedGeneration", "replicas", "readyReplicas", "updatedReplicas"];

/// Longest text accepted as the digest of a manifest.
const DIGEST_LEN_MAX: usize = 64;

/// Maximum number of a child's field managers that are reported.
const MANAGERS_MAX: usize = 16;

/// A child as it was last seen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Live {
    /// Identity, owner and state of the child: JSON with the field names of the whole object.
    pub(super) part: Value,
    /// Hash of labels, annotations, owners and spec.
    pub(super) hash: ContentHash,
}

impl Live {
    /// Extracts it from an object whose `managedFields` were slimmed.
    pub(super) fn of(child: &DynamicObject) -> Self {
        let meta = &child.metadata;
        let spec = &child.data["spec"];
        let hash = hash_of(&(&meta.labels, &meta.annotations, &meta.owner_references, spec));
        let owners = child.owner_references().iter().filter(|owner| owner.controller == Some(true)).take(1);
        let managers = child.managed_fields().iter().filter_map(|entry| entry.manager.as_deref());
        let managers = managers.take(MANAGERS_MAX).map(|manager| json!({ "manager": manager }));
        let applied = child.annotations().get(APPLIED).filter(|digest| digest.len() <= DIGEST_LEN_MAX);
        let part = json!({
            "metadata": {
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "generation": meta.generation,
                "deletionTimestamp": meta.deletion_timestamp,
                "annotations": {APPLIED: applied},
                "labels": {GRID_SELECTOR: child.labels().get(GRID_SELECTOR)},
                "ownerReferences": owners.collect::<Vec<_>>(),
                "managedFields": managers.collect::<Vec<_>>(),
            },
            "spec": {"replicas": spec["replicas"].as_i64()},
            "status": status_part(&child.data["status"]),
        });
        Self { part, hash }
    }

    /// Whether this manifest was the last one applied to the child. Others may have changed the child since.
    pub(super) fn is_of(&self, manifest: &Value) -> bool {
        let digest = |object: &Value| object["metadata"]["annotations"][APPLIED].clone();
        digest(&self.part) == digest(manifest)
    }

    /// Its UID.
    pub(super) fn uid(&self) -> &str {
        self.part["metadata"]["uid"].as_str().unwrap_or_default()
    }
}

fn status_part(status: &Value) -> Value {
    if status.to_string().len() <= STATUS_LEN_MAX {
        return status.clone();
    }
    let numbers = NUMBERS.iter().map(|name| ((*name).to_owned(), status[*name].as_i64().into()));
    Value::Object(numbers.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(change: impl FnOnce(&mut Value)) -> Live {
        let mut value = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": "web-a", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 2,
                "labels": {GRID_SELECTOR: "web", "other": "x".repeat(1000)}, "annotations": {"a": "x".repeat(1000)},
                "ownerReferences": [{"apiVersion": "v1", "kind": "G", "name": "web", "uid": "g", "controller": true}],
                "managedFields": [{"manager": "somebody"}],
            },
            "spec": {"replicas": 3, "template": {"text": "x".repeat(10_000)}},
            "status": {"readyReplicas": 3},
        });
        change(&mut value);
        Live::of(&serde_json::from_value(value).expect("a child"))
    }

    #[test]
    fn child_is_cached_as_a_hash_that_reveals_manifest_changes() {
        let live = child(|_| {});
        assert!(live.part.to_string().len() < 700, "{}", live.part);
        assert_eq!((live.uid(), &live.part["spec"]["replicas"]), ("u", &json!(3)));
        assert_eq!(live.part["metadata"]["ownerReferences"][0]["uid"], "g");
        assert_eq!(live.part["metadata"]["managedFields"], json!([{"manager": "somebody"}]));
        assert!(live.part["metadata"]["deletionTimestamp"].is_null());
        let quiet = child(|value| {
            value["status"]["readyReplicas"] = 2.into();
            value["metadata"]["resourceVersion"] = "8".into();
        });
        assert_eq!((quiet.hash, &quiet.part["status"]["readyReplicas"]), (live.hash, &json!(2)));
        for pointer in ["/spec/template/text", "/metadata/labels/other", "/metadata/annotations/a"] {
            let other = child(|value| *value.pointer_mut(pointer).expect("a text") = "y".into());
            assert_ne!(other.hash, live.hash, "{pointer}");
        }
        let manifest = json!({"metadata": {"annotations": {APPLIED: "7"}}});
        let own = child(|value| value["metadata"]["annotations"][APPLIED] = "7".into());
        assert!(own.is_of(&manifest) && !live.is_of(&manifest));
        let large = child(|value| value["status"]["conditions"] = json!(["x".repeat(STATUS_LEN_MAX)]));
        assert_eq!(large.part["status"]["readyReplicas"], 3);
        assert!(large.part.to_string().len() < 800);
    }
}
