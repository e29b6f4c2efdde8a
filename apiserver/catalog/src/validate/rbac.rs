//! Validation of roles and bindings (pkg/apis/rbac/validation).

use serde_json::Value;

use super::field::{Errors, Field};
use super::names;
use super::walk::top;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Checks one of these kinds.
pub(super) fn check(kind: &str, object: &Value, errors: &mut Errors) {
    match kind {
        "Role" => rules(object, true, errors),
        "ClusterRole" => {
            rules(object, false, errors);
            aggregation(&top(object, "aggregationRule"), errors);
        }
        "RoleBinding" => binding(object, &["Role", "ClusterRole"], true, errors),
        "ClusterRoleBinding" => binding(object, &["ClusterRole"], false, errors),
        _ => {}
    }
}

fn rules(object: &Value, namespaced: bool, errors: &mut Errors) {
    top(object, "rules").items().for_each(|one| rule(&one, namespaced, errors));
}

fn rule(rule: &Field<'_, '_>, namespaced: bool, errors: &mut Errors) {
    let verbs = rule.child("verbs");
    if verbs.is_empty() {
        errors.push(verbs.required("verbs must contain at least one value"));
    }
    let urls = rule.child("nonResourceURLs");
    let (groups, resources) = (rule.child("apiGroups"), rule.child("resources"));
    if !urls.is_empty() {
        if namespaced {
            errors.push(urls.invalid("namespaced rules cannot apply to non-resource URLs"));
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|list| !rule.child(list).is_empty()) {
            errors.push(urls.invalid("rules cannot apply to both regular resources and non-resource URLs"));
        }
        return;
    }
    if groups.is_empty() {
        errors.push(groups.required("resource rules must supply at least one api group"));
    }
    if resources.is_empty() {
        errors.push(resources.required("resource rules must supply at least one resource"));
    }
}

fn aggregation(rule: &Field<'_, '_>, errors: &mut Errors) {
    if !rule.is_set() {
        return;
    }
    let selectors = rule.child("clusterRoleSelectors");
    if selectors.is_empty() {
        let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.push(selectors.required(detail));
    }
    for selector in selectors.items() {
        let before = errors.len();
        selector.selector(errors);
        if errors.len() > before {
            errors.push(selector.invalid_value(Value::Null, "invalid label selector."));
        }
    }
}

fn binding(object: &Value, kinds: &[&str], namespaced: bool, errors: &mut Errors) {
    let role = top(object, "roleRef");
    let (group, kind) = (role.child("apiGroup"), role.child("kind"));
    if group.text() != GROUP {
        errors.push(group.not_supported(&[GROUP]));
    }
    if !kinds.contains(&kind.text()) {
        errors.push(kind.not_supported(kinds));
    }
    role.child("name").check_required(names::path_segment, errors);
    top(object, "subjects").items().for_each(|one| subject(&one, namespaced, errors));
}

fn subject(subject: &Field<'_, '_>, namespaced: bool, errors: &mut Errors) {
    let [kind, name, group, namespace] =
        ["kind", "name", "apiGroup", "namespace"].map(|field| subject.child(field));
    if name.text().is_empty() {
        errors.push(name.required(""));
    }
    match kind.text() {
        "ServiceAccount" => {
            name.check(names::dns1123_subdomain, errors);
            if !group.text().is_empty() {
                errors.push(group.not_supported(&[""]));
            }
            if !namespaced && namespace.text().is_empty() {
                errors.push(namespace.required(""));
            }
        }
        "User" | "Group" => {
            if group.text() != GROUP {
                errors.push(group.not_supported(&[GROUP]));
            }
        }
        _ => errors.push(kind.not_supported(&["ServiceAccount", "User", "Group"])),
    }
}
