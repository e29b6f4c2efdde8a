use std::sync::Arc;

use serde_json::json;
use tombolo_apicore::admission::Warnings;
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::memory::MemoryStore;
use tombolo_proto::object::Resource;

use super::*;
use crate::objects::v1;

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

async fn objects(level: &str) -> Objects {
    let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
    let shop = json!({"metadata": {"name": "shop", "labels": {ENFORCE: level}}});
    objects.create(core("namespaces"), shop).await.unwrap();
    objects
}

/// The warnings, or the message of the refusal.
fn decide(
    objects: &Objects,
    resource: &Resource,
    namespace: &str,
    mut object: Value,
    old: Option<&Value>,
) -> Result<Vec<String>, String> {
    let kind: Arc<KindInfo> = Arc::clone(tombolo_catalog::kinds().get(resource).unwrap());
    let attributes = Attributes {
        group: resource.group.to_string(),
        version: resource.version.to_string(),
        resource: resource.name.to_string(),
        namespace: namespace.to_owned(),
        is_resource: true,
        ..Attributes::default()
    };
    let name = text(&object, "/metadata/name").to_owned();
    let request = AdmissionRequest {
        attributes: &attributes,
        operation: if old.is_some() { Operation::Update } else { Operation::Create },
        kind: &kind,
        namespace,
        name: &name,
        object: Some(&mut object),
        old,
        dry_run: false,
        warnings: Warnings::default(),
    };
    admit(objects, &request).map_err(|error| error.message)?;
    Ok(request.warnings.into_vec())
}

fn privileged(name: &str) -> Value {
    let container = json!({"name": "a", "image": "i", "securityContext": {"privileged": true}});
    json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"containers": [container]}})
}

#[tokio::test]
async fn pods_are_refused_and_templates_warned_of() {
    let objects = objects("baseline").await;
    let refused = decide(&objects, &core("pods"), "shop", privileged("p"), None).unwrap_err();
    let words = "privileged (container \"a\" must not set securityContext.privileged=true)";
    assert_eq!(
        refused,
        format!("pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": {words}")
    );
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"template": privileged("")}});
    let warned = decide(&objects, &v1("apps", "deployments"), "shop", deployment, None).unwrap();
    assert_eq!(warned, [format!("would violate PodSecurity \"baseline:latest\": {words}")]);
    let old = privileged("p");
    let mut relabelled = old.clone();
    relabelled["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(decide(&objects, &core("pods"), "shop", relabelled, Some(&old)).unwrap(), [""; 0]);
    assert_eq!(decide(&objects, &core("pods"), "elsewhere", privileged("p"), None).unwrap(), [""; 0]);
}

#[tokio::test]
async fn new_labels_are_checked_against_existing_pods() {
    let objects = objects("privileged").await;
    for name in ["b", "a", "c"] {
        objects.create(core("pods"), privileged(name)).await.unwrap();
    }
    let namespace = |level: &str| json!({"metadata": {"name": "shop", "labels": {ENFORCE: level}}});
    let old = namespace("privileged");
    let update = |level: &str| decide(&objects, &core("namespaces"), "", namespace(level), Some(&old));
    assert_eq!(update("privileged").unwrap(), [""; 0]);
    let expected = [
        "existing pods in namespace \"shop\" violate the new PodSecurity enforce level \"baseline:latest\"",
        "a (and 2 other pods): privileged",
    ];
    assert_eq!(update("baseline").unwrap(), expected);
    assert!(update("strict").unwrap_err().contains("must be one of privileged, baseline, restricted"));
}
