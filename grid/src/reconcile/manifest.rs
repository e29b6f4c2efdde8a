//! The manifest of a child: exactly what the grid's controller applies.
//!
//! Children are applied with server-side apply: the controller owns exactly the fields of its manifest. So fields that
//! it drops from a manifest are removed, and fields that others have set are kept
//! (docs/reference/superedge.md#what-superedge-overwrites).

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::Grid;
use crate::labels::{child_annotations, child_labels};
use crate::name::ChildKind;

/// Annotation of a child: a digest of the manifest that was last applied. It shows that a field was dropped from the
/// template, which the child itself does not show.
pub const APPLIED: &str = "superedge.io/applied-manifest";

/// Hexadecimal digits of the digest.
const DIGEST_LEN: usize = 16;

/// The manifest of one child. `template` is the spec that its unit uses.
#[must_use]
pub fn manifest(grid: &Grid, name: &str, unit: &str, template: &Value) -> Value {
    let mut spec = without_nulls(template);
    match grid.kind {
        ChildKind::Service => settle_service(&mut spec),
        ChildKind::Deployment | ChildKind::StatefulSet => pin(&mut spec, &grid.spec.key, unit),
    }
    let labels = child_labels(&grid.name, &grid.spec.key, &grid.labels);
    let mut annotations = child_annotations(grid.kind, &grid.spec.key, &grid.annotations);
    annotations.remove(APPLIED);
    let mut manifest = json!({
        "apiVersion": grid.kind.api_version(),
        "kind": grid.kind.kind(),
        "metadata": {
            "name": name,
            "namespace": grid.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "superedge.io/v1",
                "kind": grid.kind.grid_kind(),
                "name": grid.name,
                "uid": grid.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": spec,
    });
    let mut digest = hex::encode(Sha256::digest(manifest.to_string()));
    digest.truncate(DIGEST_LEN);
    manifest["metadata"]["annotations"][APPLIED] = digest.into();
    manifest
}

/// A unit's workload runs on its unit's nodes, whatever else the template requires of nodes.
fn pin(spec: &mut Value, key: &str, unit: &str) {
    if !spec.is_object() {
        return;
    }
    let pod = &mut spec["template"];
    if pod.is_null() {
        *pod = json!({});
    }
    if !pod.is_object() {
        return;
    }
    let pod_spec = &mut pod["spec"];
    if pod_spec.is_null() {
        *pod_spec = json!({});
    }
    let Some(pod_spec) = pod_spec.as_object_mut() else { return };
    let selector = pod_spec.entry("nodeSelector").or_insert_with(|| json!({}));
    if let Some(selector) = selector.as_object_mut() {
        selector.insert(key.to_owned(), unit.into());
    }
}

/// A node port of zero requests any port: it is left out, so that the assigned port is kept. Kubernetes 1.22 removed
/// `topologyKeys` from the API; the annotation replaces it.
fn settle_service(spec: &mut Value) {
    let Some(spec) = spec.as_object_mut() else { return };
    spec.remove("topologyKeys");
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut().filter(|port| port.get("nodePort") == Some(&json!(0))) {
            port.remove("nodePort");
        }
    }
}

/// Members that are null have no meaning: `creationTimestamp: null` of old clients would be applied as a field.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.iter().filter(|(_, member)| !member.is_null());
            Value::Object(
                kept.map(|(name, member)| (name.clone(), without_nulls(member))).collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}
