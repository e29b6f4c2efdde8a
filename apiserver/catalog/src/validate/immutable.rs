//! Immutable fields by kind, as a table.

use serde_json::Value;

use super::IMMUTABLE;
use super::field::{Errors, Field};
use super::walk::top;

/// How a change is reported.
#[derive(Clone, Copy)]
enum ChangeRefusal {
    /// As an immutable field.
    Immutable,
    /// As an invalid value, with this message.
    Invalid(&'static str),
    /// As forbidden, with this message.
    Forbidden(&'static str),
}

use ChangeRefusal::{Forbidden, Immutable, Invalid};

/// Group, kind, field and kind of error. Kinds that need more than a comparison have their own functions.
const FIELDS: [(&str, &str, &str, ChangeRefusal); 34] = [
    ("apps", "ControllerRevision", "data", Immutable),
    ("apps", "DaemonSet", "spec.selector", Immutable),
    ("apps", "Deployment", "spec.selector", Immutable),
    ("apps", "ReplicaSet", "spec.selector", Immutable),
    ("batch", "Job", "spec.selector", Immutable),
    ("batch", "Job", "spec.completionMode", Immutable),
    ("batch", "Job", "spec.podFailurePolicy", Immutable),
    ("batch", "Job", "spec.backoffLimitPerIndex", Immutable),
    ("batch", "Job", "spec.managedBy", Immutable),
    ("batch", "Job", "spec.successPolicy", Immutable),
    ("discovery.k8s.io", "EndpointSlice", "addressType", Immutable),
    ("networking.k8s.io", "IPAddress", "spec.parentRef", Immutable),
    ("networking.k8s.io", "IngressClass", "spec.controller", Immutable),
    ("node.k8s.io", "RuntimeClass", "handler", Immutable),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", "roleRef", Invalid("cannot change roleRef")),
    ("rbac.authorization.k8s.io", "RoleBinding", "roleRef", Invalid("cannot change roleRef")),
    ("resource.k8s.io", "ResourceClaim", "spec", Immutable),
    ("resource.k8s.io", "ResourceClaimTemplate", "spec", Immutable),
    ("resource.k8s.io", "ResourceSlice", "spec.pool.name", Immutable),
    ("resource.k8s.io", "ResourceSlice", "spec.driver", Immutable),
    ("resource.k8s.io", "ResourceSlice", "spec.nodeName", Immutable),
    ("scheduling.k8s.io", "PriorityClass", "value", Forbidden("may not be changed in an update.")),
    ("scheduling.k8s.io", "PriorityClass", "preemptionPolicy", Immutable),
    ("storage.k8s.io", "CSIDriver", "spec.attachRequired", Immutable),
    ("storage.k8s.io", "CSIDriver", "spec.volumeLifecycleModes", Immutable),
    ("storage.k8s.io", "CSIStorageCapacity", "nodeTopology", Immutable),
    ("storage.k8s.io", "CSIStorageCapacity", "storageClassName", Immutable),
    ("storage.k8s.io", "StorageClass", "parameters", Immutable),
    ("storage.k8s.io", "StorageClass", "provisioner", Immutable),
    ("storage.k8s.io", "StorageClass", "reclaimPolicy", Immutable),
    ("storage.k8s.io", "StorageClass", "volumeBindingMode", Immutable),
    ("storage.k8s.io", "VolumeAttachment", "spec", Immutable),
    (
        "storage.k8s.io",
        "VolumeAttributesClass",
        "driverName",
        Forbidden("updates to driverName are forbidden."),
    ),
    (
        "storage.k8s.io",
        "VolumeAttributesClass",
        "parameters",
        Forbidden("updates to parameters are forbidden."),
    ),
];

/// Fields that are pointers to strings in Go: absent differs from an empty text.
const POINTERS: [&str; 2] = ["spec.managedBy", "spec.nodeName"];

/// The field name in errors, which differs for one field.
fn shown(field: &'static str) -> &'static str {
    match field {
        "spec.attachRequired" => "spec.attachedRequired",
        other => other,
    }
}

/// Reports the fields of the table that an update changes.
pub(super) fn check(group_kind: (&str, &str), new: &Value, old: &Value, errors: &mut Errors) {
    let own = FIELDS.iter().filter(|(group, kind, ..)| (*group, *kind) == group_kind);
    for (_, _, path, how) in own {
        let (now, before) = (top(new, path), top(old, path));
        if now.value() == before.value() {
            continue;
        }
        // A removed text is shown as an empty one.
        let empty = Value::from("");
        let value = if before.value().is_string() && !now.is_set() && !POINTERS.contains(path) {
            &empty
        } else {
            now.value()
        };
        let field = Field::root(shown(path), value);
        errors.push(match how {
            Immutable => field.invalid(IMMUTABLE),
            Invalid(detail) => field.invalid(*detail),
            Forbidden(detail) => field.forbidden(detail),
        });
    }
}
