//! Validates a CustomResourceDefinition as kube-apiserver does, and records its storage version.

mod columns;
mod names;
mod selectable;

use std::collections::HashSet;

use serde_json::{Value, json};

use super::KindInfo;
use crate::field_error::FieldError;
use crate::names as rules;
use crate::schema::types::Types;
use crate::value::object_at;
use crate::value::{at, items, text};

/// Longest deprecation warning, in bytes.
const WARNING_LEN_MAX: usize = 256;

/// Validates a definition; errors are in the order of kube-apiserver. A new one is checked as a whole; for an existing
/// one the stored versions are checked separately.
#[must_use]
pub fn check(kind: &KindInfo, definition: &Value, is_new: bool) -> Vec<FieldError> {
    check_with(definition, kind.schema().types(), is_new)
}

pub(super) fn check_with(definition: &Value, builtin: &Types, is_new: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &definition["spec"];
    let versions = items(spec, &["versions"]);
    names::check_own(definition, &mut errors);
    match text(spec, &["scope"]) {
        "Cluster" | "Namespaced" => {}
        "" => errors.push(FieldError::required("spec.scope", "")),
        other => errors.push(FieldError::not_supported("spec.scope", other, &["Cluster", "Namespaced"])),
    }
    check_versions(spec, builtin, &mut errors);
    names::check_kind(&spec["names"], &mut errors);
    check_parts(versions, None, builtin, &mut errors);
    check_conversion(&spec["conversion"], &mut errors);
    if is_new {
        check_stored_versions(definition, &mut errors);
    }
    names::check_approval(definition, &mut errors);
    if spec["preserveUnknownFields"] == true {
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            true,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
             spec.versions[*].schema instead",
        ));
    }
    errors
}

fn check_conversion(conversion: &Value, errors: &mut Vec<FieldError>) {
    if !conversion.is_object() {
        return;
    }
    let at = "spec.conversion.strategy";
    match text(conversion, &["strategy"]) {
        "" => errors.push(FieldError::required(at, "")),
        "None" => {}
        "Webhook" => {
            let detail = "this API server calls no conversion webhooks; the only strategy is None";
            return errors.push(FieldError::forbidden(at, detail));
        }
        other => errors.push(FieldError::not_supported(at, other, &["None", "Webhook"])),
    }
    let webhook = &conversion["webhook"];
    let unwanted = [
        ("webhookClientConfig", webhook["clientConfig"].is_object()),
        ("conversionReviewVersions", !items(webhook, &["conversionReviewVersions"]).is_empty()),
    ];
    for (field, _) in unwanted.iter().filter(|(_, is_set)| *is_set) {
        let detail = "should not be set when strategy is not set to Webhook";
        errors.push(FieldError::forbidden(format!("spec.conversion.{field}"), detail));
    }
}

fn check_versions(spec: &Value, builtin: &Types, errors: &mut Vec<FieldError>) {
    let versions = items(spec, &["versions"]);
    for (index, version) in versions.iter().enumerate() {
        if !at(version, &["schema", "openAPIV3Schema"]).is_object() {
            errors.push(FieldError::required(format!("spec.versions[{index}].schema.openAPIV3Schema"), ""));
        }
    }
    let (mut seen, mut are_unique) = (HashSet::new(), true);
    for (index, version) in versions.iter().enumerate() {
        let name = text(version, &["name"]);
        let at = format!("spec.versions[{index}]");
        if let Some(problem) = rules::dns1035_label(name) {
            errors.push(FieldError::invalid(format!("{at}.name"), name, problem));
        }
        are_unique &= seen.insert(name);
        check_warning(version, &at, errors);
        check_parts(versions, Some(index), builtin, errors);
    }
    if !are_unique {
        let text = "must contain unique version names";
        errors.push(FieldError::invalid("spec.versions", spec["versions"].clone(), text));
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let text = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", spec["versions"].clone(), text));
    }
    // Older clients know the first version as the only one.
    let first = versions.first().map(|version| text(version, &["name"])).unwrap_or_default();
    if let Some(problem) = rules::dns1035_label(first).filter(|_| !first.is_empty()) {
        errors.push(FieldError::invalid("spec.version", first, problem));
    }
}

fn check_warning(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let mut report =
        |text: &str| errors.push(FieldError::invalid(format!("{path}.deprecationWarning"), warning, text));
    if version["deprecated"] != true {
        return report("can only be set for deprecated versions");
    }
    if warning.len() > WARNING_LEN_MAX {
        report("must be <= 256 characters long");
    }
    if warning.is_empty() {
        report("must not be an empty string");
    }
    if let Some((at, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        report(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {at}"
        ));
    }
}

