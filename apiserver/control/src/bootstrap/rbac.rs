//! The default roles and bindings. Those of kube-apiserver are in `data/bootstrap-rbac.jsonl`, as `cargo xtask facts`
//! recorded them.

use serde_json::Value;

use super::{failed, table};
use crate::authz::rules::Rule;
use crate::error::EmbeddedError;
use crate::objects::{Edit, Objects, text};

const TABLE: &str = concat!(
    include_str!("../../data/bootstrap-rbac.jsonl"),
    // What a cluster with cloudcore has beside these: the role of deploy/cloudcore/30-edge-network.yaml.
    include_str!("../../data/edge-network.jsonl"),
);

/// Annotation of objects whose rules and subjects are restored at each start.
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// The rules that every node has: those of the ClusterRole `system:node`.
pub(crate) fn node_rules() -> Vec<Rule> {
    let node = table(TABLE).find(|(_, role)| role["metadata"]["name"] == "system:node");
    node.map(|(_, role)| Rule::all_of(&role)).unwrap_or_default()
}

/// Creates missing objects and restores lost rules and subjects.
pub(super) async fn ensure(objects: &Objects) -> Result<(), EmbeddedError> {
    for (resource, wanted) in table(TABLE) {
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
        table(TABLE).find(|(_, object)| object["metadata"]["name"] == name).unwrap().1
    }

    #[test]
    fn every_object_of_the_table_is_read() {
        let count = |plural: &str| table(TABLE).filter(|(resource, _)| &*resource.name == plural).count();
        assert_eq!((count("clusterroles"), count("clusterrolebindings")), (70, 51));
        assert_eq!((count("roles"), count("rolebindings")), (7, 7));
        assert_eq!(table(TABLE).count(), 135);
    }

    #[test]
    fn nodes_may_read_services_but_not_secrets_of_all() {
        let rules = node_rules();
        assert!(rules.iter().any(|rule| rule.resources.contains(&"services".to_owned())));
        assert!(rules.len() > 20);
    }

    #[test]
    fn the_role_of_the_edge_network_is_that_of_its_manifest() {
        let manifest = include_str!("../../../../deploy/cloudcore/30-edge-network.yaml");
        let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
        let role = documents.iter().find(|document| document["kind"] == "ClusterRole").unwrap();
        assert_eq!(named(text(role, "/metadata/name"))["rules"], role["rules"]);
    }

    #[test]
    fn lost_rules_come_back_and_added_ones_stay() {
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
