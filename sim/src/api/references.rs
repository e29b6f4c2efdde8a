//! The objects that a pod refers to, directly and through its claims: what its node may read.

use std::collections::BTreeSet;

use serde_json::Value;

use super::kinds::KindKey;
use super::object::{namespace, text};
use super::storage::ObjectStorage;

/// An object by its kind and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Referenced {
    resource: String,
    /// Empty for objects of the cluster.
    namespace: String,
    name: String,
}

impl Referenced {
    pub(super) fn new(resource: &str, namespace: &str, name: &str) -> Self {
        let text = str::to_owned;
        Self { resource: text(resource), namespace: text(namespace), name: text(name) }
    }
}

/// Fields that refer to an object by name: path below any part of the spec, plural, and the member with the name.
const BY_NAME: [(&str, &str, &str); 10] = [
    ("configMap", "configmaps", "name"),
    ("configMapRef", "configmaps", "name"),
    ("configMapKeyRef", "configmaps", "name"),
    ("secret", "secrets", "secretName"),
    // Of a projected volume.
    ("secret", "secrets", "name"),
    ("secretRef", "secrets", "name"),
    ("secretKeyRef", "secrets", "name"),
    ("nodePublishSecretRef", "secrets", "name"),
    ("azureFile", "secrets", "secretName"),
    ("persistentVolumeClaim", "persistentvolumeclaims", "claimName"),
];

/// Everything that a pod refers to.
pub(super) fn references(storage: &ObjectStorage, pod: &Value) -> BTreeSet<Referenced> {
    let (mut found, own) = (BTreeSet::new(), namespace(pod));
    let spec = &pod["spec"];
    walk(spec, own, &mut found);
    for secret in spec["imagePullSecrets"].as_array().into_iter().flatten() {
        found.insert(Referenced::new("secrets", own, text(secret, "/name")));
    }
    found.insert(Referenced::new("serviceaccounts", own, text(spec, "/serviceAccountName")));
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        if volume["ephemeral"].is_object() {
            let name = format!("{}-{}", text(pod, "/metadata/name"), text(volume, "/name"));
            found.insert(Referenced::new("persistentvolumeclaims", own, &name));
        }
    }
    for claim in spec["resourceClaims"].as_array().into_iter().flatten() {
        found.insert(Referenced::new("resourceclaims", own, text(claim, "/resourceClaimName")));
    }
    let claims: Vec<Referenced> =
        found.iter().filter(|one| one.resource == "persistentvolumeclaims").cloned().collect();
    for claim in claims {
        volume_of(storage, &claim, &mut found);
    }
    found
}

fn walk(value: &Value, namespace: &str, found: &mut BTreeSet<Referenced>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(item, namespace, found)),
        Value::Object(members) => {
            for (field, member) in members {
                for (_, resource, name) in BY_NAME.iter().filter(|(known, ..)| known == field) {
                    if let Some(name) = member.get(*name).and_then(Value::as_str) {
                        found.insert(Referenced::new(resource, namespace, name));
                    }
                }
                walk(member, namespace, found);
            }
        }
        _ => {}
    }
}

/// The volume that is bound to a claim, and the Secrets that the volume needs.
fn volume_of(storage: &ObjectStorage, claim: &Referenced, found: &mut BTreeSet<Referenced>) {
    for (_, volume) in storage.all(&KindKey::new("", "persistentvolumes")) {
        let reference = &volume["spec"]["claimRef"];
        if text(reference, "/name") != claim.name || text(reference, "/namespace") != claim.namespace {
            continue;
        }
        found.insert(Referenced::new("persistentvolumes", "", text(volume, "/metadata/name")));
        for source in volume["spec"].as_object().into_iter().flatten().map(|(_, source)| source) {
            for field in ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef", "secretRef"] {
                let secret = &source[field];
                if let Some(name) = secret["name"].as_str() {
                    let place = secret["namespace"].as_str().unwrap_or(&claim.namespace);
                    found.insert(Referenced::new("secrets", place, name));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::super::storage::WriteStamp;
    use super::*;

    #[test]
    fn what_a_pod_mentions_is_found_also_through_its_claims() {
        let mut storage = ObjectStorage::default();
        let stamp = WriteStamp { caller: "c", at: Duration::ZERO };
        let volume = json!({
            "metadata": {"name": "pv"},
            "spec": {"claimRef": {"namespace": "d", "name": "claim"},
                     "csi": {"nodeStageSecretRef": {"namespace": "csi", "name": "stage"}}},
        });
        storage.put(&KindKey::new("", "persistentvolumes"), "pv", volume, stamp);
        let pod = json!({"metadata": {"namespace": "d", "name": "p"}, "spec": {
            "serviceAccountName": "sa", "imagePullSecrets": [{"name": "pull"}],
            "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "from"}}]}],
            "containers": [{"name": "c", "env": [
                {"name": "E", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}},
            ]}],
            "volumes": [
                {"name": "a", "secret": {"secretName": "whole"}},
                {"name": "b", "projected": {"sources": [{"secret": {"name": "part"}}, {"configMap": {"name": "ca"}}]}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "claim"}}, {"name": "e", "ephemeral": {}},
            ],
        }});
        let found = references(&storage, &pod);
        for (resource, namespace, name) in [
            ("serviceaccounts", "d", "sa"),
            ("secrets", "d", "pull"),
            ("configmaps", "d", "from"),
            ("secrets", "d", "key"),
            ("secrets", "d", "whole"),
            ("secrets", "d", "part"),
            ("configmaps", "d", "ca"),
            ("persistentvolumeclaims", "d", "claim"),
            ("persistentvolumeclaims", "d", "p-e"),
            ("persistentvolumes", "", "pv"),
            ("secrets", "csi", "stage"),
        ] {
            assert!(found.contains(&Referenced::new(resource, namespace, name)), "{resource} {name}");
        }
        assert_eq!(found.len(), 11, "{found:?}");
    }
}
