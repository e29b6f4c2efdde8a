//! What other nodes get of a Node. A node writes most of its Node, and every edge that follows Nodes receives it.

use serde_json::{Map, Value};
use tombolo_proto::Resource;

use crate::kube::{RawObject, resources};

/// Size up to which other nodes receive a Node whole, without its images, in bytes. An ordinary Node has 4 to 12 KiB.
pub(crate) const NODE_FOR_OTHERS_MAX: usize = 32 * 1024;

/// Labels kept in a larger Node: its location and its platform.
const LABELS_KEPT: [&str; 9] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/edge",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Members of `metadata` kept in a Node that is still too large.
const METADATA_KEPT: [&str; 5] = ["name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"];

/// Members of `spec` kept there: a Node may have two ranges.
const SPEC_KEPT: [&str; 3] = ["podCIDR", "podCIDRs", "unschedulable"];

/// Number of addresses kept there.
const ADDRESSES_KEPT: usize = 8;

/// Longest value kept there, in bytes; longer ones are left out.
const VALUE_MAX: usize = 256;

/// Drops the part of a Node that only the node itself needs: the list of images, which is long and changes often. A
/// Node of more than [`NODE_FOR_OTHERS_MAX`] bytes also loses its annotations. If it is still larger, only its
/// identity, pod address ranges, first addresses and well-known labels remain.
#[must_use]
pub fn for_others(resource: &Resource, raw: RawObject) -> RawObject {
    if *resource != resources::nodes() {
        return raw;
    }
    let mut value = raw.into_value();
    for (part, member) in [("status", "images"), ("metadata", "managedFields")] {
        remove(&mut value, part, member);
    }
    if is_large(&value) {
        remove(&mut value, "metadata", "annotations");
    }
    if is_large(&value) {
        value = essence(&value);
    }
    RawObject::new(value)
}

fn remove(value: &mut Value, part: &str, member: &str) {
    if let Some(part) = value.get_mut(part).and_then(Value::as_object_mut) {
        part.remove(member);
    }
}

fn is_large(value: &Value) -> bool {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).is_err() || count.0 > NODE_FOR_OTHERS_MAX
}

/// The remainder of a Node whose labels, taints or status are too large.
fn essence(node: &Value) -> Value {
    let short = |value: &Value| value.to_string().len() <= VALUE_MAX;
    let part = |pointer: &str| node.pointer(pointer).and_then(Value::as_object);
    let some = |members: Option<&Map<String, Value>>, kept: &[&str]| -> Map<String, Value> {
        let members = members.into_iter().flatten();
        let members = members.filter(|(name, value)| kept.contains(&name.as_str()) && short(value));
        members.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let mut metadata = some(part("/metadata"), &METADATA_KEPT);
    metadata.insert("labels".to_owned(), some(part("/metadata/labels"), &LABELS_KEPT).into());
    let addresses = node.pointer("/status/addresses").and_then(Value::as_array).into_iter().flatten();
    let addresses: Vec<_> =
        addresses.filter(|address| short(address)).take(ADDRESSES_KEPT).cloned().collect();
    let mut small = some(node.as_object(), &["kind", "apiVersion"]);
    small.insert("metadata".to_owned(), metadata.into());
    small.insert("spec".to_owned(), some(part("/spec"), &SPEC_KEPT).into());
    small.insert("status".to_owned(), serde_json::json!({ "addresses": addresses }));
    small.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(node: &Value) -> Value {
        for_others(&resources::nodes(), RawObject::new(node.clone())).into_value()
    }

    fn node() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "annotations": {"net/address": "10.0.0.1"},
                "labels": {"kubernetes.io/hostname": "n", "topology.kubernetes.io/zone": "z", "own": "x"}},
            "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "providerID": "p"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}],
                "nodeInfo": {"architecture": "arm64"}}
        })
    }

    fn with(change: &Value) -> Value {
        let mut node = node();
        json_patch::merge(&mut node, change);
        node
    }

    #[test]
    fn only_the_nodes_of_others_lose_their_images() {
        let value = with(&json!({"status": {"images": [{"names": ["x".repeat(NODE_FOR_OTHERS_MAX)]}]}}));
        assert_eq!(shown(&value), node());
        for other in [resources::pods(), Resource::new("example.org", "v1", "nodes")] {
            assert_eq!(for_others(&other, RawObject::new(value.clone())).into_value(), value, "{other}");
        }
        let bare = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
        assert_eq!(shown(&bare), bare);
    }

    #[test]
    fn large_node_annotations_are_not_sent_to_other_nodes() {
        let value = with(&json!({"metadata": {"annotations": {"junk": "x".repeat(1024 * 1024)}}}));
        let mut expected = node();
        remove(&mut expected, "metadata", "annotations");
        assert!(shown(&value) == expected, "all but the annotations stays");
    }

    #[test]
    fn oversized_node_keeps_its_topology_labels_for_others() {
        let many: Vec<_> =
            (0..20_000).map(|number| json!({"type": "InternalIP", "address": number.to_string()})).collect();
        let labels: Map<String, Value> =
            (0..20_000).map(|number| (format!("junk/{number}"), "x".into())).collect();
        for (what, change) in [
            ("labels", json!({"metadata": {"labels": labels}})),
            ("addresses", json!({"status": {"addresses": many}})),
            (
                "one address",
                json!({"status": {"addresses": [{"type": "Hostname", "address": "x".repeat(100_000)}]}}),
            ),
            ("taints", json!({"spec": {"taints": [{"key": "x".repeat(100_000)}]}})),
            ("status", json!({"status": {"volumesInUse": ["x".repeat(100_000)]}})),
            ("ranges", json!({"spec": {"podCIDR": "x".repeat(100_000)}})),
            ("finalizers", json!({"metadata": {"finalizers": ["x".repeat(100_000)]}})),
        ] {
            let small = shown(&with(&change));
            assert!(!is_large(&small) && small.to_string().len() < 4096, "{what}");
            assert_eq!(
                small["metadata"]["labels"],
                json!({"kubernetes.io/hostname": "n", "topology.kubernetes.io/zone": "z"})
            );
            let identity = ["name", "uid", "resourceVersion"].map(|name| small["metadata"][name].clone());
            assert_eq!(json!(identity), json!(["n", "u", "1"]), "{what}");
            assert_eq!(small["spec"]["podCIDRs"], node()["spec"]["podCIDRs"], "{what}");
            assert_eq!(small["kind"], "Node", "{what}");
        }
    }
}
