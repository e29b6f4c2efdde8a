//! The `scale` subresource: one view of every kind with a desired and an observed replica count.

use serde_json::{Map, Value, json};

use crate::kinds::KindInfo;
use crate::status::{ApiError, Cause};

/// Whether an object is a Scale. A source without permission to read the object returns its Scale instead.
#[must_use]
pub fn is_scale(object: &Value) -> bool {
    object["kind"] == "Scale" && object["apiVersion"] == "autoscaling/v1"
}

/// The `autoscaling/v1` Scale of an object.
///
/// # Errors
/// 404 when the kind has no `scale` subresource.
pub fn of(kind: &KindInfo, object: &Value) -> Result<Value, ApiError> {
    let paths = kind.scale.as_ref().ok_or_else(ApiError::no_such_path)?;
    if is_scale(object) {
        return Ok(object.clone());
    }
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.pointer(&format!("/metadata/{field}")) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    let number = |path: &str| at(object, path).and_then(Value::as_i64).unwrap_or(0);
    let mut spec = Map::new();
    let wanted = number(&paths.spec_replicas);
    if wanted != 0 {
        spec.insert("replicas".to_owned(), wanted.into());
    }
    let mut status = json!({"replicas": number(&paths.status_replicas)});
    let selector = match &paths.label_selector {
        Some(path) => at(object, path).and_then(Value::as_str).map(str::to_owned),
        None => object.pointer("/spec/selector").map(selector_text),
    };
    if let Some(selector) = selector.filter(|text| !text.is_empty()) {
        status["selector"] = selector.into();
    }
    Ok(
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status}),
    )
}

/// Writes the desired replica count of a Scale into the object behind it.
///
/// # Errors
/// 422 when the count is negative or not a number.
pub fn put(kind: &KindInfo, object: &mut Value, scale: &Value) -> Result<(), ApiError> {
    let paths = kind.scale.as_ref().ok_or_else(ApiError::no_such_path)?;
    let replicas = match scale.pointer("/spec/replicas") {
        None | Some(Value::Null) => 0,
        Some(value) => value.as_i64().unwrap_or(-1),
    };
    if replicas < 0 || replicas > i64::from(i32::MAX) {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let refuse = |group: &str, kind: &str, field: &str, rule: &str| {
            let cause = Cause::new("FieldValueInvalid", field, &format!("Invalid value: {replicas}: {rule}"));
            Err(ApiError::invalid(group, kind, name, vec![cause]))
        };
        return match kind.custom {
            // kube-apiserver reports the field of the custom resource itself, with its JSON path.
            true => {
                let field = format!(".{}", paths.spec_replicas);
                refuse(&kind.resource.group, &kind.kind, &field, "should be a non-negative integer")
            }
            false => refuse("autoscaling", "Scale", "spec.replicas", "must be greater than or equal to 0"),
        };
    }
    let mut value = object;
    for part in paths.spec_replicas.trim_start_matches('.').split('.') {
        if !value.is_object() {
            *value = json!({});
        }
        value = &mut value[part];
    }
    *value = replicas.into();
    Ok(())
}

fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.trim_start_matches('.').split('.').try_fold(object, |value, part| value.get(part))
}

/// A `LabelSelector` (or, for a ReplicationController, a plain map) in the text form of a query parameter.
fn selector_text(selector: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let structured = selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some();
    let plain = if structured { selector.get("matchLabels") } else { Some(selector) };
    let mut parts: Vec<String> = plain
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", text(value)))
        .collect();
    for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let key = text(&expression["key"]);
        let mut values: Vec<String> =
            expression["values"].as_array().into_iter().flatten().map(text).collect();
        values.sort_unstable();
        let values = values.join(",");
        parts.push(match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key,
        });
    }
    parts.join(",")
}
