//! Checks a CustomResourceDefinition, and writes what the server says about an accepted one.

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::jsonpath::JsonPath;
use super::super::validate::names;
use super::super::value::{at, items, text};
use super::FieldError;
use crate::schema::format;
use crate::schema::types::{Types, object_at};

/// What is wrong with a definition.
pub(crate) fn check(definition: &Value, builtin: &Types) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &definition["spec"];
    let (group, plural) = (text(spec, &["group"]), text(spec, &["names", "plural"]));
    let name = text(definition, &["metadata", "name"]);
    if !group.is_empty() && name != format!("{plural}.{group}") {
        errors.push(FieldError::invalid("metadata.name", name, "must be spec.names.plural+\".\"+spec.group"));
    }
    check_group(group, &mut errors);
    check_names(spec, &mut errors);
    match text(spec, &["scope"]) {
        "Cluster" | "Namespaced" => {}
        "" => errors.push(FieldError::required("spec.scope", "")),
        other => errors.push(FieldError::not_supported("spec.scope", other, &["Cluster", "Namespaced"])),
    }
    if at(spec, &["conversion", "strategy"]) == "Webhook" {
        let text = "this API server calls no conversion webhooks; the only strategy is None";
        errors.push(FieldError::forbidden("spec.conversion.strategy", text));
    }
    if spec["preserveUnknownFields"] == true {
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            true,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
             spec.versions[*].schema instead",
        ));
    }
    check_versions(spec, builtin, &mut errors);
    errors
}

fn check_group(group: &str, errors: &mut Vec<FieldError>) {
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if let Some(problem) = names::dns1123_subdomain(group) {
        errors.push(FieldError::invalid("spec.group", group, problem));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid("spec.group", group, "should be a domain with at least one dot"));
    }
}

fn check_names(spec: &Value, errors: &mut Vec<FieldError>) {
    for key in ["plural", "singular", "kind", "listKind"] {
        let name = text(spec, &["names", key]);
        let at = format!("spec.names.{key}");
        if name.is_empty() {
            // Singular and list kind have defaults.
            if matches!(key, "plural" | "kind") {
                errors.push(FieldError::required(at, ""));
            }
        } else if let Some(problem) = names::dns1035_label(&name.to_lowercase()) {
            let prefix = match key {
                "kind" | "listKind" => "may have mixed case, but should otherwise match: ",
                _ => "",
            };
            errors.push(FieldError::invalid(at, name, format!("{prefix}{problem}")));
        }
    }
    let kind = text(spec, &["names", "kind"]);
    if !kind.is_empty() && kind == text(spec, &["names", "listKind"]) {
        errors.push(FieldError::invalid(
            "spec.names.listKind",
            kind,
            "kind and listKind may not be the same",
        ));
    }
    for list in ["shortNames", "categories"] {
        for (index, value) in items(spec, &["names", list]).iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            if let Some(problem) = names::dns1035_label(value) {
                errors.push(FieldError::invalid(format!("spec.names.{list}[{index}]"), value, problem));
            }
        }
    }
}

fn check_versions(spec: &Value, builtin: &Types, errors: &mut Vec<FieldError>) {
    let versions = items(spec, &["versions"]);
    if versions.is_empty() {
        errors.push(FieldError::required("spec.versions", "must have at least one version"));
        return;
    }
    let mut seen = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        let name = text(version, &["name"]);
        let at = format!("spec.versions[{index}]");
        if let Some(problem) = names::dns1035_label(name) {
            errors.push(FieldError::invalid(format!("{at}.name"), name, problem));
        }
        if !seen.insert(name) {
            errors.push(FieldError::invalid("spec.versions", name, "must contain unique version names"));
        }
        check_version(version, &at, &schema_path(versions, index), builtin, errors);
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let text = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", spec["versions"].clone(), text));
    }
}

