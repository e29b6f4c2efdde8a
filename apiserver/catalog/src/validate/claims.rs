//! Validation of claims, including those in pods and StatefulSets.

use serde_json::Value;

use super::field::{Errors, Field};
use super::quantities::{self, parse};
use super::selectors::label_selector;
use super::{FieldError, IMMUTABLE, meta, names};
use tombolo_apicore::schema::format::Quantity;
use tombolo_apicore::value::{at, text};

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const SINGLE: &str = "ReadWriteOncePod";
/// Annotation that named the class before the field existed.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Checks the access modes.
pub(super) fn access_modes(modes: &Field<'_, '_>, detail: &str, errors: &mut Errors) {
    if modes.is_empty() {
        errors.push(modes.required(detail));
    }
    for mode in modes.items() {
        if !MODES.contains(&mode.text()) {
            errors.push(modes.with_itself(mode.value()).not_supported(&MODES));
        }
    }
}

fn single(modes: &Field<'_, '_>, errors: &mut Errors) {
    let known = |mode: &&Value| mode.as_str().is_some_and(|mode| MODES.contains(&mode));
    let (one, other): (Vec<&Value>, Vec<&Value>) =
        modes.list().iter().filter(known).partition(|mode| *mode == SINGLE);
    if !one.is_empty() && !other.is_empty() {
        errors.push(modes.forbidden("may not use ReadWriteOncePod with other access modes"));
    }
}

/// Checks the access modes and that they can be combined.
pub(super) fn modes(spec: &Field<'_, '_>, detail: &str, errors: &mut Errors) {
    let modes = spec.child("accessModes");
    access_modes(&modes, detail, errors);
    single(&modes, errors);
}

/// Checks a claim.
pub(super) fn claim(claim: &Value, errors: &mut Errors) {
    spec(&Field::root("spec", &claim["spec"]), errors);
}

/// Checks a template for claims.
pub(super) fn template(template: &Field<'_, '_>, errors: &mut Errors) {
    const OTHERS: [(&str, &str); 10] = [
        ("name", "name"),
        ("generateName", "generateName"),
        ("namespace", "namespace"),
        ("selfLink", "selfLink"),
        ("uid", "uID"),
        ("resourceVersion", "resourceVersion"),
        ("generation", "generation"),
        ("ownerReferences", "ownerReferences"),
        ("finalizers", "finalizers"),
        ("managedFields", "managedFields"),
    ];
    let metadata = template.child("metadata");
    let (annotations, labels) = (metadata.child("annotations"), metadata.child("labels"));
    meta::annotations(annotations.value(), &annotations.path(), errors);
    meta::labels(labels.value(), &labels.path(), errors);
    for (field, shown) in OTHERS {
        let field = metadata.with(shown, &metadata.value()[field]);
        if !field.is_empty() {
            errors.push(field.forbidden("cannot be set"));
        }
    }
    spec(&template.child("spec"), errors);
}

/// Checks the spec of a claim.
pub(super) fn spec(spec: &Field<'_, '_>, errors: &mut Errors) {
    let detail = "at least 1 access mode is required";
    let modes = spec.child("accessModes");
    if modes.is_empty() {
        errors.push(modes.required(detail));
    }
    let selector = spec.child("selector");
    if selector.is_set() {
        label_selector(selector.value(), &selector.path(), errors);
    }
    if !modes.is_empty() {
        access_modes(&modes, detail, errors);
        single(&modes, errors);
    }
    let resources = spec.child("resources");
    let wanted = at(resources.value(), &["requests", "storage"]);
    storage(&resources, wanted, errors);
    spec.child("storageClassName").check(names::dns1123_subdomain, errors);
    spec.child("volumeMode").one_of(&["Block", "Filesystem"], errors);
    sources(spec, errors);
    spec.child("volumeAttributesClassName").check(names::dns1123_subdomain, errors);
}

/// Checks the requested size. Errors are reported at the entry of the resources.
fn storage(resources: &Field<'_, '_>, wanted: &Value, errors: &mut Errors) {
    let key = resources.key("storage");
    let size = key.with_itself(wanted);
    if !size.is_set() {
        errors.push(size.required(""));
    } else if !parse(&size).is_ok_and(|size| size.sign().is_gt()) {
        errors.push(size.invalid("must be greater than zero"));
    } else {
        quantities::amount("storage", &size, errors);
    }
}

/// A data source is in one field, or the same in both.
fn sources(spec: &Field<'_, '_>, errors: &mut Errors) {
    let (old, new) = (spec.child("dataSource"), spec.child("dataSourceRef"));
    for source in [&old, &new] {
        if !source.is_set() {
            continue;
        }
        let (name, kind, group) = (source.child("name"), source.child("kind"), source.child("apiGroup"));
        name.demand(errors);
        kind.demand(errors);
        if group.is_empty() && kind.text() != "PersistentVolumeClaim" {
            let text = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(source.invalid_value(kind.text(), text));
        }
        group.check(names::dns1123_subdomain, errors);
    }
    let namespace = new.child("namespace");
    namespace.check(names::dns1123_label, errors);
    if !old.is_set() || !new.is_set() {
        return;
    }
    let same = |field: &str| old.value()[field] == new.value()[field];
    let text = if !namespace.is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if !["apiGroup", "kind", "name"].into_iter().all(same) {
        "must match dataSourceRef"
    } else {
        return;
    };
    errors.push(spec.invalid_value(serde_json::json!({}), text));
}

