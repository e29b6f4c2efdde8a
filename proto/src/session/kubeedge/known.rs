//! The known kinds: those built into Kubernetes, and those of the cluster's discovery.
//!
//! A path names a kind in lower case. An object from a typed informer does not name its kind, because in Go its type
//! implies it, so the path and these kinds decide. Without a cloud only the built-in kinds are known.

use serde::Deserialize;

use super::kinds::{self, guess_resource, is_word_of, pushed_as, resource_of};
use crate::limits::WORD_LEN_MAX;
use crate::message::ResourceType;
use crate::object::Resource;

/// Most kinds of one discovery document that are remembered.
const KINDS_MAX: usize = 4096;

/// Group, version, plural and kind of built-in resources, beside those that cross the wire by name. When several
/// groups have a kind, the one that clients use comes first.
const BUILT_IN: &[(&str, &str, &str, &str)] = &[
    ("", "v1", "namespaces", "Namespace"),
    ("", "v1", "serviceaccounts", "ServiceAccount"),
    ("", "v1", "replicationcontrollers", "ReplicationController"),
    ("", "v1", "limitranges", "LimitRange"),
    ("", "v1", "resourcequotas", "ResourceQuota"),
    ("", "v1", "podtemplates", "PodTemplate"),
    ("", "v1", "componentstatuses", "ComponentStatus"),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    ("apps", "v1", "deployments", "Deployment"),
    ("apps", "v1", "daemonsets", "DaemonSet"),
    ("apps", "v1", "replicasets", "ReplicaSet"),
    ("apps", "v1", "statefulsets", "StatefulSet"),
    ("apps", "v1", "controllerrevisions", "ControllerRevision"),
    ("batch", "v1", "jobs", "Job"),
    ("batch", "v1", "cronjobs", "CronJob"),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    ("networking.k8s.io", "v1", "ingresses", "Ingress"),
    ("networking.k8s.io", "v1", "ingressclasses", "IngressClass"),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    ("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR"),
    ("networking.k8s.io", "v1", "ipaddresses", "IPAddress"),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass"),
    ("storage.k8s.io", "v1", "csidrivers", "CSIDriver"),
    ("storage.k8s.io", "v1", "csinodes", "CSINode"),
    ("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity"),
    ("storage.k8s.io", "v1", "volumeattributesclasses", "VolumeAttributesClass"),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole"),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding"),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass"),
    ("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass"),
    ("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"),
    ("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    ("resource.k8s.io", "v1", "resourceslices", "ResourceSlice"),
    ("resource.k8s.io", "v1", "deviceclasses", "DeviceClass"),
    ("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", "FlowSchema"),
    ("flowcontrol.apiserver.k8s.io", "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration"),
    ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
    ),
    ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
    ),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "v1", "apiservices", "APIService"),
];

/// The kinds of a cluster that an edge knows: those of its discovery, and those built into Kubernetes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kinds {
    /// In the versions that the cluster prefers, in its order. At most [`KINDS_MAX`].
    discovered: Vec<(Resource, Box<str>)>,
}

/// A sentence that says why a path cannot be resolved.
pub(super) type Unknown = String;

impl Kinds {
    /// The kinds of a discovery document, `APIGroupDiscoveryList` of `apidiscovery.k8s.io/v2`.
    ///
    /// # Errors
    /// When the document is not one.
    pub fn discovered(document: &[u8]) -> Result<Self, serde_json::Error> {
        let document: GroupDiscoveryList = serde_json::from_slice(document)?;
        let mut kinds = Self::default();
        for group in &document.items {
            for version in group.versions.as_deref().unwrap_or_default() {
                for entry in version.resources.as_deref().unwrap_or_default() {
                    let Some(kind) = entry.response_kind.as_ref().map(|named| &*named.kind) else { continue };
                    kinds.add(&group.metadata.name, &version.version, &entry.resource, kind);
                }
            }
        }
        Ok(kinds)
    }

    /// Adds a kind; of the versions of a resource the preferred one must be added first. Invalid names, and kinds
    /// beyond the limit, are left out.
    pub fn add(&mut self, group: &str, version: &str, plural: &str, kind: &str) {
        let known =
            |(resource, _): &(Resource, Box<str>)| *resource.group == *group && *resource.name == *plural;
        let usable =
            [group, version, plural, kind].iter().all(|text| !text.is_empty() && text.len() <= WORD_LEN_MAX);
        if usable && self.discovered.len() < KINDS_MAX && !self.discovered.iter().any(known) {
            self.discovered.push((Resource::new(group, version, plural), kind.into()));
        }
    }

