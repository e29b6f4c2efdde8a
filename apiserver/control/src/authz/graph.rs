//! Relations between nodes and objects. They are derived from pods, volumes and attachments as those change.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use super::references::{self, RefKind};

/// Namespace and name; the namespace of cluster-scoped objects is empty.
type Name = (String, String);

/// The entries of one pod, kept so that they can be removed.
#[derive(Debug)]
struct PodEdges {
    node: String,
    targets: BTreeSet<(RefKind, String)>,
}

#[derive(Debug)]
struct VolumeEdges {
    claim: Name,
    secrets: Vec<Name>,
}

/// Relations between nodes and objects. Grows with the number of bound pods, volumes, attachments and slices.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pods: HashMap<Name, PodEdges>,
    /// Object → node → number of pods there that refer to it.
    referenced: HashMap<(RefKind, Name), BTreeMap<String, usize>>,
    volumes: HashMap<String, VolumeEdges>,
    /// Secret → volumes that refer to it.
    volume_secrets: HashMap<Name, BTreeSet<String>>,
    attachments: HashMap<String, String>,
    slices: HashMap<String, String>,
}

impl Graph {
    /// Applies the current state of an object; `None` when it was removed. Other resources are ignored.
    pub(crate) fn apply(&mut self, resource: &str, namespace: &str, name: &str, object: Option<&Value>) {
        match resource {
            "pods" => self.apply_pod(namespace, name, object),
            "persistentvolumes" => self.apply_volume(name, object),
            "volumeattachments" => relate(&mut self.attachments, name, object),
            "resourceslices" => relate(&mut self.slices, name, object),
            _ => {}
        }
    }

    fn apply_pod(&mut self, namespace: &str, name: &str, pod: Option<&Value>) {
        let key = (namespace.to_owned(), name.to_owned());
        let new = pod.and_then(pod_edges);
        let unchanged = |old: &PodEdges| {
            new.as_ref().is_some_and(|new| new.node == old.node && new.targets == old.targets)
        };
        if self.pods.get(&key).is_some_and(unchanged) {
            return;
        }
        if let Some(old) = self.pods.remove(&key) {
            for (kind, target) in old.targets {
                self.forget(kind, namespace, target, &old.node);
            }
        }
        let Some(edges) = new else { return };
        for (kind, target) in &edges.targets {
            let nodes = self.referenced.entry((*kind, (namespace.to_owned(), target.clone()))).or_default();
            *nodes.entry(edges.node.clone()).or_default() += 1;
        }
        self.pods.insert(key, edges);
    }

    fn forget(&mut self, kind: RefKind, namespace: &str, target: String, node: &str) {
        let key = (kind, (namespace.to_owned(), target));
        let Some(nodes) = self.referenced.get_mut(&key) else { return };
        if let Some(count) = nodes.get_mut(node) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                nodes.remove(node);
            }
        }
        if nodes.is_empty() {
            self.referenced.remove(&key);
        }
    }

    fn apply_volume(&mut self, name: &str, volume: Option<&Value>) {
        if let Some(old) = self.volumes.remove(name) {
            for secret in old.secrets {
                if let Some(volumes) = self.volume_secrets.get_mut(&secret) {
                    volumes.remove(name);
                    if volumes.is_empty() {
                        self.volume_secrets.remove(&secret);
                    }
                }
            }
        }
        let Some(edges) = volume.and_then(volume_edges) else { return };
        for secret in &edges.secrets {
            self.volume_secrets.entry(secret.clone()).or_default().insert(name.to_owned());
        }
        self.volumes.insert(name.to_owned(), edges);
    }

    /// Whether a pod is bound to the node.
    pub(crate) fn runs(&self, node: &str, namespace: &str, pod: &str) -> bool {
        self.pods.get(&(namespace.to_owned(), pod.to_owned())).is_some_and(|edges| edges.node == node)
    }

    /// Whether a pod on the node refers to the object, directly or through a volume.
    pub(crate) fn refers(&self, node: &str, kind: RefKind, namespace: &str, name: &str) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        let by_volume = kind == RefKind::Secret
            && self
                .volume_secrets
                .get(&key)
                .is_some_and(|volumes| volumes.iter().any(|v| self.mounts(node, v)));
        by_volume || self.referenced.get(&(kind, key)).is_some_and(|nodes| nodes.contains_key(node))
    }

    /// Whether a pod on the node uses the PersistentVolume.
    pub(crate) fn mounts(&self, node: &str, volume: &str) -> bool {
        let Some(edges) = self.volumes.get(volume) else { return false };
        self.refers(node, RefKind::Claim, &edges.claim.0, &edges.claim.1)
    }

    /// Whether the VolumeAttachment belongs to the node.
    pub(crate) fn attaches(&self, node: &str, attachment: &str) -> bool {
        self.attachments.get(attachment).is_some_and(|own| own == node)
    }

    /// Whether the ResourceSlice belongs to the node.
    pub(crate) fn publishes(&self, node: &str, slice: &str) -> bool {
        self.slices.get(slice).is_some_and(|own| own == node)
    }
}

