//! The use by objects of the resources that a ResourceQuota limits, and the quotas that they count against.
//!
//! The rules are those of kube-apiserver's evaluators (`pkg/quota/v1/evaluator/core`): pods count by their requests and
//! limits, Services by their ports, claims by their storage or devices, all other objects by their number.

mod amounts;
mod claims;
mod pods;
mod scopes;
mod services;

use serde_json::Value;
use tombolo_apicore::schema::Quantity;
use tombolo_proto::object::Resource;

pub(super) use self::amounts::Amounts;
pub(super) use self::pods::together;
use super::objects::core;

/// Kinds of the core group that have a quota name of their own, from the time before `count/`.
const COUNTED_BY_NAME: [&str; 4] = ["configmaps", "replicationcontrollers", "resourcequotas", "secrets"];

/// The resource of quotas.
pub(super) fn quotas() -> Resource {
    core("resourcequotas")
}

/// An object and its resource.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item<'a> {
    /// API group; empty for the core group.
    pub(super) group: &'a str,
    /// Plural name of the kind.
    pub(super) resource: &'a str,
    /// The object.
    pub(super) object: &'a Value,
}

impl Item<'_> {
    /// The use by the object.
    pub(super) fn usage(self) -> Amounts {
        let mut used = match (self.group, self.resource) {
            ("", "pods") => pods::usage(self.object),
            ("", "services") => services::usage(self.object),
            ("", "persistentvolumeclaims") => claims::storage(self.object),
            ("resource.k8s.io", "resourceclaims") => claims::devices(self.object),
            ("", resource) if COUNTED_BY_NAME.contains(&resource) => {
                Amounts::one(resource, Quantity::whole(1))
            }
            _ => Amounts::default(),
        };
        used.add(&Amounts::one(&counted_as(self.group, self.resource), Quantity::whole(1)));
        used
    }

    /// Whether a quota counts this object: it limits something that the object may use, and the object is in its
    /// scopes.
    pub(super) fn counts_against(self, quota: &Value) -> bool {
        let limits = Amounts::read(quota.pointer("/status/hard"));
        limits.names().any(|name| tracks(self.group, self.resource, name)) && self.in_scopes(quota)
    }

    /// Whether an update moved the object into other scopes: a pod's deadline may be set later.
    pub(super) fn has_moved(self, old: &Value) -> bool {
        (self.group, self.resource) == ("", "pods")
            && pods::has_deadline(self.object) != pods::has_deadline(old)
    }

    /// Whether the object is in all scopes of a quota.
    pub(super) fn in_scopes(self, quota: &Value) -> bool {
        scopes::contain(quota, self)
    }

    /// The limits for which the object must set requests or limits, and the containers that do not; `None` when nothing
    /// is missing.
    pub(super) fn unsaid(self, limits: &Amounts) -> Option<String> {
        if (self.group, self.resource) == ("", "pods") { pods::unsaid(self.object, limits) } else { None }
    }
}

/// Whether objects of a resource count against the limit of this name.
pub(super) fn tracks(group: &str, resource: &str, name: &str) -> bool {
    if name.strip_prefix("count/").is_some() {
        return name == counted_as(group, resource);
    }
    match (group, resource) {
        ("", "pods") => pods::tracks(name),
        ("", "services") => services::NAMES.contains(&name),
        ("", "persistentvolumeclaims") => claims::tracks_storage(name),
        ("resource.k8s.io", "resourceclaims") => claims::tracks_devices(name),
        ("", _) => COUNTED_BY_NAME.contains(&resource) && name == resource,
        _ => false,
    }
}

/// Whether objects of a resource are never counted. This holds for events.
pub(super) fn is_ignored(group: &str, resource: &str) -> bool {
    matches!((group, resource), ("" | "events.k8s.io", "events"))
}

/// Whether only the number of a resource's objects counts, not their content.
pub(super) fn is_counted_only(group: &str, resource: &str) -> bool {
    !matches!(
        (group, resource),
        ("", "pods" | "services" | "persistentvolumeclaims") | ("resource.k8s.io", "resourceclaims")
    )
}

fn counted_as(group: &str, resource: &str) -> String {
    if group.is_empty() { format!("count/{resource}") } else { format!("count/{resource}.{group}") }
}

#[cfg(test)]
mod tests;
