//! Fields that field selectors may name, per built-in kind, as in kube-apiserver.

use serde_json::Value;

use super::KindInfo;
use crate::value::text;

/// The value of a selectable field; `None` when the kind has no such selector.
pub(crate) fn value(kind: &KindInfo, object: &Value, field: &str) -> Option<String> {
    match field {
        "metadata.name" => return Some(text(object, &["metadata", "name"]).to_owned()),
        "metadata.namespace" if kind.namespaced => {
            return Some(text(object, &["metadata", "namespace"]).to_owned());
        }
        _ => {}
    }
    let known = kind.rules().selectable.iter().find(|known| &*known.name == field)?;
    Some(shown(object, field, known.path.get(object)))
}

fn shown(object: &Value, field: &str, value: &Value) -> String {
    let found = match value {
        Value::String(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    };
    match (field, found.as_str()) {
        ("spec.unschedulable" | "spec.hostNetwork", "") => "false".to_owned(),
        ("status.successful" | "status.replicas", "") => "0".to_owned(),
        ("source", "") => text(object, &["reportingComponent"]).to_owned(),
        _ => found,
    }
}