fn check_version(
    version: &Value,
    path: &str,
    schema_path: &str,
    builtin: &Types,
    errors: &mut Vec<FieldError>,
) {
    let schema = self::at(version, &["schema", "openAPIV3Schema"]);
    match schema.is_object() {
        false => errors
            .push(FieldError::required(format!("{path}.schema.openAPIV3Schema"), "schemas are required")),
        true => {
            if let Err(found) = crate::schema::crd::compile(schema, schema_path, builtin) {
                errors.extend(found);
            }
        }
    }
    for (index, column) in items(version, &["additionalPrinterColumns"]).iter().enumerate() {
        check_column(column, &format!("{path}.additionalPrinterColumns[{index}]"), errors);
    }
    for (index, field) in items(version, &["selectableFields"]).iter().enumerate() {
        let at = format!("{path}.selectableFields[{index}].jsonPath");
        let path = text(field, &["jsonPath"]);
        match JsonPath::parse(path) {
            Err(problem) => {
                errors.push(FieldError::invalid(at, path, format!("is an invalid path: {problem}")));
            }
            Ok(parsed) if parsed.plain().is_none() => {
                errors.push(FieldError::invalid(
                    at,
                    path,
                    "is an invalid path: only field names are allowed",
                ));
            }
            Ok(_) => {}
        }
    }
    let scale = self::at(version, &["subresources", "scale"]);
    if scale.is_object() {
        for (key, prefix) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
            let at = format!("{path}.subresources.scale.{key}");
            match text(scale, &[key]) {
                "" => errors.push(FieldError::required(at, "")),
                found if !found.starts_with(prefix) => {
                    let text = format!("should be a json path under {}", prefix.trim_end_matches('.'));
                    errors.push(FieldError::invalid(at, found, text));
                }
                _ => {}
            }
        }
    }
}

fn check_column(column: &Value, path: &str, errors: &mut Vec<FieldError>) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    if text(column, &["name"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    let ty = text(column, &["type"]);
    let allowed = format!("must be one of {}", TYPES.join(","));
    if ty.is_empty() {
        errors.push(FieldError::required(format!("{path}.type"), allowed));
    } else if !TYPES.contains(&ty) {
        errors.push(FieldError::invalid(format!("{path}.type"), ty, allowed));
    }
    match text(column, &["jsonPath"]) {
        "" => errors.push(FieldError::required(format!("{path}.JSONPath"), "")),
        json_path => {
            if let Err(problem) = JsonPath::parse(json_path) {
                errors.push(FieldError::invalid(format!("{path}.jsonPath"), json_path, problem));
            }
        }
    }
}

/// Where errors of a version's schema are reported: versions with equal schemas share one place.
pub(super) fn schema_path(versions: &[Value], index: usize) -> String {
    let schema = |version: &Value| version["schema"].clone();
    match versions.windows(2).all(|pair| schema(&pair[0]) == schema(&pair[1])) {
        true => "spec.validation.openAPIV3Schema".to_owned(),
        false => format!("spec.versions[{index}].schema.openAPIV3Schema"),
    }
}

/// Writes the status of a definition that is accepted: its names, its stored versions and that it is established.
/// Conditions that already say so keep their time.
pub(crate) fn accept(definition: &mut Value, now: Timestamp) {
    let names = at(definition, &["spec", "names"]).clone();
    let stored: Vec<Value> = items(definition, &["spec", "versions"])
        .iter()
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .collect();
    let Value::Object(map) = definition else { return };
    let status = object_at(map, "status");
    status.insert("acceptedNames".into(), names);
    let versions = status.entry("storedVersions").or_insert_with(|| json!([]));
    if let Value::Array(list) = versions {
        for name in stored {
            if !list.contains(&name) {
                list.push(name);
            }
        }
    }
    let wanted = [
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ];
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Value::Array(list) = conditions else { return };
    for (ty, reason, message) in wanted {
        let met = |condition: &Value| text(condition, &["type"]) == ty && condition["status"] == "True";
        if list.iter().any(met) {
            continue;
        }
        list.retain(|condition| text(condition, &["type"]) != ty);
        list.push(json!({
            "type": ty,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": format::seconds(now),
        }));
    }
}
