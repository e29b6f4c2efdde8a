//! Validation of the kinds of the core group.

use serde_json::{Map, Value};

use super::field::{Errors, Field};
use super::pod::status as pod_status;
use super::{FieldError, IMMUTABLE, claims, endpoints, names, node, pod, quota, service, volume, workload};
use tombolo_apicore::value::{at, text};

/// Maximum total size of the values of a ConfigMap or Secret in bytes.
const DATA_LEN_MAX: usize = 1024 * 1024;

/// Checks an object of the core group; `old` is the object that an update replaces.
pub(super) fn check(kind: &str, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    // A stored object was valid by the rules of its time.
    let same_spec = old.is_some_and(|old| {
        old["spec"] == object["spec"]
            && at(old, &["metadata", "annotations"]) == at(object, &["metadata", "annotations"])
    });
    match kind {
        "Pod" => pod::pod(object, old, errors),
        "PodTemplate" => pod::template(&object["template"], "template", errors),
        "ReplicationController" => workload::create(object, errors),
        "Service" if !same_spec => service::check(object, old, errors),
        "Endpoints" => endpoints::check(object, old, errors),
        "PersistentVolume" if !same_spec => volume::check(object, errors),
        "PersistentVolumeClaim" if !same_spec => claims::claim(object, errors),
        "ConfigMap" => config_map(object, errors),
        "Secret" => secret(object, errors),
        "Node" => node::check(object, errors),
        "Namespace" => namespace(object, errors),
        "Event" => event(object, errors),
        "ResourceQuota" => quota::quota(object, errors),
        "LimitRange" => quota::limit_range(object, errors),
        _ => {}
    }
}

/// Checks an update of an object itself.
pub(super) fn update(kind: &str, new: &Value, old: &Value, errors: &mut Errors) {
    match kind {
        "Pod" => pod::update::pod(new, old, errors),
        "Service" => service::update::check(new, old, errors),
        "PersistentVolume" => volume::update(new, old, errors),
        "PersistentVolumeClaim" => claims::update(new, old, errors),
        "ConfigMap" => sealed(new, old, &["data", "binaryData"], errors),
        "Secret" => {
            if new["type"] != old["type"] {
                errors.push(FieldError::invalid("type", new["type"].clone(), IMMUTABLE));
            }
            sealed(new, old, &["data"], errors);
        }
        "Node" => node::update(new, old, errors),
        "ResourceQuota" => quota::quota_update(new, old, errors),
        _ => {}
    }
}

/// Checks an update through a subresource.
pub(super) fn subresource((kind, subresource): (&str, &str), new: &Value, old: &Value, errors: &mut Errors) {
    match (kind, subresource) {
        ("Pod", "status") => pod_status::update(new, old, errors),
        ("Pod", "ephemeralcontainers") => {
            pod::pod(new, Some(old), errors);
            pod::update::ephemeral(new, old, errors);
        }
        ("Pod", "resize") => {
            pod::pod(new, Some(old), errors);
            pod::resize::resize(new, old, errors);
        }
        ("Service", "status") => service::status(new, old, errors),
        ("Namespace", "status") => phase(new, errors),
        ("Namespace", "finalize") => {
            let finalizers = Field::root("spec.finalizers", &new["spec"]["finalizers"]);
            finalizers.items().for_each(|one| finalizer(&one, one.text(), errors));
        }
        ("Node", "status") => node::update(new, old, errors),
        ("ResourceQuota", "status") => quota::quota_status(new, errors),
        ("PersistentVolumeClaim", "status") => claims::status(new, errors),
        ("ReplicationController", "status") => replicas(&new["status"], errors),
        _ => {}
    }
}

fn config_map(object: &Value, errors: &mut Errors) {
    let mut size = 0;
    for list in ["data", "binaryData"] {
        let data = Field::root(list, &object[list]);
        for (key, value) in data.entries() {
            errors.extend(names::config_key(key).map(|problem| value.invalid_value(key, problem)));
            if list == "data" && object["binaryData"].get(key).is_some() {
                errors.push(value.invalid_value(key, "duplicate of key present in binaryData"));
            }
            size += decoded_len(value.text(), list == "binaryData");
        }
    }
    if size > DATA_LEN_MAX {
        errors.push(FieldError::too_long("[]", DATA_LEN_MAX));
    }
}

fn decoded_len(text: &str, base64: bool) -> usize {
    if base64 { text.trim_end_matches('=').len() * 3 / 4 } else { text.len() }
}

