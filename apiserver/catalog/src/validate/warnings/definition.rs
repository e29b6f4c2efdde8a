//! Warnings about CustomResourceDefinitions.

use serde_json::Value;

use tombolo_apicore::schema::format::is_known_format;
use tombolo_apicore::value::{items, text};

/// Warns of unknown formats in a definition's schemas, except those that were there before.
pub(super) fn formats(object: &Value, old: Option<&Value>, warnings: &mut Vec<String>) {
    let all = |definition: &Value| {
        let mut found = Vec::new();
        for version in items(definition, &["spec", "versions"]) {
            unknown_formats(&version["schema"]["openAPIV3Schema"], &mut found);
        }
        found
    };
    let known = old.map(all).unwrap_or_default();
    let new = all(object).into_iter().filter(|format| !known.contains(format));
    warnings.extend(new.map(|format| format!("unrecognized format {format:?}")));
}

fn unknown_formats(schema: &Value, found: &mut Vec<String>) {
    let Value::Object(members) = schema else { return };
    let format = text(schema, &["format"]);
    let known = match text(schema, &["type"]) {
        "" | "string" => is_known_format(format),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if !format.is_empty() && !known {
        found.push(format.to_owned());
    }
    for (name, member) in members {
        match (name.as_str(), member) {
            ("properties" | "patternProperties" | "definitions" | "dependencies", Value::Object(schemas)) => {
                schemas.values().for_each(|schema| unknown_formats(schema, found));
            }
            ("allOf" | "oneOf" | "anyOf" | "items", Value::Array(schemas)) => {
                schemas.iter().for_each(|schema| unknown_formats(schema, found));
            }
            ("items" | "not" | "additionalProperties" | "additionalItems", schema) => {
                unknown_formats(schema, found);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_new_formats_are_warned_of() {
        let definition = |format: &str| {
            json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {
                "properties": {"a": {"type": "string", "format": format}, "b": {"type": "integer", "format": "int32"}},
            }}}]}})
        };
        let warned = |new: &Value, old| {
            let mut warnings = Vec::new();
            formats(new, old, &mut warnings);
            warnings
        };
        let odd = definition("odd");
        assert_eq!(warned(&odd, None), ["unrecognized format \"odd\""]);
        assert!(warned(&odd, Some(&odd)).is_empty());
        assert!(warned(&definition("date-time"), Some(&odd)).is_empty());
    }
}
