//! What the oracle reads in the body of an object. Written from the guarantees and from Kubernetes' own rules
//! (docs/consistency.md, docs/reference), not from the code that they are about.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::observation::{ContentDigest, ObjectId, SeenVersion};

/// Annotation in which `kubectl apply` keeps the whole object once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Annotation of a pod that a node created for a pod of its own.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Bytes of a pod that is being deleted above which it may be shortened. Bodies at an edge lack some bytes of the API's.
const WHOLE_ENDING_LEN: usize = 15 * 1024;

/// Metadata that a pod that is being deleted always has.
const ENDING_METADATA: [&str; 6] =
    ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];

/// Digest of some bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> ContentDigest {
    let hash: [u8; 32] = Sha256::digest(bytes).into();
    ContentDigest(hash[..16].iter().fold(0, |digest, byte| (digest << 8) | u128::from(*byte)))
}

/// The version of an object. `resource` is as in [`ObjectId::resource`]. A body without UID or version has an empty
/// UID or revision 0.
#[must_use]
pub fn version(resource: &str, body: &Value) -> SeenVersion {
    let text = |path: &str| body.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let mut value = body.clone();
    trim(&mut value);
    if resource == "pods" && !text("/metadata/deletionTimestamp").is_empty() {
        shorten(&mut value);
    }
    let content = digest(value.to_string().as_bytes());
    if matches!(resource, "pods" | "nodes") {
        remove(&mut value, "", &["status"]);
        remove(&mut value, "/metadata", &["generation"]);
    }
    SeenVersion {
        uid: text("/metadata/uid").to_owned(),
        revision: text("/metadata/resourceVersion").parse().unwrap_or(0),
        content,
        significant: digest(value.to_string().as_bytes()),
    }
}

/// Takes out what no edge receives, or what a list leaves out and a single object has.
fn trim(value: &mut Value) {
    remove(value, "", &["kind", "apiVersion"]);
    remove(value, "/metadata", &["managedFields", "selfLink", "resourceVersion"]);
    remove(value, "/metadata/annotations", &[LAST_APPLIED]);
    if value.pointer("/metadata/annotations").and_then(Value::as_object).is_some_and(Map::is_empty) {
        remove(value, "/metadata", &["annotations"]);
    }
    let conditions = value.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        remove(condition, "", &["lastHeartbeatTime"]);
    }
}

/// A large pod that is being deleted may reach its node without status and other large parts. A node terminates it with
/// the members that are left here.
fn shorten(pod: &mut Value) {
    let is_whole = pod.get("status").is_some() && pod.to_string().len() <= WHOLE_ENDING_LEN;
    if is_whole {
        return;
    }
    let kept = |part: &Value, names: &[&str]| {
        let members = names.iter().filter_map(|name| Some(((*name).to_owned(), part.get(*name)?.clone())));
        Value::Object(members.collect())
    };
    *pod = json!({
        "metadata": kept(&pod["metadata"], &ENDING_METADATA),
        "spec": kept(&pod["spec"], &["nodeName", "terminationGracePeriodSeconds"]),
    });
}

fn remove(value: &mut Value, path: &str, members: &[&str]) {
    let Some(object) = value.pointer_mut(path).and_then(Value::as_object_mut) else { return };
    for member in members {
        object.remove(*member);
    }
}

/// The text by which the report of a node is recognised in the object that it changed.
#[must_use]
pub fn marker<'a>(resource: &str, body: &'a Value) -> Option<&'a str> {
    let path = match resource {
        "pods" => "/status/message",
        "nodes" => "/status/nodeInfo/bootID",
        "events" | "events.events.k8s.io" => "/message",
        "leases.coordination.k8s.io" => "/spec/renewTime",
        _ => return None,
    };
    body.pointer(path).and_then(Value::as_str)
}

/// What the rules ask about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its version; the revision is the API's.
    pub version: SeenVersion,
    /// Of a pod: the node that it is bound to; empty if none.
    pub node: String,
    /// Somebody has deleted it, and it is about to end.
    pub ending: bool,
    /// Of a pod: the ConfigMaps and Secrets that it brings to its node.
    pub references: BTreeSet<ObjectId>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Length of its JSON in bytes.
    pub len: usize,
    /// Marker of the report that it shows; empty if none.
    pub marker: String,
}

impl Facts {
    /// Reads an object.
    #[must_use]
    pub fn read(object: &ObjectId, body: &Value) -> Self {
        let is_pod = object.resource == "pods";
        let text = |path: &str| body.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let labels = body.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
        let is_mirror = body.pointer("/metadata/annotations").is_some_and(|all| all.get(MIRROR).is_some());
        Self {
            version: version(&object.resource, body),
            node: if is_pod { text("/spec/nodeName") } else { String::new() },
            ending: body.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null()),
            // A node writes mirror pods itself, and could give itself any Secret otherwise.
            references: if is_pod && !is_mirror {
                references(&object.namespace, body)
            } else {
                BTreeSet::new()
            },
            labels: labels
                .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
                .collect(),
            len: body.to_string().len(),
            marker: marker(&object.resource, body).unwrap_or_default().to_owned(),
        }
    }
}