fn pod_edges(pod: &Value) -> Option<PodEdges> {
    let node = pod.pointer("/spec/nodeName")?.as_str().filter(|node| !node.is_empty())?;
    let direct = references::of_pod(pod).into_iter().map(|(kind, name)| (kind, name.to_owned()));
    let ephemeral = references::ephemeral_claims(pod).into_iter().map(|name| (RefKind::Claim, name));
    Some(PodEdges { node: node.to_owned(), targets: direct.chain(ephemeral).collect() })
}

fn volume_edges(volume: &Value) -> Option<VolumeEdges> {
    let claim = volume.pointer("/spec/claimRef")?;
    let part = |field: &str| claim.get(field).and_then(Value::as_str).map(str::to_owned);
    let secrets =
        references::of_volume(volume).into_iter().map(|(ns, name)| (ns.to_owned(), name.to_owned()));
    Some(VolumeEdges { claim: (part("namespace")?, part("name")?), secrets: secrets.collect() })
}

fn relate(index: &mut HashMap<String, String>, name: &str, object: Option<&Value>) {
    match object.and_then(|object| object.pointer("/spec/nodeName")).and_then(Value::as_str) {
        Some(node) => index.insert(name.to_owned(), node.to_owned()),
        None => index.remove(name),
    };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(node: &str, secrets: &[&str]) -> Value {
        let volumes: Vec<Value> =
            secrets.iter().map(|s| json!({"name": s, "secret": {"secretName": s}})).collect();
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": node, "volumes": volumes}})
    }

    #[test]
    fn references_follow_pods() {
        let mut graph = Graph::default();
        let secret = |graph: &Graph, node: &str| graph.refers(node, RefKind::Secret, "shop", "s");
        graph.apply("pods", "shop", "one", Some(&pod("a", &["s"])));
        graph.apply("pods", "shop", "two", Some(&pod("a", &["s"])));
        graph.apply("pods", "home", "one", Some(&pod("b", &["s"])));
        assert!(secret(&graph, "a") && !secret(&graph, "b"));
        graph.apply("pods", "shop", "one", None);
        assert!(secret(&graph, "a"), "the second pod still refers");
        graph.apply("pods", "shop", "two", Some(&pod("b", &["s"])));
        assert!(!secret(&graph, "a") && secret(&graph, "b"), "a re-created pod moved");
        graph.apply("pods", "shop", "two", Some(&pod("b", &[])));
        assert!(!secret(&graph, "b"));
        graph.apply("pods", "shop", "two", None);
        graph.apply("pods", "home", "one", None);
        assert!(graph.referenced.is_empty() && graph.pods.is_empty(), "no entry is left");
    }

    #[test]
    fn slices_and_attachments_belong_to_the_node_that_they_name() {
        type Belongs = fn(&Graph, &str, &str) -> bool;
        let kinds: [(&str, Belongs); 2] =
            [("resourceslices", Graph::publishes), ("volumeattachments", Graph::attaches)];
        for (resource, belongs) in kinds {
            let mut graph = Graph::default();
            let owned = |graph: &mut Graph, spec: Value| {
                graph.apply(resource, "", "one", Some(&json!({ "spec": spec })));
                ["a", "b"].map(|node| belongs(graph, node, "one"))
            };
            assert_eq!(owned(&mut graph, json!({"nodeName": "a"})), [true, false], "{resource}");
            assert_eq!(owned(&mut graph, json!({"nodeName": "b"})), [false, true], "{resource} moved");
            assert_eq!(owned(&mut graph, json!({"allNodes": true})), [false, false], "{resource} of no node");
            assert_eq!(owned(&mut graph, json!({"nodeName": "a"})), [true, false], "{resource}");
            graph.apply(resource, "", "one", None);
            assert!(!belongs(&graph, "a", "one"), "{resource} is gone");
            assert!(graph.slices.is_empty() && graph.attachments.is_empty(), "no entry is left");
        }
    }

    #[test]
    fn volume_grants_its_secret_and_an_unbound_pod_nothing() {
        let mut graph = Graph::default();
        let user = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "a", "volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}});
        let volume = json!({"spec": {"claimRef": {"namespace": "shop", "name": "c"}, "csi": {"nodeStageSecretRef": {"namespace": "infra", "name": "k"}}}});
        graph.apply("persistentvolumes", "", "v", Some(&volume));
        assert!(!graph.mounts("a", "v"));
        graph.apply("pods", "shop", "p", Some(&user));
        assert!(graph.mounts("a", "v") && graph.refers("a", RefKind::Secret, "infra", "k"));
        assert!(!graph.mounts("b", "v"));
        graph.apply("persistentvolumes", "", "v", None);
        assert!(!graph.refers("a", RefKind::Secret, "infra", "k") && graph.volume_secrets.is_empty());
        graph.apply("pods", "shop", "unbound", Some(&json!({"spec": {"serviceAccountName": "x"}})));
        assert!(!graph.refers("", RefKind::ServiceAccount, "shop", "x"));
    }
}