const CLAIM: &str = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

/// Checks what an update changes.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    let annotation = |claim: &Value| text(claim, &["metadata", "annotations", CLASS]).to_owned();
    let (now, before) = (&new["spec"], &old["spec"]);
    let class = now["storageClassName"].as_str();
    let (from, to) = (annotation(old), annotation(new));
    let unset = before["storageClassName"].is_null();
    let upgraded = unset && !from.is_empty() && class == Some(&from) && (to.is_empty() || to == from);
    if !upgraded && from != to {
        errors.push(FieldError::invalid(format!("metadata.annotations.{CLASS}"), to, IMMUTABLE));
    }
    let named = unset && class.is_some_and(|class| from.is_empty() || class == from);
    if fixed(new, old, upgraded || named) != *before {
        errors.push(FieldError::forbidden("spec", CLAIM));
    }
    size(new, old, errors);
    if now["volumeMode"] != before["volumeMode"] {
        errors.push(FieldError::invalid("volumeMode", now["volumeMode"].clone(), IMMUTABLE));
    }
    let class = Field::root("spec.volumeAttributesClassName", &now["volumeAttributesClassName"]);
    let in_use = !at(old, &["status", "currentVolumeAttributesClassName"]).is_null();
    if class.value() != &before["volumeAttributesClassName"] && in_use && class.is_empty() {
        let what = if class.is_set() { "empty string" } else { "nil" };
        let text =
            format!("update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil");
        errors.push(class.forbidden(&text));
    }
}

/// The new spec with the mutable fields reset to their old values.
fn fixed(new: &Value, old: &Value, class_is_new: bool) -> Value {
    let mut spec = new["spec"].clone();
    let before = &old["spec"];
    let Value::Object(map) = &mut spec else { return spec };
    let mut free = Vec::new();
    if text(before, &["volumeName"]).is_empty() {
        free.push("volumeName");
    }
    if class_is_new {
        free.push("storageClassName");
    }
    let bound = text(new, &["status", "phase"]) == "Bound";
    if bound {
        free.push("volumeAttributesClassName");
        let size = at(before, &["resources", "requests", "storage"]);
        if let Some(requests) = map.get_mut("resources").and_then(|resources| resources.get_mut("requests")) {
            requests["storage"] = size.clone();
        }
    }
    for key in free {
        match &before[key] {
            Value::Null => map.remove(key),
            value => map.insert(key.to_owned(), value.clone()),
        };
    }
    spec
}

/// The requested size never drops below the volume's size.
fn size(new: &Value, old: &Value, errors: &mut Errors) {
    let amount =
        |value: &Value| Quantity::parse(value.as_str().unwrap_or_default()).unwrap_or(Quantity::ZERO);
    let path = ["spec", "resources", "requests", "storage"];
    let (now, before) = (amount(at(new, &path)), amount(at(old, &path)));
    let is = amount(at(old, &["status", "capacity", "storage"]));
    if now < before && now <= is {
        let text = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden(path.join("."), text));
    }
}

/// Checks a new status.
pub(super) fn status(new: &Value, errors: &mut Errors) {
    const RESIZES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let status = Field::root("status", &new["status"]);
    for (_, amount) in status.child("capacity").entries() {
        basic(&amount, errors);
    }
    let states = status.child("allocatedResourceStatuses");
    for (name, state) in states.entries() {
        resource_key(&states, name, errors);
        if !RESIZES.contains(&state.text()) {
            errors.push(FieldError::not_supported(states.path(), name, &RESIZES));
        }
    }
    let allocated = status.child("allocatedResources");
    for (name, amount) in allocated.entries() {
        if resource_key(&allocated, name, errors) && !basic(&amount, errors) {
            quantities::amount("storage", &amount, errors);
        }
    }
}

/// Reports a negative amount. Returns whether it did.
fn basic(amount: &Field<'_, '_>, errors: &mut Errors) -> bool {
    let units = parse(amount).ok().and_then(|amount| amount.rounded_up().units()).unwrap_or_default();
    if units < 0 {
        errors.push(amount.invalid_value(units, "must be a valid resource quantity"));
    }
    units < 0
}

fn resource_key(list: &Field<'_, '_>, name: &str, errors: &mut Errors) -> bool {
    let problems = names::qualified_name(name);
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    if !problems.is_empty() {
        errors.extend(problems.into_iter().map(|problem| list.invalid_value(name, problem)));
        return false;
    }
    if native && name != "storage" {
        errors.push(FieldError::not_supported(list.path(), name, &["storage"]));
        return false;
    }
    true
}
