//! Maps resource words of paths to API resources, and objects to their resources.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::message::{ObjectPath, ResourceType};
use crate::object::{ObjectKey, Resource};

/// Group, version, plural, kind and resource word of the resources that cross the wire by name
/// (docs/reference/kubeedge.md#resource-types). The resource word of everything else is its kind in lower case
/// (docs/reference/kubeedge.md#application-messages).
const TABLE: &[(&str, &str, &str, &str, ResourceType)] = &[
    ("", "v1", "pods", "Pod", ResourceType::Pod),
    ("", "v1", "configmaps", "ConfigMap", ResourceType::ConfigMap),
    ("", "v1", "secrets", "Secret", ResourceType::Secret),
    ("", "v1", "nodes", "Node", ResourceType::Node),
    ("", "v1", "services", "Service", ResourceType::Service),
    ("", "v1", "endpoints", "Endpoints", ResourceType::Endpoints),
    ("", "v1", "events", "Event", ResourceType::Event),
    ("", "v1", "persistentvolumes", "PersistentVolume", ResourceType::PersistentVolume),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", ResourceType::PersistentVolumeClaim),
    ("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", ResourceType::VolumeAttachment),
    ("coordination.k8s.io", "v1", "leases", "Lease", ResourceType::Lease),
    (
        "certificates.k8s.io",
        "v1",
        "certificatesigningrequests",
        "CertificateSigningRequest",
        ResourceType::CertificateSigningRequest,
    ),
];

/// The resources of the rows, so that keys share their texts.
static RESOURCES: LazyLock<Vec<Resource>> =
    LazyLock::new(|| TABLE.iter().map(|row| Resource::new(row.0, row.1, row.2)).collect());

/// The resource that a resource word of a path names, when the word alone determines it.
#[must_use]
pub fn resource_of(resource_type: &ResourceType) -> Option<Resource> {
    let index = TABLE.iter().position(|row| row.4 == *resource_type)?;
    RESOURCES.get(index).cloned()
}

/// The path with which an edge requests an object; none when its resource does not cross the wire by name.
#[must_use]
pub fn path_of(key: &ObjectKey) -> Option<ObjectPath> {
    let resource = key.resource();
    let row = TABLE.iter().find(|row| row.0 == &*resource.group && row.2 == &*resource.name)?;
    Some(ObjectPath::new(key.namespace(), row.4.clone(), key.name()))
}

/// The kind of a resource: known by name, or read from one of its objects. None when neither gives it.
#[must_use]
pub fn kind_name(resource: &Resource, body: Option<&[u8]>) -> Option<Box<str>> {
    #[derive(Deserialize)]
    struct KindOf {
        kind: Box<str>,
    }
    let known = TABLE.iter().find(|row| row.0 == &*resource.group && row.2 == &*resource.name);
    if let Some(row) = known {
        return Some(row.3.into());
    }
    let named: KindOf = serde_json::from_slice(body?).ok()?;
    (!named.kind.is_empty()).then_some(named.kind)
}

/// The kind of a resource that crosses the wire by name.
pub(super) fn known_kind(group: &str, plural: &str) -> Option<&'static str> {
    TABLE.iter().find(|row| row.0 == group && row.2 == plural).map(|row| row.3)
}

/// The resource word of a kind.
#[must_use]
pub fn type_word(kind: &str) -> ResourceType {
    ResourceType::parse(&kind.to_ascii_lowercase())
}

/// The resource word that a KubeEdge cloud's dynamic controller derives from a plural by English rules: mostly the kind
/// in lower case, but `leases` for leases and `databas` for databases
/// (docs/reference/kubeedge.md#application-messages).
fn watch_word(plural: &str) -> String {
    const AS_THEY_ARE: [&str; 2] = ["endpoints", "leases"];
    if AS_THEY_ARE.contains(&plural) {
        return plural.to_owned();
    }
    if let Some(stem) = plural.strip_suffix("ies") {
        return format!("{stem}y");
    }
    let suffix = if plural.ends_with("ses") { "es" } else { "s" };
    plural.strip_suffix(suffix).unwrap_or(plural).to_owned()
}

/// Whether a KubeEdge cloud uses this word for a resource in the path of a delivery: its kind in lower case, or the
/// word that its dynamic controller derives from the plural.
pub(super) fn is_word_of(resource_type: &str, plural: &str, kind: &str) -> bool {
    kind.eq_ignore_ascii_case(resource_type) || watch_word(plural) == resource_type
}

