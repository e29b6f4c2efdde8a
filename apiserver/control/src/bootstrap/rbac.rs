//! The default roles and bindings. Those of kube-apiserver are in `data/bootstrap-rbac.jsonl`, as `cargo xtask facts`
//! recorded them; those of a cluster with cloudcore are read from its manifest.

use serde_json::Value;
use tombolo_proto::object::Resource;

use super::{failed, resource_of, table};
use crate::authz::rules::Rule;
use crate::error::EmbeddedError;
use crate::objects::{Edit, Objects, text};

const TABLE: &str = include_str!("../../data/bootstrap-rbac.jsonl");

/// The role of the edge nodes and its binding.
const EDGE_NETWORK: &str = include_str!("../../../../deploy/cloudcore/30-edge-network.yaml");

/// Annotation of objects whose rules and subjects are restored at each start.
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// Label of the objects that the server itself creates.
const BOOTSTRAPPING: &str = "kubernetes.io/bootstrapping";

/// All default roles and bindings.
fn defaults() -> impl Iterator<Item = (Resource, Value)> {
    table(TABLE).chain(edge_network())
}

/// The objects of the manifest, marked as the server's own. Only groups stay bound: a cloudcore beside this server
/// uses the rights of its kubeconfig, not of a ServiceAccount.
fn edge_network() -> impl Iterator<Item = (Resource, Value)> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(EDGE_NETWORK).expect("tests read the manifest");
    documents.into_iter().map(|mut object| {
        let metadata = &mut object["metadata"];
        metadata["annotations"][AUTO_UPDATE] = "true".into();
        metadata["labels"][BOOTSTRAPPING] = "rbac-defaults".into();
        if let Some(subjects) = object.get_mut("subjects").and_then(Value::as_array_mut) {
            subjects.retain(|subject| subject["kind"] == "Group");
        }
        (resource_of(&object), object)
    })
}

/// The rules that every node has: those of the ClusterRole `system:node`.
pub(crate) fn node_rules() -> Vec<Rule> {
    let node = table(TABLE).find(|(_, role)| role["metadata"]["name"] == "system:node");
    node.map(|(_, role)| Rule::all_of(&role)).unwrap_or_default()
}

/// Creates missing objects and restores lost rules and subjects.
pub(super) async fn ensure(objects: &Objects) -> Result<(), EmbeddedError> {
    for (resource, wanted) in defaults() {
        let (namespace, name) = (text(&wanted, "/metadata/namespace"), text(&wanted, "/metadata/name"));
        let object = format!("{resource} {name}");
        let report = |e| failed(&object, &e);
        let Some(existing) = objects.get(resource.clone(), namespace, name) else {
            objects.create(resource, wanted).await.map_err(report)?;
            continue;
        };
        let restore = objects.update(&existing.key, |object| {
            if restored(&mut object.value, &wanted) { Edit::Put } else { Edit::Keep }
        });
        restore.await.map_err(report)?;
    }
    Ok(())
}

/// Adds missing rules or subjects to a stored object with the annotation. Returns whether anything was missing.
fn restored(stored: &mut Value, wanted: &Value) -> bool {
    let automatic = stored["metadata"]["annotations"][AUTO_UPDATE] == "true";
    // The aggregation controller sets the rules of aggregated roles.
    if !automatic || stored.get("aggregationRule").is_some() {
        return false;
    }
    let list = if wanted.get("roleRef").is_some() { "subjects" } else { "rules" };
    let wanted = wanted[list].as_array().cloned().unwrap_or_default();
    let present = stored[list].as_array().cloned().unwrap_or_default();
    let missing: Vec<Value> = wanted.into_iter().filter(|item| !present.contains(item)).collect();
    if missing.is_empty() {
        return false;
    }
    stored[list] = Value::Array(present.into_iter().chain(missing).collect());
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(name: &str) -> Value {
        defaults().find(|(_, object)| object["metadata"]["name"] == name).unwrap().1
    }

    #[test]
    fn every_object_of_the_table_is_read() {
        let count = |plural: &str| defaults().filter(|(resource, _)| &*resource.name == plural).count();
        assert_eq!((count("clusterroles"), count("clusterrolebindings")), (70, 51));
        assert_eq!((count("roles"), count("rolebindings")), (7, 7));
        assert_eq!(defaults().count(), 135);
    }

    #[test]
    fn nodes_may_read_services_but_not_secrets_of_all() {
        let rules = node_rules();
        assert!(rules.iter().any(|rule| rule.resources.contains(&"services".to_owned())));
        assert!(rules.len() > 20);
    }

    #[test]
    fn the_edge_network_is_restored_and_bound_to_its_group_alone() {
        let all: Vec<(Resource, Value)> = edge_network().collect();
        let [(_, role), (_, binding)] = &all[..] else { panic!("{all:?}") };
        for object in [role, binding] {
            let metadata = &object["metadata"];
            assert_eq!(metadata["name"], "tombolo:edge-network");
            assert_eq!(metadata["annotations"], json!({(AUTO_UPDATE): "true"}));
            assert_eq!(metadata["labels"], json!({(BOOTSTRAPPING): "rbac-defaults"}));
        }
        let verbs = ["get", "list", "watch"];
        let slices =
            json!({"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs});
        assert!(role["rules"].as_array().unwrap().contains(&slices));
        let group =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "tombolo:edge-nodes"});
        assert_eq!(binding["subjects"], json!([group]));
    }

    #[test]
    fn lost_rules_are_restored_and_added_ones_stay() {
        let wanted = named("system:basic-user");
        let mut stored = wanted.clone();
        assert!(!restored(&mut stored, &wanted));
        let own = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        stored["rules"] = json!([own]);
        assert!(restored(&mut stored, &wanted));
        assert_eq!(stored["rules"].as_array().unwrap().len(), 3);
        assert_eq!(stored["rules"][0], own);
        stored["metadata"]["annotations"][AUTO_UPDATE] = json!("false");
        stored["rules"] = json!([]);
        assert!(!restored(&mut stored, &wanted));
    }
}
