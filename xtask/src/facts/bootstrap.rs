//! Records the objects that kube-apiserver creates at its start: roles and bindings, priority levels and flow schemas.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Lists with roles and bindings.
pub(super) const RBAC: [&str; 4] = [
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
];

/// Lists with priority levels and flow schemas.
pub(super) const FLOWS: [&str; 2] = [
    "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
];

/// Fields of the metadata that the server sets.
const SET_BY_SERVER: [&str; 4] = ["creationTimestamp", "managedFields", "resourceVersion", "uid"];

/// The file as text: for each list, its objects by namespace and name. `get` returns the list at a path.
pub(super) fn table(paths: &[&str], get: impl Fn(&str) -> Result<Value>) -> Result<String> {
    let mut out = String::new();
    for path in paths {
        let list = get(path)?;
        let items = list["items"].as_array().with_context(|| format!("{path} is not a list"))?;
        let mut objects: Vec<Value> =
            items.iter().filter(|object| is_default(object)).map(|object| cleaned(object, &list)).collect();
        objects.sort_by_key(|object| ["namespace", "name"].map(|part| object["metadata"][part].to_string()));
        for object in objects {
            writeln!(out, "{}", in_lines(&object))?;
        }
    }
    Ok(out)
}

/// Whether the server created an object, and not a user.
fn is_default(object: &Value) -> bool {
    let metadata = &object["metadata"];
    metadata["labels"]["kubernetes.io/bootstrapping"] == "rbac-defaults"
        || metadata["annotations"]["apf.kubernetes.io/autoupdate-spec"].is_string()
}

/// An object of a list as it was created: without server-set metadata, without status, and without the rules that a
/// controller aggregates.
fn cleaned(object: &Value, list: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = list["apiVersion"].clone();
    object["kind"] = list["kind"].as_str().unwrap_or_default().trim_end_matches("List").into();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|name, _| !SET_BY_SERVER.contains(&name.as_str()));
        if let Some(generation) = metadata.get_mut("generation") {
            *generation = json!(1);
        }
    }
    if object.get("aggregationRule").is_some() {
        object["rules"] = json!([]);
    }
    if object.get("status").is_some() {
        object["status"] = json!({});
    }
    object
}

/// An object as JSON in which each item of a list of objects begins a line, so that a diff shows which item changed.
fn in_lines(object: &Value) -> String {
    object.to_string().replace(":[{", ":[\n {").replace("},{", "},\n {")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(kind: &str, items: &[Value]) -> Value {
        json!({"apiVersion": "g/v1", "kind": kind, "metadata": {"resourceVersion": "9"}, "items": items})
    }

    #[test]
    fn defaults_are_recorded_by_name_without_what_the_server_sets() {
        let role = |name: &str, label: &str| {
            json!({"metadata": {
                "name": name, "uid": "u", "resourceVersion": "7", "creationTimestamp": "t",
                "managedFields": [{}], "labels": {"kubernetes.io/bootstrapping": label},
            }, "rules": [{"verbs": ["get"]}, {"verbs": ["list"]}]})
        };
        let mut aggregated = role("c", "rbac-defaults");
        aggregated["aggregationRule"] = json!({});
        let roles = [role("b", "rbac-defaults"), role("own", "none"), aggregated, role("a", "rbac-defaults")];
        let text = table(&["/roles"], |_| Ok(list("RoleList", &roles))).unwrap();
        let rules = "\"rules\":[\n {\"verbs\":[\"get\"]},\n {\"verbs\":[\"list\"]}]}\n";
        let head = |name: &str| {
            let labels = r#""labels":{"kubernetes.io/bootstrapping":"rbac-defaults"}"#;
            format!(r#""apiVersion":"g/v1","kind":"Role","metadata":{{{labels},"name":"{name}"}},"#)
        };
        let plain = |name: &str| format!("{{{}{rules}", head(name));
        let last = format!("{{\"aggregationRule\":{{}},{}\"rules\":[]}}\n", head("c"));
        assert_eq!(text, format!("{}{}{last}", plain("a"), plain("b")));
    }

    #[test]
    fn statuses_and_generations_are_those_of_new_objects() {
        let schema = json!({"metadata": {
            "name": "s", "generation": 3, "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"},
        }, "spec": {}, "status": {"conditions": [{}]}});
        let recorded = cleaned(&schema, &list("FlowSchemaList", &[]));
        assert_eq!((&recorded["metadata"]["generation"], &recorded["status"]), (&json!(1), &json!({})));
        assert_eq!(recorded["kind"], "FlowSchema");
        assert!(is_default(&schema) && !is_default(&json!({"metadata": {"name": "own"}})));
    }
}
