//! Rights by the stored roles and bindings (Kubernetes, "Using RBAC Authorization").

use std::sync::Arc;

use serde_json::Value;

use super::kinds::KindKey;
use super::rights::{ApiUser, AskedRight};
use super::storage::ObjectStorage;

const GROUP: &str = "rbac.authorization.k8s.io";

fn kind(resource: &str) -> KindKey {
    KindKey::new(GROUP, resource)
}

/// Whether a stored role grants this.
pub(super) fn allows(storage: &ObjectStorage, user: &ApiUser, asked: &AskedRight) -> bool {
    let cluster = storage.all(&kind("clusterrolebindings")).map(|(_, binding)| (binding, ""));
    let of_namespace = storage.all(&kind("rolebindings")).map(|(_, binding)| {
        let namespace = binding["metadata"]["namespace"].as_str().unwrap_or_default();
        (binding, namespace)
    });
    let of_namespace =
        of_namespace.filter(|(_, namespace)| !asked.namespace.is_empty() && *namespace == asked.namespace);
    cluster.chain(of_namespace).any(|(binding, namespace)| {
        list(&binding["subjects"]).any(|subject| is_subject(user, subject, namespace))
            && role(storage, binding, namespace)
                .is_some_and(|role| list(&role["rules"]).any(|rule| covers(rule, asked)))
    })
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn role<'s>(storage: &'s ObjectStorage, binding: &Value, namespace: &str) -> Option<&'s Arc<Value>> {
    let reference = &binding["roleRef"];
    let name = reference["name"].as_str()?;
    match reference["kind"].as_str()? {
        "ClusterRole" => storage.get(&kind("clusterroles"), name),
        _ => storage.get(&kind("roles"), &format!("{namespace}/{name}")),
    }
}

fn is_subject(user: &ApiUser, subject: &Value, namespace: &str) -> bool {
    let name = subject["name"].as_str().unwrap_or_default();
    match subject["kind"].as_str() {
        Some("User") => user.name == name,
        Some("Group") => user.groups.contains(name),
        Some("ServiceAccount") => {
            let namespace = subject["namespace"].as_str().unwrap_or(namespace);
            user.name == format!("system:serviceaccount:{namespace}:{name}")
        }
        _ => false,
    }
}

fn covers(rule: &Value, asked: &AskedRight) -> bool {
    let one_of = |part: &str, value: &str| list(&rule[part]).any(|one| one == "*" || one == value);
    let resource = asked.qualified();
    let of_all = !asked.subresource.is_empty()
        && list(&rule["resources"]).any(|one| *one == format!("*/{}", asked.subresource));
    let mut names = list(&rule["resourceNames"]).peekable();
    let named = names.peek().is_none() || names.any(|name| *name == asked.name);
    one_of("verbs", &asked.verb)
        && one_of("apiGroups", &asked.group)
        && (one_of("resources", &resource) || of_all)
        && named
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::super::storage::WriteStamp;
    use super::*;

    #[test]
    fn stored_roles_grant_what_they_say_where_they_are_bound() {
        let mut storage = ObjectStorage::default();
        let mut put = |resource: &str, place: &str, mut object: Value| {
            let (namespace, name) = place.split_once('/').unwrap_or(("", place));
            object["metadata"] = json!({"namespace": namespace, "name": name});
            let stamp = WriteStamp { caller: "c", at: Duration::ZERO };
            storage.put(&kind(resource), place, object, stamp);
        };
        let rules = json!([
            {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"]},
            {"verbs": ["*"], "apiGroups": ["apps"], "resources": ["*/status"]},
        ]);
        put("clusterroles", "reader", json!({"rules": rules}));
        put(
            "clusterrolebindings",
            "all",
            json!({
                "subjects": [{"kind": "Group", "name": "g"}], "roleRef": {"kind": "ClusterRole", "name": "reader"},
            }),
        );
        put(
            "roles",
            "d/own",
            json!({"rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}]}),
        );
        put(
            "rolebindings",
            "d/own",
            json!({
                "subjects": [{"kind": "ServiceAccount", "name": "sa"}], "roleRef": {"kind": "Role", "name": "own"},
            }),
        );
        let asked = |verb: &str, group: &str, resource: &str, namespace: &str, name: &str| {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            AskedRight {
                verb: verb.to_owned(),
                group: group.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                field_selector: String::new(),
            }
        };
        let mut member = ApiUser::named("u");
        assert!(!allows(&storage, &member, &asked("get", "", "configmaps", "d", "a")));
        member.groups.insert("g".to_owned());
        assert!(allows(&storage, &member, &asked("get", "", "configmaps", "d", "a")));
        assert!(!allows(&storage, &member, &asked("get", "", "configmaps", "d", "b")));
        assert!(allows(&storage, &member, &asked("patch", "apps", "deployments/status", "d", "x")));
        assert!(!allows(&storage, &member, &asked("patch", "apps", "deployments", "d", "x")));
        let account = ApiUser::named("system:serviceaccount:d:sa");
        assert!(allows(&storage, &account, &asked("list", "", "pods", "d", "")));
        assert!(!allows(&storage, &account, &asked("list", "", "pods", "", "")));
        assert!(!allows(&storage, &account, &asked("list", "", "pods", "e", "")));
    }
}