fn secret(object: &Value, errors: &mut Errors) {
    let data = Field::root("data", &object["data"]);
    let mut size = 0;
    for (key, value) in data.entries() {
        errors.extend(names::config_key(key).map(|problem| value.invalid_value(key, problem)));
        size += decoded_len(value.text(), true);
    }
    if size > DATA_LEN_MAX {
        errors.push(FieldError::too_long("data", DATA_LEN_MAX));
    }
    let mut demand = |keys: &[&str]| {
        let missing = keys.iter().filter(|key| object["data"].get(**key).is_none());
        errors.extend(missing.map(|key| data.key(key).required("")));
    };
    match text(object, &["type"]) {
        "kubernetes.io/tls" => demand(&["tls.crt", "tls.key"]),
        "kubernetes.io/ssh-auth" if data.key("ssh-privatekey").is_empty() => {
            errors.push(data.key("ssh-privatekey").required(""));
        }
        "kubernetes.io/basic-auth" => {
            let keys = ["username", "password"];
            if keys.iter().all(|key| object["data"].get(*key).is_none()) {
                demand(&keys);
            }
        }
        "kubernetes.io/dockercfg" => docker(&data.key(".dockercfg"), errors),
        "kubernetes.io/dockerconfigjson" => docker(&data.key(".dockerconfigjson"), errors),
        "kubernetes.io/service-account-token" => {
            let annotation = "kubernetes.io/service-account.name";
            if text(object, &["metadata", "annotations", annotation]).is_empty() {
                let at = format!("metadata.annotations[{annotation}]");
                errors.push(FieldError::required(at, ""));
            }
        }
        _ => {}
    }
}

/// Registry credentials must be a JSON object.
fn docker(config: &Field<'_, '_>, errors: &mut Errors) {
    use base64::Engine as _;
    if !config.is_set() {
        errors.push(config.required(""));
        return;
    }
    let bytes = base64::engine::general_purpose::STANDARD.decode(config.text()).unwrap_or_default();
    let problem = match serde_json::from_slice::<Option<Map<String, Value>>>(&bytes) {
        Ok(_) => return,
        Err(_) if bytes.is_empty() => "unexpected end of JSON input".to_owned(),
        Err(error) => error.to_string(),
    };
    errors.push(config.invalid_value("<secret contents redacted>", problem));
}

/// Once `immutable` is set, neither it nor the data can change.
fn sealed(new: &Value, old: &Value, data: &[&str], errors: &mut Errors) {
    if old["immutable"] != true {
        return;
    }
    let text = "field is immutable when `immutable` is set";
    if new["immutable"] != true {
        errors.push(FieldError::forbidden("immutable", text));
    }
    for key in data {
        if new[*key] != old[*key] {
            errors.push(FieldError::forbidden(*key, text));
        }
    }
}

/// Finalizers that may have a name without a domain.
const PLAIN_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

fn finalizer(at: &Field<'_, '_>, name: &str, errors: &mut Errors) {
    errors.extend(names::qualified_name(name).into_iter().map(|problem| at.invalid_value(name, problem)));
    if !name.contains('/') && !PLAIN_FINALIZERS.contains(&name) {
        let text = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(at.invalid_value(name, text));
    }
}

fn namespace(object: &Value, errors: &mut Errors) {
    let finalizers = Field::root("spec.finalizers", &object["spec"]["finalizers"]);
    finalizers.items().for_each(|one| finalizer(&finalizers, one.text(), errors));
}

/// The phase of a namespace is Terminating if and only if it was deleted.
fn phase(new: &Value, errors: &mut Errors) {
    let (phase, text) = match at(new, &["metadata", "deletionTimestamp"]).is_null() {
        true => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
        false => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
    };
    let found = at(new, &["status", "phase"]);
    if found != phase {
        errors.push(FieldError::invalid("status.Phase", found.as_str().unwrap_or_default(), text));
    }
}

fn event(event: &Value, errors: &mut Errors) {
    let namespace = text(event, &["metadata", "namespace"]);
    let about = Field::root("involvedObject.namespace", &event["involvedObject"]["namespace"]);
    let fits = match (event["eventTime"].is_null(), about.text()) {
        (true, "") => namespace == "default",
        (true, about) => about == namespace,
        (false, about) => !about.is_empty() || matches!(namespace, "default" | "kube-system"),
    };
    if !fits {
        errors.push(about.invalid_value(about.text(), "does not match event.namespace"));
    }
    if event["eventTime"].is_null() {
        return;
    }
    let root = |name: &'static str| Field::root(name, &event[name]);
    let controller = root("reportingComponent");
    controller.demand(errors);
    controller.check_all(names::qualified_name(controller.text()), errors);
    for (name, max, required) in [
        ("reportingInstance", 128, true),
        ("action", 128, true),
        ("reason", 128, true),
        ("message", 1024, false),
    ] {
        let field = root(name);
        if required {
            field.demand(errors);
        }
        if field.text().len() > max {
            errors.push(field.invalid_value("", format!("can have at most {max} characters")));
        }
    }
}

fn replicas(status: &Value, errors: &mut Errors) {
    let status = Field::root("status", status);
    let count = |name: &'static str| status.child(name).int();
    for name in
        ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"]
    {
        status.child(name).non_negative(errors);
    }
    let mut above = |name: &'static str, most: i64, text: &str| {
        if count(name) > most {
            errors.push(status.child(name).invalid(text));
        }
    };
    for name in ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"] {
        above(name, count("replicas"), "cannot be greater than status.replicas");
    }
    above("availableReplicas", count("readyReplicas"), "cannot be greater than readyReplicas");
}
