//! Validation of APIService (k8s.io/kube-aggregator, pkg/apis/apiregistration/validation).

use serde_json::Value;

use super::{FieldError, names};
use tombolo_apicore::value::{int, text};

const GROUP_PRIORITY_MAX: i64 = 20_000;
const VERSION_PRIORITY_MAX: i64 = 1000;

/// Checks an APIService.
pub(super) fn check(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let (group, version) = (text(spec, &["group"]), text(spec, &["version"]));
    let (name, wanted) = (text(object, &["metadata", "name"]), format!("{version}.{group}"));
    if name != wanted {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {wanted:?}");
        errors.push(FieldError::invalid("metadata.name", name, detail));
    }
    if group.is_empty() && version != "v1" {
        let detail = "only v1 may have an empty group and it better be legacy kube";
        errors.push(FieldError::required("spec.group", detail));
    }
    if let Some(problem) = names::dns1123_subdomain(group).filter(|_| !group.is_empty()) {
        errors.push(FieldError::invalid("spec.group", group, problem));
    }
    if let Some(problem) = names::dns1035_label(version) {
        errors.push(FieldError::invalid("spec.version", version, problem));
    }
    for (field, max) in
        [("groupPriorityMinimum", GROUP_PRIORITY_MAX), ("versionPriority", VERSION_PRIORITY_MAX)]
    {
        let priority = int(spec, &[field]);
        if !(1..=max).contains(&priority) {
            let detail = format!("must be positive and less than {max}");
            errors.push(FieldError::invalid(format!("spec.{field}"), priority, detail));
        }
    }
    match spec["service"].is_object() {
        true => remote(spec, errors),
        false => local(spec, errors),
    }
}

fn local(spec: &Value, errors: &mut Vec<FieldError>) {
    let bundle = text(spec, &["caBundle"]);
    if !bundle.is_empty() {
        let size = bundle.trim_end_matches('=').len() * 3 / 4;
        let detail = "local APIServices may not have a caBundle";
        errors.push(FieldError::invalid("spec.caBundle", format!("{size} bytes"), detail));
    }
    if spec["insecureSkipTLSVerify"] == true {
        let detail = "local APIServices may not have insecureSkipTLSVerify";
        errors.push(FieldError::invalid("spec.insecureSkipTLSVerify", true, detail));
    }
}

fn remote(spec: &Value, errors: &mut Vec<FieldError>) {
    for field in ["namespace", "name"] {
        if text(spec, &["service", field]).is_empty() {
            errors.push(FieldError::required(format!("spec.service.{field}"), ""));
        }
    }
    let port = int(spec, &["service", "port"]);
    if !(1..=65_535).contains(&port) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid("spec.service.port", port, detail));
    }
    if spec["insecureSkipTLSVerify"] == true && !text(spec, &["caBundle"]).is_empty() {
        let detail = "may not be true if caBundle is present";
        errors.push(FieldError::invalid("spec.insecureSkipTLSVerify", true, detail));
    }
}
