//! PodTopologyLabels: a pod gets the zone and region labels of its node.

use serde_json::{Map, Value};
use tombolo_apicore::admission::AdmissionRequest;

use crate::objects::{Objects, core, member, text};

/// Labels that pods get from their node.
const COPIED: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// The topology labels of a node; empty when the node does not exist.
pub(crate) fn labels(objects: &Objects, node: &str) -> Map<String, Value> {
    let node = objects.get(core("nodes"), "", node);
    let labels = node.as_ref().and_then(|node| node.value.pointer("/metadata/labels")?.as_object());
    let copied = |key: &&str| Some(((*key).to_owned(), labels?.get(*key)?.clone()));
    COPIED.iter().filter_map(copied).collect()
}

/// Completes a new pod that names its node itself. Other pods get the labels when a scheduler binds them.
pub(super) fn complete(objects: &Objects, request: &mut AdmissionRequest<'_>) {
    let Some(pod) = request.object.as_deref_mut() else { return };
    let node = text(pod, "/spec/nodeName");
    if node.is_empty() {
        return;
    }
    let labels = labels(objects, node);
    if !labels.is_empty() {
        member(pod, "metadata");
        member(&mut pod["metadata"], "labels").extend(labels);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn pod_gets_only_the_topology_labels_of_its_node() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let node =
            json!({"metadata": {"name": "n", "labels": {COPIED[0]: "z", "kubernetes.io/os": "linux"}}});
        objects.create(core("nodes"), node).await.unwrap();
        assert_eq!(Value::from(labels(&objects, "n")), json!({COPIED[0]: "z"}));
        assert!(labels(&objects, "m").is_empty());
    }
}
