//! Labels of a Node that its own identity may not set (docs/reference/kubernetes.md#noderestriction).

use serde_json::{Map, Value, json};

use crate::edgecontroller::index::nodes::EDGE_LABEL;

/// Labels that cloudcore sets for a node that registers. All other labels in the Kubernetes domains are dropped, above
/// all `node-restriction.kubernetes.io/*`, which exists so that nodes cannot set it.
const GRANTED: [&str; 2] = [EDGE_LABEL, "node-role.kubernetes.io/agent"];

/// Labels in the Kubernetes domains that NodeRestriction lets a node set itself.
const OWN: [&str; 13] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/instance-type",
];

/// Domains in which NodeRestriction lets a node set any label.
const OWN_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// The label of every edge node.
pub(super) fn edge() -> Value {
    json!({EDGE_LABEL: ""})
}

/// Removes the labels from a Node object that a node may not set; returns those that cloudcore adds in their place.
pub(super) fn split(node: &mut Value) -> Map<String, Value> {
    let mut granted = Map::new();
    let Some(labels) = node.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) else {
        return granted;
    };
    let all = std::mem::take(labels);
    for (key, value) in all {
        if GRANTED.contains(&key.as_str()) {
            granted.insert(key, value);
        } else if may_set(&key) {
            labels.insert(key, value);
        }
    }
    granted
}

fn may_set(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within =
        |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|d| d.ends_with('.'));
    let reserved = within("kubernetes.io") || within("k8s.io");
    !reserved || OWN.contains(&key) || OWN_DOMAINS.into_iter().any(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_kept_granted_or_dropped() {
        let mut node = json!({"metadata": {"labels": {
            "kubernetes.io/hostname": "n", "topology.kubernetes.io/zone": "z", "shop": "7", "example.com/a": "b",
            "node.kubernetes.io/x": "y", "evilkubernetes.io/x": "y",
            "node-role.kubernetes.io/edge": "", "node-role.kubernetes.io/agent": "",
            "node-role.kubernetes.io/control-plane": "", "node-restriction.kubernetes.io/team": "a",
            "x.node-restriction.kubernetes.io/team": "a", "foo.k8s.io/x": "y", "kubernetes.io/other": "x"
        }}});
        let granted = split(&mut node);
        let keys: Vec<_> = granted.keys().map(String::as_str).collect();
        assert_eq!(keys, ["node-role.kubernetes.io/agent", "node-role.kubernetes.io/edge"]);
        let kept = json!({
            "kubernetes.io/hostname": "n", "topology.kubernetes.io/zone": "z", "shop": "7", "example.com/a": "b",
            "node.kubernetes.io/x": "y", "evilkubernetes.io/x": "y"
        });
        assert_eq!(node["metadata"]["labels"], kept);
    }

    #[test]
    fn node_without_labels_gets_no_labels() {
        assert!(split(&mut json!({"metadata": {}})).is_empty());
        assert!(split(&mut json!(null)).is_empty());
    }
}
