use std::sync::Arc;

use serde_json::json;
use tombolo_apicore::admission::Warnings;
use tombolo_apicore::auth::Identity;
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::memory::MemoryStore;
use tombolo_proto::object::Resource;

use super::*;
use crate::nodes::NODES_GROUP;
use crate::objects::v1;

/// The answer to a write of node `a`: whether it may, or the reason of the refusal.
fn write(
    resource: &Resource,
    namespace: &str,
    mut new: Option<Value>,
    old: Option<&Value>,
) -> Result<(), String> {
    let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
    let kind = Arc::clone(tombolo_catalog::kinds().get(resource).unwrap());
    let attributes = Attributes {
        identity: Identity::new("system:node:a", &[NODES_GROUP]),
        group: resource.group.to_string(),
        version: resource.version.to_string(),
        resource: resource.name.to_string(),
        namespace: namespace.to_owned(),
        is_resource: true,
        ..Attributes::default()
    };
    let operation = match (&new, old) {
        (Some(_), None) => Operation::Create,
        (Some(_), Some(_)) => Operation::Update,
        (None, _) => Operation::Delete,
    };
    let name = text(new.as_ref().or(old).unwrap(), "/metadata/name").to_owned();
    let request = AdmissionRequest {
        attributes: &attributes,
        operation,
        kind: &kind,
        namespace,
        name: &name,
        object: new.as_mut(),
        old,
        dry_run: false,
        warnings: Warnings::default(),
    };
    admit(&objects, &request).map_err(|error| error.message)
}

#[test]
fn node_creates_and_deletes_only_its_own_slices() {
    let slices = v1("resource.k8s.io", "resourceslices");
    let slice = |spec: Value| json!({"metadata": {"name": "one"}, "spec": spec});
    let own = slice(json!({"nodeName": "a"}));
    assert_eq!(write(&slices, "", Some(own.clone()), None), Ok(()));
    assert_eq!(write(&slices, "", None, Some(&own)), Ok(()));
    for other in [json!({"nodeName": "b"}), json!({"allNodes": true})].map(slice) {
        for (verb, outcome) in [
            ("create", write(&slices, "", Some(other.clone()), None)),
            ("delete", write(&slices, "", None, Some(&other))),
        ] {
            let why = outcome.unwrap_err();
            let expected =
                format!("can only {verb} ResourceSlice with the same NodeName as the requesting node");
            assert!(why.ends_with(&expected), "{other}: {why}");
        }
    }
    // Which slices a node may update is decided by the authorizer, and nobody may change their node.
    assert_eq!(write(&slices, "", Some(own.clone()), Some(&own)), Ok(()));
}

#[test]
fn node_writes_only_its_own_lease_and_csi_node() {
    let named = |name: &str| json!({"metadata": {"name": name}});
    for (resource, namespace, foreign) in [
        (v1("coordination.k8s.io", "leases"), "kube-node-lease", "default"),
        (v1("storage.k8s.io", "csinodes"), "", ""),
    ] {
        let (own, other) = (named("a"), named("b"));
        for (new, old) in [(Some(own.clone()), None), (Some(own.clone()), Some(&own)), (None, Some(&own))] {
            assert_eq!(write(&resource, namespace, new, old), Ok(()), "{resource}");
        }
        for (new, old) in
            [(Some(other.clone()), None), (Some(other.clone()), Some(&other)), (None, Some(&other))]
        {
            let why = write(&resource, namespace, new, old).unwrap_err();
            assert!(why.contains("with the same name as the requesting node"), "{resource}: {why}");
        }
        if !foreign.is_empty() {
            let why = write(&resource, foreign, Some(own), None).unwrap_err();
            assert!(why.contains("system namespace"), "{resource}: {why}");
        }
    }
}
