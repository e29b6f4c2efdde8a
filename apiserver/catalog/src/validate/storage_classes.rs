//! Validation of storage.k8s.io except drivers: classes, attachments and capacities (pkg/apis/storage/validation).

use serde_json::{Value, json};

use super::field::{Errors, Field};
use super::walk::top;
use super::{FieldError, csi, domains, names};
use tombolo_apicore::schema::format::Quantity;

/// Maximum number of a class's parameters, and their maximum total size.
const PARAMETERS_MAX: usize = 512;
const PARAMETERS_LEN_MAX: usize = 256 * 1024;
const ERROR_LEN_MAX: usize = 1024;

/// Checks one of these kinds.
pub(super) fn check(kind: &str, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    match kind {
        "StorageClass" => storage_class(object, errors),
        "VolumeAttachment" => attachment(object, errors),
        "CSIStorageCapacity" => {
            top(object, "nodeTopology").selector(errors);
            top(object, "storageClassName").grammar(names::dns1123_subdomain, errors);
            let capacity = top(object, "capacity");
            if Quantity::parse(capacity.text()).is_ok_and(|capacity| capacity.sign().is_lt()) {
                errors.push(capacity.invalid("must be greater than or equal to 0"));
            }
        }
        "VolumeAttributesClass" => {
            domains::provisioner(&top(object, "driverName"), errors);
            let parameters = top(object, "parameters");
            self::parameters(&parameters, errors);
            if parameters.is_empty() {
                errors.push(parameters.required("must contain at least one key/value pair"));
            }
        }
        "CSIDriver" => csi::driver(&top(object, "spec"), errors),
        "CSINode" => csi::node(&top(object, "spec"), old, errors),
        _ => {}
    }
}

fn storage_class(object: &Value, errors: &mut Errors) {
    domains::provisioner(&top(object, "provisioner"), errors);
    parameters(&top(object, "parameters"), errors);
    let policy = top(object, "reclaimPolicy");
    if !policy.text().is_empty() {
        policy.one_of(&["Delete", "Retain"], errors);
    }
    let mode = top(object, "volumeBindingMode");
    match mode.is_set() {
        true => mode.one_of(&["Immediate", "WaitForFirstConsumer"], errors),
        false => errors.push(mode.required("")),
    }
    topologies(&top(object, "allowedTopologies"), errors);
}

fn parameters(parameters: &Field<'_, '_>, errors: &mut Errors) {
    if parameters.len() > PARAMETERS_MAX {
        errors.push(FieldError::too_long(parameters.path(), PARAMETERS_MAX));
        return;
    }
    let mut size = 0;
    for (key, value) in parameters.entries() {
        if key.is_empty() {
            errors.push(parameters.invalid_value(key, "field can not be empty."));
        }
        size += key.len() + value.text().len();
    }
    if size > PARAMETERS_LEN_MAX {
        errors.push(FieldError::too_long(parameters.path(), PARAMETERS_LEN_MAX));
    }
}

fn topologies(list: &Field<'_, '_>, errors: &mut Errors) {
    // The real server also compares with one empty term per term, so none may be empty.
    let mut seen = vec![json!({}); list.len()];
    for term in list.items() {
        let expressions = term.child("matchLabelExpressions");
        let mut by_key = json!({});
        for expression in expressions.items() {
            let (key, values) = (expression.child("key"), expression.child("values"));
            if values.is_empty() {
                errors.push(values.required(""));
            }
            values.unique(errors);
            key.grammar(names::qualified_name, errors);
            if by_key.get(key.text()).is_some() {
                errors.push(FieldError::duplicate(key.path(), key.text()));
            }
            let mut sorted = values.texts();
            sorted.sort_unstable();
            sorted.dedup();
            by_key[key.text()] = sorted.into();
        }
        let again = seen.iter().filter(|terms| **terms == by_key);
        errors.extend(again.map(|_| FieldError::duplicate(expressions.path(), "")));
        seen.push(by_key);
    }
}

fn attachment(object: &Value, errors: &mut Errors) {
    let spec = top(object, "spec");
    domains::driver(&spec.child("attacher"), errors);
    let source = spec.child("source");
    let (inline, name) = (source.child("inlineVolumeSpec"), source.child("persistentVolumeName"));
    let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (inline.is_set(), name.is_set()) {
        (false, false) => errors.push(source.required(detail)),
        (true, true) => errors.push(source.forbidden(detail)),
        (false, true) if name.text().is_empty() => {
            errors.push(name.required("must specify non empty persistentVolumeName"));
        }
        _ => {}
    }
    spec.child("nodeName").grammar(names::dns1123_subdomain, errors);
    attachment_status(object, errors);
    if name.is_set() {
        name.grammar(names::dns1123_subdomain, errors);
    }
}

/// Checks the status of an attachment, which its attacher writes.
pub(super) fn attachment_status(object: &Value, errors: &mut Errors) {
    let status = top(object, "status");
    let metadata = status.child("attachmentMetadata");
    let size: usize = metadata.entries().map(|(key, value)| key.len() + value.text().len()).sum();
    if size > PARAMETERS_LEN_MAX {
        errors.push(FieldError::too_long(metadata.path(), PARAMETERS_LEN_MAX));
    }
    for failure in ["attachError", "detachError"] {
        let failure = status.child(failure);
        let (message, code) = (failure.child("message"), failure.child("errorCode"));
        if message.text().len() > ERROR_LEN_MAX {
            errors.push(FieldError::too_long(message.path(), PARAMETERS_LEN_MAX));
        }
        code.within(0, i64::from(i32::MAX), errors);
    }
}
