//! Compiles the value rules of a schema: limits, patterns, enumerations and alternatives.

use regex::RegexBuilder;
use serde_json::Value;

use super::json_type;
use crate::kinds::error::FieldError;
use crate::schema::check::{Bound, Checks};
use crate::schema::format::is_known_format;

/// How large a compiled pattern may become, in bytes; a schema comes from a client.
const PATTERN_BYTES_MAX: usize = 256 * 1024;

/// The rules of one structural node.
pub(super) fn checks(schema: &Value, path: &str, errors: &mut Vec<FieldError>) -> Checks {
    let mut checks = own(schema, path, errors);
    alternatives(schema, path, &mut checks, errors);
    checks
}

/// The rules of a schema inside an alternative: also those of its properties and items.
fn nested(schema: &Value, path: &str, errors: &mut Vec<FieldError>) -> Checks {
    let mut checks = checks(schema, path, errors);
    for key in ["description", "default", "nullable", "additionalProperties"] {
        let forbidden = schema.get(key).is_some_and(|value| !value.is_null() && value != &Value::Bool(false));
        if forbidden {
            let text = "must be undefined to be structural";
            errors.push(FieldError::forbidden(format!("{path}.{key}"), text));
        }
    }
    if schema["type"].is_string() && schema["x-kubernetes-int-or-string"] != true {
        // Only the two branches that int-or-string needs may state a type here; others repeat the outer type.
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

fn own(schema: &Value, path: &str, errors: &mut Vec<FieldError>) -> Checks {
    let bound = |key: &str, exclusive: &str| {
        schema[key].as_f64().map(|value| Bound { value, exclusive: schema[exclusive] == true })
    };
    let count = |key: &str| schema[key].as_u64().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let pattern = schema["pattern"].as_str().filter(|pattern| !pattern.is_empty()).and_then(|pattern| {
        match RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build() {
            Ok(regex) => Some(regex),
            Err(error) => {
                let text = format!("must be a valid regular expression, but isn't: {error}");
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
        max_length: count("maxLength"),
        pattern,
        format: schema["format"].as_str().filter(|format| is_known_format(format)).map(str::to_owned),
        min_items: count("minItems"),
        max_items: count("maxItems"),
        min_properties: count("minProperties"),
        max_properties: count("maxProperties"),
        one_of_values: schema["enum"].as_array().filter(|values| !values.is_empty()).cloned(),
        ..Checks::default()
    }
}

fn alternatives(schema: &Value, path: &str, checks: &mut Checks, errors: &mut Vec<FieldError>) {
    let mut many = |key: &str| -> Vec<Checks> {
        let list = schema[key].as_array().into_iter().flatten().enumerate();
        list.map(|(index, one)| nested(one, &format!("{path}.{key}[{index}]"), errors)).collect()
    };
    checks.all_of = many("allOf");
    checks.any_of = many("anyOf");
    checks.one_of = many("oneOf");
    if schema["not"].is_object() {
        checks.not = Some(Box::new(nested(&schema["not"], &format!("{path}.not"), errors)));
    }
}
