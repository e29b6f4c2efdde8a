//! Paths of the Kubernetes API.

use tombolo_proto::object::{ObjectKey, Resource, ResourceParts};

/// Namespace of node leases (Kubernetes convention).
pub(crate) const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Where objects of a resource are listed and created; of one namespace unless that is empty.
pub(crate) fn collection(resource: &Resource, namespace: &str) -> String {
    let ResourceParts { group, version, name } = &**resource;
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    if namespace.is_empty() {
        return format!("{root}/{name}");
    }
    format!("{root}/namespaces/{namespace}/{name}")
}

/// Where one object is.
pub(crate) fn object(key: &ObjectKey) -> String {
    format!("{}/{}", collection(key.resource(), key.namespace()), key.name())
}

/// Where a part of an object is; the object itself if `subresource` is empty.
pub(crate) fn part(key: &ObjectKey, subresource: &str) -> String {
    let whole = object(key);
    if subresource.is_empty() { whole } else { format!("{whole}/{subresource}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_and_groups_namespaced_and_not() {
        let key = |group: &str, name: &str, namespace: &str| {
            object(&ObjectKey::new(Resource::new(group, "v1", name), namespace, "a"))
        };
        assert_eq!(key("", "pods", "d"), "/api/v1/namespaces/d/pods/a");
        assert_eq!(key("", "nodes", ""), "/api/v1/nodes/a");
        assert_eq!(key("storage.k8s.io", "csinodes", ""), "/apis/storage.k8s.io/v1/csinodes/a");
    }
}
