//! Labels of a Node object that the node itself must not touch.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Label keys in the Kubernetes domains that a node may set on itself.
const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Label domains that a node may use freely.
const OWN_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Label domain that a node may never use.
const RESTRICTED_DOMAIN: &str = "node-restriction.kubernetes.io";

/// Labels of an object.
pub(super) fn labels(object: &Value) -> Map<String, Value> {
    object.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Changed labels that a node must not touch, sorted and joined.
pub(super) fn forbidden_labels(new: &Value, old: &Value) -> String {
    let (new, old) = (labels(new), labels(old));
    let changed: BTreeSet<&String> =
        new.keys().chain(old.keys()).filter(|key| new.get(*key) != old.get(*key)).collect();
    let forbidden: Vec<&str> =
        changed.into_iter().map(String::as_str).filter(|key| is_forbidden(key)).collect();
    forbidden.join(", ")
}

fn is_forbidden(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |parent: &str| {
        domain == parent || domain.strip_suffix(parent).is_some_and(|prefix| prefix.ends_with('.'))
    };
    if within(RESTRICTED_DOMAIN) {
        return true;
    }
    let of_kubernetes = within("kubernetes.io") || within("k8s.io");
    of_kubernetes && !OWN_LABELS.contains(&key) && !OWN_DOMAINS.into_iter().any(within)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_that_a_node_may_set() {
        for (label, forbidden) in [
            ("app", false),
            ("example.com/x", false),
            ("kubernetes.io/hostname", false),
            ("topology.kubernetes.io/zone", false),
            ("node.kubernetes.io/anything", false),
            ("foo.kubelet.kubernetes.io/x", false),
            ("node-role.kubernetes.io/edge", true),
            ("kubernetes.io/other", true),
            ("foo.k8s.io/x", true),
            ("xk8s.io/x", false),
            ("node-restriction.kubernetes.io/x", true),
            ("sub.node-restriction.kubernetes.io/x", true),
        ] {
            assert_eq!(is_forbidden(label), forbidden, "{label}");
        }
    }

    #[test]
    fn changed_added_and_removed_labels_count() {
        let with = |labels: Value| json!({"metadata": {"labels": labels}});
        let old = with(json!({"node-role.kubernetes.io/edge": "", "a": "1"}));
        assert_eq!(forbidden_labels(&old, &old), "");
        assert_eq!(forbidden_labels(&with(json!({"a": "2"})), &old), "node-role.kubernetes.io/edge");
    }
}