    /// Kind and `apiVersion` of an object that names neither, from the resource word of its path.
    #[must_use]
    pub fn named(&self, resource_type: &ResourceType) -> Option<(&str, String)> {
        let resource = self.resource(resource_type, None).ok()?;
        self.kind_of(&resource).map(|kind| (kind, kinds::api_version(&resource)))
    }

    /// The resource that a resource word of a path means. `said` are the `apiVersion` and `kind` that the object
    /// names.
    ///
    /// # Errors
    /// A sentence, when the resource cannot be determined.
    pub(super) fn resource(
        &self,
        resource_type: &ResourceType,
        said: Option<(&str, &str)>,
    ) -> Result<Resource, Unknown> {
        if let Some((api_version, kind)) = said {
            return Ok(self.resource_said(resource_type, api_version, kind));
        }
        // Typed informers use Kubernetes' own kinds, so these take precedence.
        if let Some(known) = pushed_as(resource_type).or_else(|| self.built_in(resource_type)) {
            return Ok(known);
        }
        let is_named = |(resource, kind): &&(Resource, Box<str>)| {
            is_word_of(resource_type.as_str(), &resource.name, kind)
        };
        let mut found = self.discovered.iter().filter(is_named);
        match (found.next(), found.next()) {
            (Some((resource, _)), None) => Ok(resource.clone()),
            (None, _) => {
                let resource_type = resource_type.as_str();
                Err(format!(
                    "it names no kind, and neither Kubernetes nor the cluster's discovery has a {resource_type:?}"
                ))
            }
            (Some((one, _)), Some((other, _))) => Err(format!(
                "it names no kind, and {:?} may be one of {one} or of {other}",
                resource_type.as_str()
            )),
        }
    }

    /// The resource of an object that names its kind. An unknown plural is guessed.
    fn resource_said(&self, resource_type: &ResourceType, api_version: &str, kind: &str) -> Resource {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if let Some(wire) = resource_of(resource_type).filter(|resource| *resource.group == *group) {
            return wire;
        }
        let discovered =
            self.discovered.iter().find(|(resource, known)| *resource.group == *group && **known == *kind);
        let plural = discovered.map(|(resource, _)| &*resource.name);
        let plural =
            plural.or_else(|| BUILT_IN.iter().find(|row| row.0 == group && row.3 == kind).map(|row| row.2));
        plural
            .map_or_else(|| guess_resource(api_version, kind), |plural| Resource::new(group, version, plural))
    }

    /// The resource of a kind that is built into Kubernetes, in the version that the cluster prefers.
    fn built_in(&self, resource_type: &ResourceType) -> Option<Resource> {
        let resource_type = resource_type.as_str();
        let row = BUILT_IN.iter().find(|row| is_word_of(resource_type, row.2, row.3))?;
        let preferred = self
            .discovered
            .iter()
            .find(|(resource, _)| (&*resource.group, &*resource.name) == (row.0, row.2));
        Some(preferred.map_or_else(|| Resource::new(row.0, row.1, row.2), |(resource, _)| resource.clone()))
    }

    /// The kind of a resource.
    pub(super) fn kind_of(&self, resource: &Resource) -> Option<&str> {
        let (group, plural) = (&*resource.group, &*resource.name);
        let built_in = || BUILT_IN.iter().find(|row| row.0 == group && row.2 == plural).map(|row| row.3);
        let discovered = || {
            let same = |(known, _): &&(Resource, Box<str>)| (&*known.group, &*known.name) == (group, plural);
            self.discovered.iter().find(same).map(|(_, kind)| &**kind)
        };
        kinds::known_kind(group, plural).or_else(built_in).or_else(discovered)
    }
}

/// The parts of a discovery document that are read.
#[derive(Deserialize)]
struct GroupDiscoveryList {
    items: Vec<GroupDiscovery>,
}

