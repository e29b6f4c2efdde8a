//! Objects that belong to a cluster or to the cloud in it, not to the objects given to nodes.

use serde_json::Value;

/// Kind, namespace (`None`: every namespace) and name of objects that controllers of every cluster restore when they
/// are changed.
const CLUSTERS_OWN: [(&str, Option<&str>, &str); 4] = [
    ("ConfigMap", None, "kube-root-ca.crt"),
    ("Service", Some("default"), "kubernetes"),
    ("Endpoints", Some("default"), "kubernetes"),
    ("EndpointSlice", Some("default"), "kubernetes"),
];

/// Kind and name of the objects that a KubeEdge cloud keeps about itself in its namespace
/// (docs/reference/kubeedge.md#certificates-and-keys). The run's cloud has its own.
const CLOUDS_OWN: [(&str, &str); 5] = [
    ("Secret", "casecret"),
    ("Secret", "cloudcoresecret"),
    ("Secret", "tokensecret"),
    ("ConfigMap", "cloudcore"),
    ("ConfigMap", "tunnelport"),
];

/// Name prefix of the objects that our cloud keeps there: certificates, tokens, identities, the epoch, ledgers of
/// KubeEdge edges.
const OUR_CLOUDS: &str = "tombolo-";

/// Namespace of the cloud.
const CLOUDS_NAMESPACE: &str = "kubeedge";

/// Kinds that configure how an API server works. Those of the recorded server name services that a run does not have.
const SERVERS_KINDS: [&str; 9] = [
    "APIService",
    "FlowSchema",
    "PriorityLevelConfiguration",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Whether every cluster has this object, with its own content.
#[must_use]
pub fn is_clusters_own(object: &Value) -> bool {
    CLUSTERS_OWN.iter().any(|(kind, namespace, name)| {
        text(object, "/kind") == *kind
            && text(object, "/metadata/name") == *name
            && namespace.is_none_or(|namespace| text(object, "/metadata/namespace") == namespace)
    })
}

/// Whether an object makes the recorded cluster or cloud work, so that a run must not overwrite its own with it.
#[must_use]
pub fn is_machinery(object: &Value) -> bool {
    let kind = text(object, "/kind");
    let bootstrap = object.pointer("/metadata/labels/kubernetes.io~1bootstrapping").is_some();
    let name = text(object, "/metadata/name");
    let clouds = text(object, "/metadata/namespace") == CLOUDS_NAMESPACE
        && (CLOUDS_OWN.contains(&(kind, name)) || name.starts_with(OUR_CLOUDS));
    bootstrap || clouds || SERVERS_KINDS.contains(&kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_made_by_every_cluster_are_recognised() {
        let object = |kind: &str, namespace: &str, name: &str| json!({"kind": kind, "metadata": {"namespace": namespace, "name": name}});
        for (kind, namespace, name, own, machinery) in [
            ("ConfigMap", "anywhere", "kube-root-ca.crt", true, false),
            ("Service", "default", "kubernetes", true, false),
            ("Service", "other", "kubernetes", false, false),
            ("Secret", "kubeedge", "casecret", false, true),
            ("Secret", "default", "casecret", false, false),
            ("ConfigMap", "kubeedge", "tombolo-ledger.edge-1", false, true),
            ("ConfigMap", "default", "tombolo-ledger.edge-1", false, false),
            ("APIService", "", "v1.", false, true),
        ] {
            let object = object(kind, namespace, name);
            assert_eq!((is_clusters_own(&object), is_machinery(&object)), (own, machinery), "{object}");
        }
        let labels = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
        let role = json!({"kind": "ClusterRole", "metadata": {"name": "system:node", "labels": labels}});
        assert!(is_machinery(&role));
    }
}
