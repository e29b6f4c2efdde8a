//! The default roles and bindings, from a table of facts (`rbac.txt`).

use serde_json::{Map, Value, json};

use super::failed;
use crate::authz::rbac::GROUP;
use crate::authz::rules::Rule;
use crate::error::EmbeddedError;
use crate::objects::{Edit, Objects, v1};

const TABLE: &str = include_str!("rbac.txt");

/// Prefix of the labels that aggregate rules into `admin`, `edit` and `view`.
const AGGREGATE: &str = "rbac.authorization.k8s.io/";

/// Annotation of objects whose rules and subjects are restored at each start.
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// A role or binding of the table.
struct DefaultRbacObject {
    plural: &'static str,
    value: Value,
    /// Name of the list that the indented lines fill: `rules` or `subjects`.
    list: &'static str,
}

/// The rules that every node has: those of the ClusterRole `system:node`.
pub(crate) fn node_rules() -> Vec<Rule> {
    let node = entries().into_iter().find(|entry| entry.value["metadata"]["name"] == "system:node");
    node.map(|entry| Rule::all_of(&entry.value)).unwrap_or_default()
}

/// Creates missing objects and restores lost rules and subjects.
pub(super) async fn ensure(objects: &Objects) -> Result<(), EmbeddedError> {
    for entry in entries() {
        let resource = v1(GROUP, entry.plural);
        let metadata = &entry.value["metadata"];
        let part = |name: &str| metadata[name].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (part("namespace"), part("name"));
        let report = |e| failed(&format!("{} {name}", entry.plural), &e);
        let Some(existing) = objects.get(resource.clone(), &namespace, &name) else {
            objects.create(resource, entry.value).await.map_err(report)?;
            continue;
        };
        let restore = objects.update(&existing.key, |object| {
            if restored(&mut object.value, &entry) { Edit::Put } else { Edit::Keep }
        });
        restore.await.map_err(report)?;
    }
    Ok(())
}

/// Adds missing rules or subjects to a stored object with the annotation. Returns whether anything was missing.
fn restored(stored: &mut Value, entry: &DefaultRbacObject) -> bool {
    let wants = stored["metadata"]["annotations"][AUTO_UPDATE] == "true";
    // The aggregation controller sets the rules of aggregated roles.
    if !wants || stored.get("aggregationRule").is_some() {
        return false;
    }
    let wanted = entry.value[entry.list].as_array().cloned().unwrap_or_default();
    let present = stored[entry.list].as_array().cloned().unwrap_or_default();
    let missing: Vec<Value> = wanted.into_iter().filter(|item| !present.contains(item)).collect();
    if missing.is_empty() {
        return false;
    }
    stored[entry.list] = Value::Array(present.into_iter().chain(missing).collect());
    true
}

fn entries() -> Vec<DefaultRbacObject> {
    let mut entries: Vec<DefaultRbacObject> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !line.starts_with(' ') {
            entries.extend(entry(&words));
        } else if let Some(entry) = entries.last_mut()
            && let (Some(item), Some(list)) = (item(&words), entry.value[entry.list].as_array_mut())
        {
            list.push(item);
        }
    }
    entries
}

fn entry(words: &[&str]) -> Option<DefaultRbacObject> {
    let [kind, namespace, name, attributes @ ..] = words else { return None };
    let namespaced = *namespace != "-";
    let mut metadata = json!({
        "name": name,
        "annotations": {AUTO_UPDATE: "true"},
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
    });
    if namespaced {
        metadata["namespace"] = json!(namespace);
    }
    let attribute =
        |name: &str| attributes.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    if let Some(label) = attribute("label") {
        metadata["labels"][format!("{AGGREGATE}{label}")] = json!("true");
    }
    let mut value = Map::from_iter([
        ("apiVersion".to_owned(), json!(format!("{GROUP}/v1"))),
        ("metadata".to_owned(), metadata),
    ]);
    let (plural, object_kind, list) = match (*kind, namespaced) {
        ("role", true) => ("roles", "Role", "rules"),
        ("role", false) => ("clusterroles", "ClusterRole", "rules"),
        ("bind", true) => ("rolebindings", "RoleBinding", "subjects"),
        ("bind", false) => ("clusterrolebindings", "ClusterRoleBinding", "subjects"),
        _ => return None,
    };
    value.insert("kind".into(), json!(object_kind));
    value.insert(list.into(), json!([]));
    if let Some(label) = attribute("from") {
        let selector = json!({"matchLabels": {format!("{AGGREGATE}{label}"): "true"}});
        value.insert("aggregationRule".into(), json!({"clusterRoleSelectors": [selector]}));
    }
    for (name, role_kind) in [("role", "Role"), ("clusterrole", "ClusterRole")] {
        if let Some(role) = attribute(name) {
            value.insert("roleRef".into(), json!({"apiGroup": GROUP, "kind": role_kind, "name": role}));
        }
    }
    Some(DefaultRbacObject { plural, value: Value::Object(value), list })
}

/// An indented line: a rule or a subject.
fn item(words: &[&str]) -> Option<Value> {
    let list = |word: &str| {
        word.split(',').map(|item| if item == "core" { "" } else { item }.to_owned()).collect::<Vec<_>>()
    };
    Some(match words {
        ["group", name] => json!({"apiGroup": GROUP, "kind": "Group", "name": name}),
        ["user", name] => json!({"apiGroup": GROUP, "kind": "User", "name": name}),
        ["account", account] => {
            let (namespace, name) = account.split_once('/')?;
            json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
        }
        ["url", paths, verbs] => json!({"nonResourceURLs": list(paths), "verbs": list(verbs)}),
        [groups, resources, verbs] => {
            json!({"apiGroups": list(groups), "resources": list(resources), "verbs": list(verbs)})
        }
        [groups, resources, verbs, names] => json!({
            "apiGroups": list(groups), "resources": list(resources), "verbs": list(verbs), "resourceNames": list(names),
        }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_understood() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let (heads, indented): (Vec<&str>, Vec<&str>) = lines.partition(|line| !line.starts_with(' '));
        let entries = entries();
        assert_eq!(entries.len(), heads.len());
        let items: usize =
            entries.iter().map(|entry| entry.value[entry.list].as_array().unwrap().len()).sum();
        assert_eq!(items, indented.len());
        let count = |plural: &str| entries.iter().filter(|entry| entry.plural == plural).count();
        assert_eq!((count("clusterroles"), count("clusterrolebindings")), (70, 51));
        assert_eq!((count("roles"), count("rolebindings")), (7, 7));
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
        let entry =
            entries().into_iter().find(|entry| entry.value["metadata"]["name"] == role["metadata"]["name"]);
        assert_eq!(entry.unwrap().value["rules"], role["rules"]);
    }

    #[test]
    fn lost_rules_come_back_and_added_ones_stay() {
        let entry = entries()
            .into_iter()
            .find(|entry| entry.value["metadata"]["name"] == "system:basic-user")
            .unwrap();
        let mut stored = entry.value.clone();
        assert!(!restored(&mut stored, &entry));
        let own = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        stored["rules"] = json!([own]);
        assert!(restored(&mut stored, &entry));
        assert_eq!(stored["rules"].as_array().unwrap().len(), 3);
        assert_eq!(stored["rules"][0], own);
        stored["metadata"]["annotations"][AUTO_UPDATE] = json!("false");
        stored["rules"] = json!([]);
        assert!(!restored(&mut stored, &entry));
    }
}
