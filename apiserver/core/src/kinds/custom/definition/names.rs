//! Names in a definition: its own, its group's and those of its kind.

use serde_json::Value;

use super::rules;
use crate::field_error::FieldError;
use crate::value::{items, text};

/// Annotation that definitions in the groups of Kubernetes itself require.
const APPROVED: &str = "api-approved.kubernetes.io";

const PROPOSAL: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// Checks the name of a definition and its group.
pub(super) fn check_own(definition: &Value, errors: &mut Vec<FieldError>) {
    let spec = &definition["spec"];
    let (group, plural) = (text(spec, &["group"]), text(spec, &["names", "plural"]));
    let name = text(definition, &["metadata", "name"]);
    if name != format!("{plural}.{group}") {
        errors.push(FieldError::invalid("metadata.name", name, "must be spec.names.plural+\".\"+spec.group"));
    }
    check_group(group, errors);
}

/// Checks the names of the kind.
pub(super) fn check_kind(names: &Value, errors: &mut Vec<FieldError>) {
    const OWN: [&str; 4] = ["plural", "singular", "kind", "listKind"];
    let kind = text(names, &["kind"]);
    for key in OWN {
        // Singular and list kind default to names that are derived from the kind.
        let has_default = matches!(key, "singular" | "listKind") && !kind.is_empty();
        if text(names, &[key]).is_empty() && !has_default {
            errors.push(FieldError::required(format!("spec.names.{key}"), ""));
        }
    }
    OWN.iter().for_each(|key| check_name(names, key, errors));
    for list in ["shortNames", "categories"] {
        if list == "categories" && !kind.is_empty() && kind == text(names, &["listKind"]) {
            let detail = "kind and listKind may not be the same";
            errors.push(FieldError::invalid("spec.names.listKind", kind, detail));
        }
        for (index, value) in items(names, &[list]).iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            if let Some(problem) = rules::dns1035_label(value) {
                errors.push(FieldError::invalid(format!("spec.names.{list}[{index}]"), value, problem));
            }
        }
    }
}

fn check_group(group: &str, errors: &mut Vec<FieldError>) {
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if let Some(problem) = rules::dns1123_subdomain(group) {
        errors.push(FieldError::invalid("spec.group", group, problem));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid("spec.group", group, "should be a domain with at least one dot"));
    }
}

/// Checks that a definition in a group of Kubernetes has the approval annotation.
pub(super) fn check_approval(definition: &Value, errors: &mut Vec<FieldError>) {
    let (group, annotation) =
        (text(definition, &["spec", "group"]), &definition["metadata"]["annotations"][APPROVED]);
    let protected = |own: &str| group == own || group.ends_with(&format!(".{own}"));
    if !protected("k8s.io") && !protected("kubernetes.io") {
        return;
    }
    let at = format!("metadata.annotations[{APPROVED}]");
    let annotation = annotation.as_str().unwrap_or_default();
    if annotation.is_empty() {
        let detail = format!("protected groups must have approval annotation {APPROVED:?}, {PROPOSAL}");
        errors.push(FieldError::required(at, detail));
    } else if !annotation.starts_with("unapproved") && !is_address(annotation) {
        let detail = format!(
            "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting with \
             \"unapproved\", {PROPOSAL}"
        );
        errors.push(FieldError::invalid(at, annotation, detail));
    }
}

fn is_address(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| uri.scheme().is_some() && uri.host().is_some())
}

fn check_name(names: &Value, key: &str, errors: &mut Vec<FieldError>) {
    let name = text(names, &[key]);
    let at = format!("spec.names.{key}");
    if name.is_empty() {
        return;
    }
    let mixed_case = matches!(key, "kind" | "listKind");
    let lower = if mixed_case { name.to_lowercase() } else { name.to_owned() };
    if let Some(problem) = rules::dns1035_label(&lower) {
        let prefix = if mixed_case { "may have mixed case, but should otherwise match: " } else { "" };
        errors.push(FieldError::invalid(at, name, format!("{prefix}{problem}")));
    }
}
