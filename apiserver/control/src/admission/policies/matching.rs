//! Which requests policies and bindings match (`MatchResources`).

use serde_json::Value;
use tombolo_apicore::admission::{AdmissionRequest, Operation};

use super::{Policy, words};
use crate::objects::{Objects, core, items, text};
use crate::selector::selects;

/// Whether a policy applies to a request: both the policy and the binding must match it.
pub(super) fn binds(
    binding: &Value,
    policy: &Policy,
    request: &AdmissionRequest<'_>,
    objects: &Objects,
) -> bool {
    matches(policy.object.pointer("/spec/matchConstraints"), request, objects)
        && matches(binding.pointer("/spec/matchResources"), request, objects)
}

/// Whether a policy's `matchConstraints` or a binding's `matchResources` match a request. A missing field matches every
/// request.
fn matches(resources: Option<&Value>, request: &AdmissionRequest<'_>, objects: &Objects) -> bool {
    let Some(resources) = resources.filter(|resources| resources.is_object()) else { return true };
    let equivalent = text(resources, "/matchPolicy") != "Exact";
    let any = |list: &str| items(resources, list).iter().any(|rule| rule_matches(rule, request, equivalent));
    // Without rules, only the selectors restrict the match.
    let chosen = items(resources, "/resourceRules").is_empty() || any("/resourceRules");
    chosen
        && !any("/excludeResourceRules")
        && namespace_matches(resources.get("namespaceSelector"), request, objects)
        && object_matches(resources.get("objectSelector"), request)
}

fn rule_matches(rule: &Value, request: &AdmissionRequest<'_>, equivalent: bool) -> bool {
    let asked = request.attributes;
    let has = |list: &str, value: &str| words(rule, list).any(|one| one == "*" || one == value);
    let operation = match request.operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
    };
    // All versions of a group and resource hold the same objects: a rule for one version matches all, unless the policy
    // is Exact.
    let version = equivalent || has("/apiVersions", &asked.version);
    let named = items(rule, "/resourceNames").is_empty() || has("/resourceNames", request.name);
    let scope = match text(rule, "/scope") {
        "Cluster" => request.namespace.is_empty(),
        "Namespaced" => !request.namespace.is_empty(),
        _ => true,
    };
    has("/operations", operation)
        && has("/apiGroups", &asked.group)
        && version
        && named
        && scope
        && words(rule, "/resources")
            .any(|pattern| resource_matches(pattern, &asked.resource, &asked.subresource))
}

/// `pods`, `pods/status`, `pods/*`, `*/scale`, `*` (no subresource) and `*/*`.
fn resource_matches(pattern: &str, resource: &str, subresource: &str) -> bool {
    let (wanted, below) = pattern.split_once('/').unwrap_or((pattern, ""));
    (wanted == "*" || wanted == resource) && (below == subresource || below == "*")
}

fn namespace_matches(selector: Option<&Value>, request: &AdmissionRequest<'_>, objects: &Objects) -> bool {
    let Some(selector) = selector.filter(|selector| selector.as_object().is_some_and(|map| !map.is_empty()))
    else {
        return true;
    };
    let asked = request.attributes;
    if asked.group.is_empty() && asked.resource == "namespaces" {
        let own = request.object.as_deref().or(request.old);
        return own.is_some_and(|object| selects(selector, object));
    }
    if request.namespace.is_empty() {
        return true;
    }
    let namespace = objects.get(core("namespaces"), "", request.namespace);
    namespace.is_some_and(|found| selects(selector, &found.value))
}

fn object_matches(selector: Option<&Value>, request: &AdmissionRequest<'_>) -> bool {
    let Some(selector) = selector.filter(|selector| selector.as_object().is_some_and(|map| !map.is_empty()))
    else {
        return true;
    };
    let either = [request.object.as_deref(), request.old];
    either.into_iter().flatten().any(|object| selects(selector, object))
}

#[cfg(test)]
mod tests {
    use super::resource_matches;

    #[test]
    fn resource_patterns_distinguish_subresources() {
        let cases = [
            ("pods", "pods", "", true),
            ("pods", "pods", "status", false),
            ("*", "pods", "", true),
            ("*", "pods", "status", false),
            ("pods/*", "pods", "status", true),
            ("pods/*", "pods", "", true),
            ("*/scale", "deployments", "scale", true),
            ("*/scale", "deployments", "", false),
            ("*/*", "nodes", "status", true),
            ("deployments", "pods", "", false),
        ];
        for (pattern, resource, subresource, wanted) in cases {
            assert_eq!(
                resource_matches(pattern, resource, subresource),
                wanted,
                "{pattern} {resource}/{subresource}"
            );
        }
    }
}
