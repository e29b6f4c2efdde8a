//! Rules about names, and about what an update may change.

use serde_json::Value;

use super::kinds::KindInfo;
use super::object;
use super::status::{ApiStatus, FieldProblem};

const NAME_LEN_MAX: usize = 253;
const LABEL_LEN_MAX: usize = 63;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
     '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
     start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

/// Checks a new object.
///
/// # Errors
/// 422 with all problems.
pub(super) fn new_object(kind: &KindInfo, object: &Value) -> Result<(), ApiStatus> {
    let mut problems = Vec::new();
    let name = object::name(object);
    problems.extend(name_problem(kind, name));
    required(kind, object, &mut problems);
    settle(kind, name, &problems)
}

fn settle(kind: &KindInfo, name: &str, problems: &[FieldProblem]) -> Result<(), ApiStatus> {
    if problems.is_empty() { Ok(()) } else { Err(ApiStatus::invalid(kind, name, problems)) }
}

fn name_problem(kind: &KindInfo, name: &str) -> Option<FieldProblem> {
    let field = "metadata.name";
    let invalid = |why: &str| Some(FieldProblem::invalid(field, &name.into(), why));
    if name.is_empty() {
        return Some(FieldProblem::required(field, "name or generateName is required"));
    }
    let any_segment = kind.key.group == "rbac.authorization.k8s.io";
    if any_segment {
        let bad = name == "." || name == ".." || name.contains(['/', '%']);
        return if bad { invalid("may not be '.', '..' or contain '/' or '%'") } else { None };
    }
    let is_label = matches!(kind.key.resource.as_str(), "namespaces" | "services");
    let max = if is_label { LABEL_LEN_MAX } else { NAME_LEN_MAX };
    if name.len() > max {
        return invalid(&format!("must be no more than {max} bytes"));
    }
    let of_label = |part: &str| {
        let inner = part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        inner && !part.is_empty() && !part.starts_with('-') && !part.ends_with('-')
    };
    match is_label {
        true if !of_label(name) => invalid(LABEL),
        false if !name.split('.').all(of_label) => invalid(SUBDOMAIN),
        _ => None,
    }
}

/// Fields that a kind cannot do without.
fn required(kind: &KindInfo, object: &Value, problems: &mut Vec<FieldProblem>) {
    let spec = &object["spec"];
    match (kind.key.group.as_str(), kind.key.resource.as_str()) {
        ("", "pods") if spec["containers"].as_array().is_none_or(Vec::is_empty) => {
            problems.push(FieldProblem::required("spec.containers", ""));
        }
        ("apps", "deployments" | "statefulsets" | "daemonsets" | "replicasets") => {
            let selector = &spec["selector"]["matchLabels"];
            let labels = &spec["template"]["metadata"]["labels"];
            if !spec["selector"].is_object() {
                problems.push(FieldProblem::required("spec.selector", ""));
            } else if selector
                .as_object()
                .into_iter()
                .flatten()
                .any(|(key, value)| labels.get(key) != Some(value))
            {
                let detail = "`selector` does not match template `labels`";
                problems.push(FieldProblem::invalid("spec.template.metadata.labels", labels, detail));
            }
            if spec["template"]["spec"]["containers"].as_array().is_none_or(Vec::is_empty) {
                problems.push(FieldProblem::required("spec.template.spec.containers", ""));
            }
        }
        ("", "services")
            if spec["clusterIP"] != "None"
                && spec["type"] != "ExternalName"
                && spec["ports"].as_array().is_none_or(Vec::is_empty) =>
        {
            problems.push(FieldProblem::required("spec.ports", ""));
        }
        _ => {}
    }
}

/// Fields of a StatefulSet's spec that an update may change.
const OF_SETS: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

/// Fields of a pod's spec that an update may change.
const OF_PODS: [&str; 6] = [
    "containers",
    "initContainers",
    "activeDeadlineSeconds",
    "tolerations",
    "terminationGracePeriodSeconds",
    "ephemeralContainers",
];

