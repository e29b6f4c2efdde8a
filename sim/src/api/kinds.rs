//! The kinds that the model serves: the built-in ones that the product reads or writes, and those of definitions (CRDs)
//! that are stored.

use serde_json::Value;

/// Group and plural of a kind: under this its objects are stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindKey {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural.
    pub resource: String,
}

impl KindKey {
    /// The kind of this group and plural.
    #[must_use]
    pub fn new(group: &str, resource: &str) -> Self {
        Self { group: group.to_owned(), resource: resource.to_owned() }
    }

    /// `pods` or `leases.coordination.k8s.io`.
    #[must_use]
    pub fn qualified(&self) -> String {
        match self.group.as_str() {
            "" => self.resource.clone(),
            group => format!("{}.{group}", self.resource),
        }
    }
}

impl std::fmt::Display for KindKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.qualified())
    }
}

/// What the model knows of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KindInfo {
    pub(super) key: KindKey,
    pub(super) version: String,
    pub(super) kind: String,
    pub(super) namespaced: bool,
    /// Whether `status` can only be written through the subresource.
    pub(super) has_status: bool,
    /// Whether `metadata.generation` counts the changes of the spec.
    pub(super) has_generation: bool,
    /// Whether an update has to name the version that it replaces.
    pub(super) needs_version: bool,
    /// Whether an update of a missing object creates it.
    pub(super) created_by_update: bool,
    /// Whether a deletion is answered with the deleted object and not with a `Status`.
    pub(super) returns_deleted: bool,
    pub(super) built_in: bool,
}

impl KindInfo {
    /// `apiVersion` of the objects.
    pub(super) fn api_version(&self) -> String {
        match self.key.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The kind as messages about an invalid object name it: `Deployment.apps`.
    pub(super) fn qualified_kind(&self) -> String {
        match self.key.group.as_str() {
            "" => self.kind.clone(),
            group => format!("{}.{group}", self.kind),
        }
    }

    /// The key under which an object is stored: objects are listed in the order of these texts.
    pub(super) fn place(&self, namespace: &str, name: &str) -> String {
        if self.namespaced { format!("{namespace}/{name}") } else { name.to_owned() }
    }
}

/// Group, version, plural, kind, and one letter for each property: `n` namespaced, `s` status subresource, `g`
/// generation, `v` an update names its version, `c` an update creates, `d` a deletion returns the object.
const BUILT_IN: [(&str, &str, &str, &str, &str); 50] = [
    ("", "v1", "configmaps", "ConfigMap", "n"),
    ("", "v1", "endpoints", "Endpoints", "nc"),
    ("", "v1", "events", "Event", "nc"),
    ("", "v1", "limitranges", "LimitRange", "nc"),
    ("", "v1", "namespaces", "Namespace", "s"),
    ("", "v1", "nodes", "Node", "s"),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", "nsd"),
    ("", "v1", "persistentvolumes", "PersistentVolume", "sd"),
    ("", "v1", "pods", "Pod", "nsgd"),
    ("", "v1", "podtemplates", "PodTemplate", "ngd"),
    ("", "v1", "replicationcontrollers", "ReplicationController", "nsg"),
    ("", "v1", "resourcequotas", "ResourceQuota", "nsd"),
    ("", "v1", "secrets", "Secret", "n"),
    ("", "v1", "serviceaccounts", "ServiceAccount", "nd"),
    ("", "v1", "services", "Service", "nscd"),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", "sgv"),
    ("apps", "v1", "controllerrevisions", "ControllerRevision", "n"),
    ("apps", "v1", "daemonsets", "DaemonSet", "nsg"),
    ("apps", "v1", "deployments", "Deployment", "nsg"),
    ("apps", "v1", "replicasets", "ReplicaSet", "nsg"),
    ("apps", "v1", "statefulsets", "StatefulSet", "nsg"),
    ("batch", "v1", "cronjobs", "CronJob", "nsg"),
    ("batch", "v1", "jobs", "Job", "nsg"),
    ("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", "s"),
    ("coordination.k8s.io", "v1", "leases", "Lease", "nv"),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", "ng"),
    ("events.k8s.io", "v1", "events", "Event", "nc"),
    ("networking.k8s.io", "v1", "ingressclasses", "IngressClass", "g"),
    ("networking.k8s.io", "v1", "ingresses", "Ingress", "nsg"),
    ("networking.k8s.io", "v1", "ipaddresses", "IPAddress", ""),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", "ng"),
    ("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", "s"),
    ("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", ""),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", "nsgv"),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", ""),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", ""),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", "n"),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role", "n"),
    ("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", "g"),
    ("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", "ns"),
    ("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", "n"),
    ("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", "g"),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", "g"),
    ("storage.k8s.io", "v1", "csidrivers", "CSIDriver", "d"),
    ("storage.k8s.io", "v1", "csinodes", "CSINode", "d"),
    ("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", "n"),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass", "d"),
    ("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", "sd"),
    (
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        "g",
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        "g",
    ),
];

