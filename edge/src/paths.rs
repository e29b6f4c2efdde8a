//! Paths of the Kubernetes API.

use tombolo_proto::api_path::path_of;
use tombolo_proto::object::ObjectKey;

/// Namespace of node leases (Kubernetes convention).
pub(crate) const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Path of one object.
pub(crate) fn object(key: &ObjectKey) -> String {
    path_of(key.resource(), key.namespace(), key.name())
}

/// Path of a subresource; of the object itself if `subresource` is empty.
pub(crate) fn part(key: &ObjectKey, subresource: &str) -> String {
    let whole = object(key);
    if subresource.is_empty() { whole } else { format!("{whole}/{subresource}") }
}