/// Checks an update.
///
/// # Errors
/// 422 with all problems.
pub(super) fn change(kind: &KindInfo, old: &Value, new: &Value) -> Result<(), ApiStatus> {
    let mut problems = Vec::new();
    let (before, after) = (&old["spec"], &new["spec"]);
    match (kind.key.group.as_str(), kind.key.resource.as_str()) {
        ("", "configmaps" | "secrets") if old["immutable"] == true => {
            let detail = "field is immutable when `immutable` is set";
            let changed = |field: &&&str| old.get(**field) != new.get(**field);
            let fields = ["immutable", "data", "binaryData"];
            problems
                .extend(fields.iter().filter(changed).map(|field| FieldProblem::forbidden(field, detail)));
        }
        ("", "secrets") if old["type"] != new["type"] => {
            problems.push(FieldProblem::invalid("type", &new["type"], "field is immutable"));
        }
        ("apps", "statefulsets") if others_differ(before, after, &OF_SETS) => {
            let detail = format!(
                "updates to statefulset spec for fields other than {} are forbidden",
                quoted(&["replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit"])
                    + ", 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds'"
            );
            problems.push(FieldProblem::forbidden("spec", &detail));
        }
        ("apps", "deployments" | "daemonsets" | "replicasets") if before["selector"] != after["selector"] => {
            problems.push(FieldProblem::invalid("spec.selector", &after["selector"], "field is immutable"));
        }
        ("", "services") if is_set(&before["clusterIP"]) && before["clusterIP"] != after["clusterIP"] => {
            let detail = "may not change once set";
            problems.push(FieldProblem::invalid("spec.clusterIP", &after["clusterIP"], detail));
        }
        ("", "pods") if others_differ(before, after, &OF_PODS) || containers_differ(before, after) => {
            let detail = "pod updates may not change fields other than `spec.containers[*].image`,\
                          `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
                          additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set \
                          to 1 if it was previously negative)";
            problems.push(FieldProblem::forbidden("spec", detail));
        }
        _ => {}
    }
    problems.extend(new_finalizers(old, new));
    settle(kind, object::name(new), &problems)
}

fn is_set(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

fn others_differ(old: &Value, new: &Value, allowed: &[&str]) -> bool {
    let others = |spec: &Value| {
        let mut spec = spec.clone();
        if let Some(members) = spec.as_object_mut() {
            members.retain(|name, _| !allowed.contains(&name.as_str()));
        }
        spec
    };
    others(old) != others(new)
}

/// Whether anything but the images of the containers differs.
fn containers_differ(old: &Value, new: &Value) -> bool {
    let without_images = |spec: &Value, name: &str| {
        let mut list = spec[name].clone();
        for container in list.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            container.remove("image");
        }
        list
    };
    ["containers", "initContainers"].iter().any(|name| without_images(old, name) != without_images(new, name))
}

/// An object that is being deleted gets no further finalizers.
fn new_finalizers(old: &Value, new: &Value) -> Option<FieldProblem> {
    if !object::is_being_deleted(old) {
        return None;
    }
    let list = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let known = list(old);
    let added: Vec<String> =
        list(new).iter().filter(|one| !known.contains(one)).map(Value::to_string).collect();
    if added.is_empty() {
        return None;
    }
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        added.join(", ")
    );
    Some(FieldProblem::forbidden("metadata.finalizers", &detail))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::kinds::built_in;
    use super::*;

    fn kind(name: &str) -> KindInfo {
        built_in().find(|kind| kind.kind == name).expect("a kind")
    }

    fn is_name(of: &str, name: &str) -> bool {
        name_problem(&kind(of), name).is_none()
    }

    #[test]
    fn names_are_what_their_kind_allows() {
        assert!(is_name("ConfigMap", "kube-root-ca.crt") && is_name("Namespace", "a-1"));
        assert!(is_name("ClusterRole", "system:a b") && !is_name("ClusterRole", "a/b"));
        for bad in ["", "A", "a_b", "-a", "a.", "a..b", &"x".repeat(254)] {
            assert!(!is_name("ConfigMap", bad), "{bad}");
        }
        assert!(!is_name("Namespace", "a.b") && !is_name("Service", &"x".repeat(64)));
    }

    #[test]
    fn what_must_not_change_does_not() {
        let check = |of: &str, old: Value, new: Value| change(&kind(of), &old, &new).is_ok();
        let map = |data: &str| json!({"immutable": true, "data": {"a": data}});
        assert!(check("ConfigMap", map("1"), map("1")));
        assert!(!check("ConfigMap", map("1"), map("2")));
        let set =
            |replicas: u64, service: &str| json!({"spec": {"replicas": replicas, "serviceName": service}});
        assert!(check("StatefulSet", set(1, "a"), set(2, "a")));
        assert!(!check("StatefulSet", set(1, "a"), set(1, "b")));
        let pod = |image: &str, node: &str| {
            let container = json!({"name": "c", "image": image});
            json!({"spec": {"nodeName": node, "containers": [container]}})
        };
        assert!(check("Pod", pod("1", "n"), pod("2", "n")));
        assert!(!check("Pod", pod("1", "n"), pod("1", "m")));
        let deleted =
            |finalizers: Value| json!({"metadata": {"deletionTimestamp": "t", "finalizers": finalizers}});
        assert!(check("ConfigMap", deleted(json!(["a", "b"])), deleted(json!(["a"]))));
        assert!(!check("ConfigMap", deleted(json!(["a"])), deleted(json!(["a", "b"]))));
    }
}
