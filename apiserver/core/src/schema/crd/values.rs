//! Compiles the value rules of a schema: limits, patterns, enumerations and alternatives.

use regex::RegexBuilder;
use serde_json::{Value, json};

use super::json_type;
use crate::field_error::FieldError;
use crate::schema::format::is_known_format;
use crate::schema::node_checks::{Checks, NumericBound};

/// Maximum size of a compiled pattern in bytes; a schema comes from a client.
const PATTERN_BYTES_MAX: usize = 256 * 1024;

/// The rules of one structural node.
pub(super) fn checks(schema: &Value, path: &str, errors: &mut Vec<FieldError>) -> Checks {
    let mut checks = own(schema, path, errors);
    alternatives(schema, path, &mut checks, errors);
    checks
}

/// The rules of a schema inside an alternative, including those of its properties and items.
fn nested(schema: &Value, path: &str, errors: &mut Vec<FieldError>) -> Checks {
    let mut checks = checks(schema, path, errors);
    forbid(schema, path, errors);
    if schema["x-kubernetes-validations"].as_array().is_some_and(|rules| !rules.is_empty()) {
        let text = "must be empty to be structural";
        errors.push(FieldError::forbidden(format!("{path}.x-kubernetes-validations"), text));
    }
    if schema["type"].is_string() && schema["x-kubernetes-int-or-string"] != true {
        // Only the two branches for int-or-string may declare a type here.
        checks.ty = json_type(schema);
    }
    checks.required = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let below = nested(property, &format!("{path}.properties[{name}]"), errors);
        checks.properties.push((name.clone(), below));
    }
    if schema["items"].is_object() {
        checks.items = Some(Box::new(nested(&schema["items"], &format!("{path}.items"), errors)));
    }
    checks
}

/// Keywords that belong to the outer schema and may not be repeated inside an alternative, with their error messages.
const OUTSIDE_ONLY: [(&str, &str); 12] = [
    ("type", "must be empty to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("default", "must be undefined to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("nullable", "must be false to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
];

fn forbid(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (key, text) in OUTSIDE_ONLY {
        let absent = |value: &Value| value.is_null() || *value == false || value == "" || *value == json!([]);
        if schema.get(key).is_some_and(|value| !absent(value)) {
            errors.push(FieldError::forbidden(format!("{path}.{key}"), text));
        }
    }
    if schema["properties"].get("metadata").is_some() {
        let at = format!("{path}.properties[metadata]");
        errors.push(FieldError::forbidden(at, "must not be specified in a nested context"));
    }
}

fn own(schema: &Value, path: &str, errors: &mut Vec<FieldError>) -> Checks {
    let bound = |key: &str, exclusive: &str| {
        schema[key].as_f64().map(|value| NumericBound { value, exclusive: schema[exclusive] == true })
    };
    let count = |key: &str| schema[key].as_u64().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    // A negative limit is accepted and makes every value too long; here an empty value still passes.
    let most = |key: &str| if schema[key].as_i64().is_some_and(|n| n < 0) { Some(0) } else { count(key) };
    let pattern = schema["pattern"].as_str().filter(|pattern| !pattern.is_empty()).and_then(|pattern| {
        match RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build() {
            Ok(regex) => Some(regex),
            Err(error) => {
                // The message spans several lines; the last one states the error.
                let error = error.to_string();
                let last = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
                let text = format!("must be a valid regular expression, but isn't: {last}");
                errors.push(FieldError::invalid(format!("{path}.pattern"), pattern, text));
                None
            }
        }
    });
    Checks {
        ty: json_type(schema),
        nullable: schema["nullable"] == true,
        minimum: bound("minimum", "exclusiveMinimum"),
        maximum: bound("maximum", "exclusiveMaximum"),
        multiple_of: schema["multipleOf"].as_f64(),
        min_length: count("minLength"),
        max_length: most("maxLength"),
        pattern,
        format: schema["format"].as_str().filter(|format| is_checked(schema, format)).map(str::to_owned),
        min_items: count("minItems"),
        max_items: most("maxItems"),
        min_properties: count("minProperties"),
        max_properties: most("maxProperties"),
        one_of_values: schema["enum"].as_array().filter(|values| !values.is_empty()).cloned(),
        ..Checks::default()
    }
}

/// Formats of other types are only annotations.
fn is_checked(schema: &Value, format: &str) -> bool {
    match schema["type"].as_str() {
        Some("integer") => matches!(format, "int32" | "int64"),
        _ => is_known_format(format),
    }
}

fn alternatives(schema: &Value, path: &str, checks: &mut Checks, errors: &mut Vec<FieldError>) {
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let int_or_string = schema["x-kubernetes-int-or-string"] == true;
    let mut many = |key: &str| -> Vec<Checks> {
        let list = schema[key].as_array().into_iter().flatten().enumerate();
        let compile = |(index, one): (usize, &Value)| {
            // The two ways of spelling out int-or-string.
            let spelled_out = match key {
                "anyOf" => schema[key] == either,
                "allOf" => index == 0 && *one == json!({"anyOf": either}),
                _ => false,
            };
            let mut ignored = Vec::new();
            let errors = if int_or_string && spelled_out { &mut ignored } else { &mut *errors };
            nested(one, &format!("{path}.{key}[{index}]"), errors)
        };
        list.map(compile).collect()
    };
    checks.all_of = many("allOf");
    checks.any_of = many("anyOf");
    checks.one_of = many("oneOf");
    if schema["not"].is_object() {
        checks.not = Some(Box::new(nested(&schema["not"], &format!("{path}.not"), errors)));
    }
}