#[derive(Deserialize)]
struct GroupDiscovery {
    metadata: Metadata,
    versions: Option<Vec<VersionDiscovery>>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct VersionDiscovery {
    version: String,
    resources: Option<Vec<ResourceDiscovery>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery {
    resource: String,
    response_kind: Option<Named>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    kind: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Version, plural and kind.
    type Row<'a> = (&'a str, &'a str, &'a str);

    fn kinds(groups: &[(&str, &[Row<'_>])]) -> Kinds {
        let version = |(version, plural, kind): &(&str, &str, &str)| json!({"version": version, "resources": [{"resource": plural, "responseKind": {"kind": kind}}]});
        let group = |(name, versions): &(&str, &[(&str, &str, &str)])| {
            let versions: Vec<_> = versions.iter().map(version).collect();
            json!({"metadata": {"name": name}, "versions": versions})
        };
        let items: Vec<_> = groups.iter().map(group).collect();
        Kinds::discovered(json!({"items": items}).to_string().as_bytes()).expect("a document")
    }

    fn resource_type(kind: &str) -> ResourceType {
        kinds::type_word(kind)
    }

    #[test]
    fn path_words_resolve_to_built_in_kinds_offline() {
        for (group, version, plural, kind) in BUILT_IN {
            let resource = Resource::new(group, version, plural);
            assert_eq!(Kinds::default().resource(&resource_type(kind), None), Ok(resource.clone()), "{kind}");
            assert_eq!(Kinds::default().kind_of(&resource), Some(*kind));
        }
        let why = Kinds::default().resource(&resource_type("Widget"), None).expect_err("unknown");
        assert!(why.contains("widget") && why.contains("discovery"), "{why}");
    }

    #[test]
    fn other_kinds_are_those_of_discovery() {
        let known = kinds(&[
            ("example.com", &[("v2", "geese", "Goose"), ("v1", "geese", "Goose")]),
            ("resource.k8s.io", &[("v1beta1", "resourceclaims", "ResourceClaim")]),
            ("serving.example.com", &[("v1", "services", "Service")]),
            ("db.example", &[("v1", "databases", "Database")]),
            ("a.example", &[("v1", "twins", "Twin")]),
            ("b.example", &[("v1", "twins", "Twin")]),
        ]);
        let geese = Resource::new("example.com", "v2", "geese");
        assert_eq!(known.resource(&resource_type("Goose"), None), Ok(geese.clone()), "the preferred version");
        assert_eq!(known.kind_of(&geese), Some("Goose"));
        assert_eq!(known.kind_of(&Resource::new("example.com", "v1", "geese")), Some("Goose"));
        let older = Resource::new("example.com", "v1", "geese");
        assert_eq!(known.resource(&resource_type("Goose"), Some(("example.com/v1", "Goose"))), Ok(older));
        let claims = Resource::new("resource.k8s.io", "v1beta1", "resourceclaims");
        assert_eq!(
            known.resource(&resource_type("ResourceClaim"), None),
            Ok(claims),
            "as the cluster has it"
        );
        // Words that a dynamic controller derives from the plural.
        let databases = Resource::new("db.example", "v1", "databases");
        assert_eq!(known.resource(&ResourceType::parse("databas"), None), Ok(databases));
        assert_eq!(known.resource(&ResourceType::parse("geese"), None), Ok(geese));
        let leases = Resource::new("coordination.k8s.io", "v1", "leases");
        assert_eq!(known.resource(&ResourceType::parse("leases"), None), Ok(leases));
        // What the word alone means, and what the object says instead.
        assert_eq!(known.resource(&resource_type("Service"), None), Ok(Resource::new("", "v1", "services")));
        let said = Some(("serving.example.com/v1", "Service"));
        let services = Resource::new("serving.example.com", "v1", "services");
        assert_eq!(known.resource(&resource_type("Service"), said), Ok(services));
        let why = known.resource(&resource_type("Twin"), None).expect_err("two have it");
        assert!(why.contains("a.example") && why.contains("b.example"), "{why}");
        // An object that names an unknown kind gets the plural that KubeEdge guesses.
        let said = Some(("other.example/v1", "Policy"));
        let guessed = Resource::new("other.example", "v1", "policies");
        assert_eq!(known.resource(&resource_type("Policy"), said), Ok(guessed));
    }

    #[test]
    fn odd_documents_name_no_kinds() {
        for text in ["", "[]", "{}", r#"{"items":7}"#] {
            assert!(Kinds::discovered(text.as_bytes()).is_err(), "{text}");
        }
        let long = "w".repeat(WORD_LEN_MAX + 1);
        let odd = kinds(&[("a", &[("v1", &long, "W"), ("v1", "", "W"), ("v1", "ws", "")])]);
        assert_eq!(odd, Kinds::default());
        let nothing = json!({"items": [{"metadata": {}}, {"metadata": {"name": "a"}, "versions": null},
            {"metadata": {"name": "a"}, "versions": [{"version": "v1", "resources": null}]},
            {"metadata": {"name": "a"}, "versions": [{"version": "v1", "resources": [{"resource": "x"}]}]}]});
        assert_eq!(Kinds::discovered(nothing.to_string().as_bytes()).expect("a document"), Kinds::default());
        let many: Vec<(&str, String, &str)> = (0..=KINDS_MAX).map(|n| ("v1", format!("w{n}"), "W")).collect();
        let many: Vec<_> = many.iter().map(|(version, plural, kind)| (*version, &**plural, *kind)).collect();
        assert_eq!(kinds(&[("a", &many)]).discovered.len(), KINDS_MAX);
    }
}