/// The same for an object that names its kind; an unknown plural is guessed.
#[must_use]
pub fn is_word_of_object(resource_type: &str, api_version: &str, kind: &str) -> bool {
    is_word_of(resource_type, &guess_resource(api_version, kind).name, kind)
}

/// The resource that the resource word of a delivery names, when the word alone determines it.
pub(super) fn pushed_as(resource_type: &ResourceType) -> Option<Resource> {
    let index = TABLE.iter().position(|row| is_word_of(resource_type.as_str(), row.2, row.3))?;
    RESOURCES.get(index).cloned()
}

/// `apiVersion` of the objects of a resource.
pub(super) fn api_version(resource: &Resource) -> String {
    match &*resource.group {
        "" => resource.version.as_ref().to_owned(),
        group => format!("{group}/{}", resource.version),
    }
}

/// The resource of an object that names its `apiVersion` and `kind`. Resources that are not in the table get the
/// plural that KubeEdge guesses (docs/reference/kubeedge.md#sync-controller), which is wrong for irregular ones.
pub(super) fn guess_resource(api_version: &str, kind: &str) -> Resource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if let Some(row) = TABLE.iter().find(|row| row.0 == group && row.3 == kind) {
        return Resource::new(group, version, row.2);
    }
    let lower = kind.to_ascii_lowercase();
    let plural = match lower.as_bytes() {
        [.., b's' | b'x'] | [.., b'c' | b's', b'h'] => format!("{lower}es"),
        [stem @ .., b'y'] if !stem.last().is_some_and(|letter| b"aeiou".contains(letter)) => {
            format!("{}ies", lower.trim_end_matches('y'))
        }
        _ => format!("{lower}s"),
    };
    Resource::new(group, version, &plural)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_kinds_and_resources_belong_together() {
        for (group, version, plural, kind, resource_type) in TABLE {
            let resource = Resource::new(group, version, plural);
            assert_eq!(type_word(kind), *resource_type);
            assert_eq!(resource_of(resource_type), Some(resource.clone()));
            assert_eq!(kind_name(&resource, None).as_deref(), Some(*kind));
            assert_eq!(guess_resource(&api_version(&resource), kind), resource);
            let path = path_of(&ObjectKey::new(resource, "d", "x")).expect("in the table");
            assert_eq!(path.to_string(), format!("d/{resource_type}/x"));
        }
    }

    #[test]
    fn a_dynamic_controller_makes_words_of_plurals() {
        for (plural, kind, resource_type) in [
            ("leases", "Lease", "leases"),
            ("endpoints", "Endpoints", "endpoints"),
            ("ingresses", "Ingress", "ingress"),
            ("networkpolicies", "NetworkPolicy", "networkpolicy"),
            ("databases", "Database", "databas"),
            ("meshes", "Mesh", "meshe"),
            ("geese", "Goose", "geese"),
        ] {
            assert_eq!(watch_word(plural), resource_type);
            assert!(
                is_word_of(resource_type, plural, kind) && is_word_of(&kind.to_lowercase(), plural, kind)
            );
            assert!(!is_word_of("pod", plural, kind));
        }
        assert!(is_word_of_object("leases", "coordination.k8s.io/v1", "Lease"));
        assert!(!is_word_of_object("leases", "example.com/v1", "Database"));
        let leases = Some(Resource::new("coordination.k8s.io", "v1", "leases"));
        assert_eq!(pushed_as(&ResourceType::parse("leases")), leases);
        assert_eq!(pushed_as(&ResourceType::Lease), leases);
    }

    #[test]
    fn other_kinds_come_from_the_object_and_plurals_are_guessed() {
        let slices = Resource::new("discovery.k8s.io", "v1", "endpointslices");
        assert_eq!(kind_name(&slices, None), None);
        assert_eq!(
            kind_name(&slices, Some(br#"{"a":1,"kind":"EndpointSlice"}"#)).as_deref(),
            Some("EndpointSlice")
        );
        assert_eq!(type_word("EndpointSlice").as_str(), "endpointslice");
        for (kind, plural) in [
            ("EndpointSlice", "endpointslices"),
            ("NetworkPolicy", "networkpolicies"),
            ("Gateway", "gateways"),
            ("IngressClass", "ingressclasses"),
            ("Mesh", "meshes"),
        ] {
            assert_eq!(&*guess_resource("g/v1", kind).name, plural);
        }
    }
}