/// Kinds that are asked and not stored: group, plural, kind, and whether they belong to a namespace.
pub(super) const REVIEWS: [(&str, &str, &str, bool); 6] = [
    ("authentication.k8s.io", "tokenreviews", "TokenReview", false),
    ("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview", false),
    ("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview", false),
    ("authorization.k8s.io", "localsubjectaccessreviews", "LocalSubjectAccessReview", true),
    ("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview", false),
    ("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview", false),
];

/// Where the definitions of further kinds are stored.
pub(super) fn definitions() -> KindKey {
    KindKey::new("apiextensions.k8s.io", "customresourcedefinitions")
}

/// All built-in kinds.
pub(super) fn built_in() -> impl Iterator<Item = KindInfo> {
    BUILT_IN.iter().map(|(group, version, resource, kind, letters)| KindInfo {
        key: KindKey::new(group, resource),
        version: (*version).to_owned(),
        kind: (*kind).to_owned(),
        namespaced: letters.contains('n'),
        has_status: letters.contains('s'),
        has_generation: letters.contains('g'),
        needs_version: letters.contains('v'),
        created_by_update: letters.contains('c'),
        returns_deleted: letters.contains('d'),
        built_in: true,
    })
}

/// The kinds of one stored definition, one for each version that it serves. None while it is not established.
pub(super) fn of_definition(definition: &Value) -> Vec<KindInfo> {
    let conditions = definition["status"]["conditions"].as_array().into_iter().flatten();
    let mut established = conditions.filter(|one| one["type"] == "Established" && one["status"] == "True");
    if established.next().is_none() {
        return Vec::new();
    }
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let versions = spec["versions"].as_array().into_iter().flatten();
    let served = versions.filter(|version| version["served"] == true);
    served
        .map(|version| KindInfo {
            key: KindKey { group: text(&spec["group"]), resource: text(&spec["names"]["plural"]) },
            version: text(&version["name"]),
            kind: text(&spec["names"]["kind"]),
            namespaced: spec["scope"] == "Namespaced",
            has_status: version["subresources"]["status"].is_object(),
            has_generation: true,
            needs_version: true,
            created_by_update: false,
            returns_deleted: false,
            built_in: false,
        })
        .collect()
}

/// The subresources that a stored kind has, other than `status`.
pub(super) fn subresources(key: &KindKey) -> &'static [&'static str] {
    match (key.group.as_str(), key.resource.as_str()) {
        ("", "pods") => &["binding", "eviction"],
        ("", "namespaces") => &["finalize"],
        ("", "serviceaccounts") => &["token"],
        ("certificates.k8s.io", "certificatesigningrequests") => &["approval"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_definition_serves_its_versions_once_it_is_established() {
        let mut definition = json!({
            "spec": {
                "group": "superedge.io", "scope": "Namespaced",
                "names": {"plural": "servicegrids", "kind": "ServiceGrid"},
                "versions": [
                    {"name": "v1", "served": true, "subresources": {"status": {}}}, {"name": "v0", "served": false},
                ],
            },
        });
        assert_eq!(of_definition(&definition), []);
        definition["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        let kinds = of_definition(&definition);
        assert_eq!(kinds.len(), 1);
        assert_eq!(kinds[0].api_version(), "superedge.io/v1");
        assert!(kinds[0].namespaced && kinds[0].has_status && kinds[0].needs_version);
        definition["status"]["conditions"][0]["status"] = "False".into();
        assert_eq!(of_definition(&definition), []);
    }

    #[test]
    fn objects_are_stored_in_the_order_of_their_texts() {
        let pods = built_in().find(|kind| kind.kind == "Pod").expect("pods");
        assert!(pods.place("a-b", "x") < pods.place("a", "x"), "as etcd orders its keys");
        let nodes = built_in().find(|kind| kind.kind == "Node").expect("nodes");
        assert_eq!((nodes.place("", "n"), pods.place("d", "p")), ("n".to_owned(), "d/p".to_owned()));
    }
}
