//! Validation of resource names and amounts.

use super::field::{Errors, Field};
use super::names;
use tombolo_apicore::schema::format::{NotAQuantity, Quantity};

const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];

const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

const REQUESTS: &str = "requests.";

/// Parses the amount.
pub(super) fn parse(amount: &Field<'_, '_>) -> Result<Quantity, NotAQuantity> {
    Quantity::parse(amount.text())
}

/// Whether the resource belongs to Kubernetes itself.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether the resource is an extended one, as device plugins offer. The quota name of its requests must be valid too.
fn is_extended(name: &str) -> bool {
    let wrong = is_native(name) || name.starts_with(REQUESTS);
    !wrong && names::qualified_name(&format!("{REQUESTS}{name}")).is_empty()
}

fn is_huge_pages_quota(name: &str) -> bool {
    name.starts_with("hugepages-") || name.starts_with("requests.hugepages-")
}

/// Whether containers may have a higher limit than request.
pub(super) fn may_overcommit(name: &str) -> bool {
    is_native(name) && !name.starts_with("hugepages-")
}

/// Checks the name of any resource. Returns whether it is valid.
pub(super) fn any_name(at: &Field<'_, '_>, name: &str, errors: &mut Errors) -> bool {
    let problems = names::qualified_name(name);
    if !problems.is_empty() {
        errors.extend(problems.into_iter().map(|problem| at.invalid_value(name, problem)));
        return false;
    }
    let standard = name.contains('/') || STANDARD.contains(&name) || is_huge_pages_quota(name);
    if !standard {
        errors.push(at.invalid_value(name, "must be a standard resource type or fully qualified"));
    }
    standard
}

/// Checks the name of a container resource.
pub(super) fn container_name(at: &Field<'_, '_>, name: &str, errors: &mut Errors) {
    any_name(at, name, errors);
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if name.contains('/') {
        if !is_native(name) && !is_extended(name) {
            errors.push(at.invalid_value(name, "doesn't follow extended resource name standard"));
        }
    } else if !standard {
        errors.push(at.invalid_value(name, "must be a standard resource for containers"));
    }
}

/// Checks the name of a pod-level resource.
pub(super) fn pod_name(at: &Field<'_, '_>, name: &str, errors: &mut Errors) {
    if any_name(at, name, errors) && !matches!(name, "cpu" | "memory") && !name.starts_with("hugepages-") {
        let words = ["cpu", "hugepages-", "memory"];
        errors.push(super::FieldError::not_supported(at.path(), name, &words));
    }
}

/// Checks the name of a resource that a quota limits.
pub(super) fn quota_name(at: &Field<'_, '_>, name: &str, errors: &mut Errors) {
    any_name(at, name, errors);
    if !name.contains('/') && !is_quota(name) {
        errors.push(at.invalid_value(name, "must be a standard resource for quota"));
    }
}

/// Whether the resource is a standard quota resource.
pub(super) fn is_quota(name: &str) -> bool {
    (STANDARD.contains(&name) && name != "storage") || is_huge_pages_quota(name)
}

/// Checks an amount: not negative, and an integer for countable resources.
pub(super) fn amount(name: &str, amount: &Field<'_, '_>, errors: &mut Errors) {
    let Ok(quantity) = parse(amount) else { return };
    if quantity.sign().is_lt() {
        errors.push(amount.invalid("must be greater than or equal to 0"));
    }
    if (COUNTED.contains(&name) || is_extended(name)) && quantity.rounded_up() != quantity {
        errors.push(amount.invalid("must be an integer"));
    }
}
