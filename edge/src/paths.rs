//! Paths of the Kubernetes API.

use tombolo_proto::api_path::path_of;
use tombolo_proto::object::ObjectKey;

/// Namespace of node leases (Kubernetes convention).
pub(crate) const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Where one object is.
pub(crate) fn object(key: &ObjectKey) -> String {
    path_of(key.resource(), key.namespace(), key.name())
}

/// Where a part of an object is; the object itself if `subresource` is empty.
pub(crate) fn part(key: &ObjectKey, subresource: &str) -> String {
    let whole = object(key);
    if subresource.is_empty() { whole } else { format!("{whole}/{subresource}") }
}