/// Checks the schema of a version and what belongs to it. What all versions have in common is a part of the
/// specification itself (no `index`), everything else a part of the version.
fn check_parts(versions: &[Value], index: Option<usize>, builtin: &Types, errors: &mut Vec<FieldError>) {
    let Some(version) = versions.get(index.unwrap_or(0)) else { return };
    let is_here = |key: &str| is_shared(versions, key) == index.is_none();
    let path = |key: &str| match index {
        Some(index) => format!("spec.versions[{index}].{key}"),
        None => format!("spec.{key}"),
    };
    let schema = at(version, &["schema", "openAPIV3Schema"]);
    if is_here("schema") && schema.is_object() {
        let compiled =
            crate::schema::crd::compile(schema, &schema_path(versions, index.unwrap_or(0)), builtin);
        errors.extend(compiled.err().into_iter().flatten());
    }
    if is_here("subresources") {
        check_scale(&version["subresources"]["scale"], &path("subresources"), errors);
    }
    if is_here("additionalPrinterColumns") {
        let columns = items(version, &["additionalPrinterColumns"]);
        columns::check(columns, &path("additionalPrinterColumns"), errors);
    }
    let fields = items(version, &["selectableFields"]);
    if !is_here("selectableFields") || fields.is_empty() {
        return;
    }
    let path = path("selectableFields");
    if index.is_some() && (is_shared(versions, "schema") || !schema.is_object()) {
        // kube-apiserver checks this after it moved what all versions have in common out of them.
        let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
        return errors.push(FieldError::invalid(path, "", detail));
    }
    selectable::check(fields, schema, &path, errors);
}

fn is_shared(versions: &[Value], key: &str) -> bool {
    versions.windows(2).all(|pair| pair[0][key] == pair[1][key])
}

fn check_scale(scale: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if !scale.is_object() {
        return;
    }
    let both: &[&str] = &[".spec.", ".status."];
    let fields: [(&str, &[&str], &str); 3] = [
        ("specReplicasPath", &[".spec."], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], "should be a json path under .status"),
        ("labelSelectorPath", both, "should be a json path under either .spec or .status"),
    ];
    for (key, prefixes, problem) in fields {
        let at = format!("{path}.scale.{key}");
        match text(scale, &[key]) {
            "" if key == "labelSelectorPath" => {}
            "" => errors.push(FieldError::required(at, "")),
            found if !found.starts_with('.') => {
                errors.push(FieldError::invalid(at, found, columns::NOT_SIMPLE));
            }
            found if !prefixes.iter().any(|prefix| found.starts_with(prefix)) => {
                errors.push(FieldError::invalid(at, found, problem));
            }
            _ => {}
        }
    }
}

/// Versions that objects were ever stored in must remain until a user removes them from `status.storedVersions`.
pub fn check_stored_versions(definition: &Value, errors: &mut Vec<FieldError>) {
    let path = "status.storedVersions";
    let stored = items(definition, &["status", "storedVersions"]);
    let shown = || at(definition, &["status", "storedVersions"]).clone();
    if stored.is_empty() {
        errors.push(FieldError::invalid(path, shown(), "must have at least one stored version"));
        return;
    }
    // A name that two versions have is searched for twice and found once.
    let mut missing: Vec<&Value> = stored.iter().collect();
    for version in items(definition, &["spec", "versions"]) {
        let found = missing.contains(&&version["name"]);
        if version["storage"] == true && !found {
            let detail = format!("must have the storage version {}", text(version, &["name"]));
            errors.push(FieldError::invalid(path, shown(), detail));
        }
        missing.retain(|name| **name != version["name"]);
    }
    for (index, name) in stored.iter().enumerate().filter(|(_, name)| missing.contains(name)) {
        let version = name.as_str().unwrap_or_default();
        let detail = format!(
            "missing from spec.versions; {version} was previously a storage version, and must remain in \
             spec.versions until a storage migration ensures no data remains persisted in {version} and \
             removes {version} from status.storedVersions"
        );
        errors.push(FieldError::invalid(format!("{path}[{index}]"), name.clone(), detail));
    }
}

/// The path under which errors of a version's schema are reported: versions with equal schemas share one.
pub(super) fn schema_path(versions: &[Value], index: usize) -> String {
    match is_shared(versions, "schema") {
        true => "spec.validation.openAPIV3Schema".to_owned(),
        false => format!("spec.versions[{index}].schema.openAPIV3Schema"),
    }
}

/// Adds the storage version to the list of versions that objects were ever stored in.
pub fn note_storage_version(definition: &mut Value) {
    let versions = items(definition, &["spec", "versions"]);
    let Some(version) = versions.iter().find(|version| version["storage"] == true) else { return };
    let name = version["name"].clone();
    let Value::Object(map) = definition else { return };
    let stored = object_at(map, "status").entry("storedVersions").or_insert_with(|| json!([]));
    if let Value::Array(list) = stored
        && !list.contains(&name)
    {
        list.push(name);
    }
}
