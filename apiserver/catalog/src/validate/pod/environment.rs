//! Validation of environment variables and the sources of their values.

use serde_json::Value;

use super::super::names;
use super::{Errors, Field, visit};
use tombolo_apicore::schema::format::Quantity;
use tombolo_apicore::value::items;

const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Checks environment variables.
pub(super) fn variables(list: &Field<'_, '_>, errors: &mut Errors) {
    for variable in list.items() {
        let name = variable.child("name");
        if name.demand(errors) {
            name.check_all(names::environment_variable(name.text()), errors);
        }
        let from = variable.child("valueFrom");
        if from.is_set() {
            value_from(&variable, &from, errors);
        }
    }
}

fn value_from(variable: &Field<'_, '_>, from: &Field<'_, '_>, errors: &mut Errors) {
    let sources = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    let mut given = 0;
    for source in sources {
        let field = from.child(source);
        if !field.is_set() {
            continue;
        }
        given += 1;
        match source {
            "fieldRef" => field_ref(&field, &FIELDS, errors),
            "resourceFieldRef" => resource_ref(&field, false, errors),
            "fileKeyRef" => file_ref(&field, errors),
            _ => key_ref(&field, errors),
        }
    }
    let problem = match given {
        0 => {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        }
        _ if !variable.child("value").is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(from.invalid_value("", problem));
}

/// Checks a reference to a field of the pod.
pub(super) fn field_ref(field: &Field<'_, '_>, fields: &[&str], errors: &mut Errors) {
    let (version, path) = (field.child("apiVersion"), field.child("fieldPath"));
    if !version.demand(errors) || !path.demand(errors) {
        return;
    }
    match internal_path(version.text(), path.text()) {
        Err(problem) => {
            errors.push(path.invalid(format!("error converting fieldPath: {problem}")));
        }
        Ok((_, Some(key))) => {
            let annotation = path.text().starts_with("metadata.annotations");
            let key = if annotation { key.to_lowercase() } else { key.to_owned() };
            let problems = names::qualified_name(&key);
            errors.extend(problems.into_iter().map(|text| field.invalid_value(key.clone(), text)));
        }
        Ok((path_itself, None)) if !fields.contains(&path_itself) => {
            errors.push(super::FieldError::not_supported(path.path(), path_itself, fields));
        }
        Ok(_) => {}
    }
}

/// Splits `metadata.labels['key']`, and refuses what a reference cannot name (`ConvertDownwardAPIFieldLabel`).
fn internal_path<'a>(version: &str, path: &'a str) -> Result<(&'a str, Option<&'a str>), String> {
    const KNOWN: [&str; 5] = [
        "metadata.annotations",
        "metadata.labels",
        "spec.restartPolicy",
        "spec.schedulerName",
        "status.phase",
    ];
    if version != "v1" {
        return Err(format!("unsupported pod version: {version}"));
    }
    let subscript = path.strip_suffix("']").and_then(|path| path.split_once("['"));
    if let Some((path_itself, key)) = subscript.filter(|(path, _)| !path.is_empty()) {
        return match path_itself {
            "metadata.annotations" | "metadata.labels" => Ok((path_itself, Some(key))),
            _ => Err(format!("field label does not support subscript: {path}")),
        };
    }
    match path {
        "spec.host" => Ok(("spec.nodeName", None)),
        _ if KNOWN.contains(&path) || FIELDS.contains(&path) => Ok((path, None)),
        _ => Err(format!("field label not supported: {path}")),
    }
}

const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Checks a reference to a container's limit or request.
pub(super) fn resource_ref(field: &Field<'_, '_>, in_volume: bool, errors: &mut Errors) {
    let (container, resource) = (field.child("containerName"), field.child("resource"));
    let name = resource.text();
    let huge = name.starts_with("requests.hugepages-") || name.starts_with("limits.hugepages-");
    if in_volume && container.is_empty() {
        errors.push(container.required(""));
    } else if name.is_empty() {
        errors.push(resource.required(""));
    } else if !RESOURCES.contains(&name) && !huge {
        errors.push(resource.not_supported(&RESOURCES));
    }
    divisor(&field.child("divisor"), name, huge, errors);
}

fn divisor(divisor: &Field<'_, '_>, resource: &str, huge: bool, errors: &mut Errors) {
    const BYTES: [&str; 13] =
        ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let unset = Quantity::parse(divisor.text()).is_ok_and(|quantity| quantity.sign().is_eq());
    if divisor.is_empty() || unset {
        return;
    }
    let of_bytes = |what: &str| {
        format!(
            "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the {what} resource"
        )
    };
    let (words, text): (&[&str], String) = match resource.split_once('.').map_or("", |(_, name)| name) {
        "cpu" => (&["1m", "1"], "only divisor's values 1m and 1 are supported with the cpu resource".into()),
        "memory" => (&BYTES, of_bytes("memory")),
        "ephemeral-storage" => (&BYTES, of_bytes("local ephemeral storage")),
        _ if huge => (&BYTES, of_bytes("hugepages")),
        _ => return,
    };
    if !words.contains(&divisor.text()) {
        errors.push(divisor.invalid_value(resource, text));
    }
}

/// Checks a reference to a key of a ConfigMap or Secret.
fn key_ref(field: &Field<'_, '_>, errors: &mut Errors) {
    let name = field.child("name");
    name.check_all(names::dns1123_subdomain(name.text()), errors);
    field.child("key").check_required(names::config_key, errors);
}

fn file_ref(field: &Field<'_, '_>, errors: &mut Errors) {
    let key = field.child("key");
    if key.demand(errors) {
        key.check_all(names::environment_variable(key.text()), errors);
    }
    field.child("volumeName").check_required(names::dns1123_label, errors);
    let path = field.child("path");
    if path.demand(errors) {
        super::paths::no_backsteps(&path, errors);
    }
}

/// Checks sources that provide all entries of an object as variables.
pub(super) fn sources(list: &Field<'_, '_>, errors: &mut Errors) {
    for source in list.items() {
        let prefix = source.child("prefix");
        if !prefix.is_empty() {
            prefix.check_all(names::environment_variable(prefix.text()), errors);
        }
        let mut given = 0;
        for object in ["configMapRef", "secretRef"] {
            let object = source.child(object);
            if object.is_set() {
                given += 1;
                // A name prefix is allowed too.
                object.child("name").check_required(names::dns1123_prefix, errors);
            }
        }
        match given {
            0 => errors.push(list.invalid_value("", "must specify one of: `configMapRef` or `secretRef`")),
            1 => {}
            _ => errors.push(list.invalid_value("", "may not have more than one field specified at a time")),
        }
    }
}

/// Checks that files with variables are in volumes that containers can write.
pub(super) fn file_volumes(spec: &Field<'_, '_>, errors: &mut Errors) {
    let volume = |name: &str| items(spec.value(), &["volumes"]).iter().find(|volume| volume["name"] == name);
    visit(spec, |container| {
        for variable in container.child("env").items() {
            let from = variable.child("valueFrom");
            let file = from.child("fileKeyRef");
            if !file.is_set() {
                continue;
            }
            let name = file.child("volumeName");
            match volume(name.text()).map(|volume| &volume["emptyDir"]) {
                None => errors.push(name.not_found("")),
                Some(Value::Null) => {
                    errors.push(name.invalid("referenced volume must be of type emptyDir"));
                }
                Some(_) => {}
            }
        }
    });
}