/// Members of a volume that name a Secret directly, and those that hold a `LocalObjectReference` to one.
const SECRET_NAMES: [(&str, &str); 2] = [("secret", "secretName"), ("azureFile", "secretName")];
const SECRET_REFERENCES: [(&str, &str); 8] = [
    ("cephfs", "secretRef"),
    ("cinder", "secretRef"),
    ("csi", "nodePublishSecretRef"),
    ("flexVolume", "secretRef"),
    ("iscsi", "secretRef"),
    ("rbd", "secretRef"),
    ("scaleIO", "secretRef"),
    ("storageos", "secretRef"),
];

/// The ConfigMaps and Secrets that a pod names, optional ones too. A text that can be no name refers to nothing.
#[must_use]
pub fn references(namespace: &str, pod: &Value) -> BTreeSet<ObjectId> {
    let mut found = Found { namespace, all: BTreeSet::new() };
    let spec = &pod["spec"];
    for volume in array(&spec["volumes"]) {
        found.config(&volume["configMap"]["name"]);
        for (member, name) in SECRET_NAMES {
            found.secret(&volume[member][name]);
        }
        for (member, reference) in SECRET_REFERENCES {
            found.secret(&volume[member][reference]["name"]);
        }
        for source in array(&volume["projected"]["sources"]) {
            found.config(&source["configMap"]["name"]);
            found.secret(&source["secret"]["name"]);
        }
    }
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    for container in lists.into_iter().flat_map(|list| array(&spec[list])) {
        for variable in array(&container["env"]) {
            found.config(&variable["valueFrom"]["configMapKeyRef"]["name"]);
            found.secret(&variable["valueFrom"]["secretKeyRef"]["name"]);
        }
        for source in array(&container["envFrom"]) {
            found.config(&source["configMapRef"]["name"]);
            found.secret(&source["secretRef"]["name"]);
        }
    }
    for secret in array(&spec["imagePullSecrets"]) {
        found.secret(&secret["name"]);
    }
    found.all
}

struct Found<'n> {
    namespace: &'n str,
    all: BTreeSet<ObjectId>,
}

impl Found<'_> {
    fn config(&mut self, name: &Value) {
        self.add("configmaps", name);
    }

    fn secret(&mut self, name: &Value) {
        self.add("secrets", name);
    }

    fn add(&mut self, resource: &str, name: &Value) {
        if let Some(name) = name.as_str().filter(|name| is_name(name)) {
            self.all.insert(ObjectId::new(resource, self.namespace, name));
        }
    }
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Whether a ConfigMap or Secret can have this name: a DNS subdomain of RFC 1123.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        !label.is_empty() && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(is_inner)
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_version_is_what_a_node_acts_on() {
        let pod = |change: fn(&mut Value)| {
            let mut body = json!({
                "metadata": {"name": "p", "uid": "u", "resourceVersion": "7"},
                "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}
            });
            change(&mut body);
            version("pods", &body)
        };
        let base = pod(|_| {});
        assert_eq!((&*base.uid, base.revision), ("u", 7));
        let status = pod(|body| body["status"]["phase"] = "Running".into());
        assert!(status.significant == base.significant && status.content != base.content);
        let moved = pod(|body| body["metadata"]["resourceVersion"] = "8".into());
        assert!(moved.content == base.content && moved.revision == 8);
        let listed = pod(|body| body["kind"] = "Pod".into());
        assert_eq!(listed, base);
        let ending = pod(|body| body["metadata"]["deletionTimestamp"] = "t".into());
        assert_ne!(ending.significant, base.significant);
        let applied = pod(|body| body["metadata"]["annotations"] = json!({ LAST_APPLIED: "x" }));
        assert_eq!(applied, base);
    }

    #[test]
    fn references_are_found_wherever_they_stand_and_only_where_they_can_be_names() {
        let pod = json!({"spec": {
            "volumes": [
                {"configMap": {"name": "c1"}}, {"secret": {"secretName": "s1"}},
                {"csi": {"nodePublishSecretRef": {"name": "s2"}}},
                {"projected": {"sources": [{"configMap": {"name": "c2"}}, {"secret": {"name": "a/b"}}]}},
                {"persistentVolumeClaim": {"claimName": "claim"}}
            ],
            "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s3", "key": "k"}}}]}],
            "initContainers": [{"envFrom": [{"configMapRef": {"name": "c3"}}, {"secretRef": {"name": "Big"}}]}],
            "imagePullSecrets": [{"name": "s4"}, {}]
        }});
        let found: Vec<String> = references("d", &pod).iter().map(|id| id.name.clone()).collect();
        assert_eq!(found, ["c1", "c2", "c3", "s1", "s2", "s3", "s4"]);
    }

    #[test]
    fn a_mirror_pod_brings_nothing() {
        let mut pod = json!({"spec": {"nodeName": "n", "volumes": [{"configMap": {"name": "c"}}]}});
        let id = ObjectId::new("pods", "d", "p");
        assert_eq!(Facts::read(&id, &pod).references.len(), 1);
        pod["metadata"]["annotations"] = json!({ MIRROR: "x" });
        assert!(Facts::read(&id, &pod).references.is_empty());
    }

    #[test]
    fn names_are_those_of_rfc_1123() {
        let long = "a".repeat(254);
        for text in ["", "a/b", "A", "a b", "-a", "a-", "a..b", ".", "a_b", "ä", &long] {
            assert!(!is_name(text), "{text:?}");
        }
        for text in ["a", "a.b-1", "0", &long[..253]] {
            assert!(is_name(text), "{text:?}");
        }
    }
}
