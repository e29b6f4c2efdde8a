//! `selectableFields` of a definition: paths of strings, integers and booleans.

use std::collections::HashSet;

use serde_json::Value;

use crate::field_error::FieldError;
use crate::value::text;

/// Maximum number of selectable fields of one version.
const FIELDS_MAX: usize = 8;

const WRONG_TYPE: &str = "must point to a field of type string, boolean or integer. Enum string fields and strings \
                          with formats are allowed.";

/// Checks the selectable fields of a version with this schema.
pub(super) fn check(fields: &[Value], schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (index, field) in fields.iter().enumerate() {
        let at = format!("{path}[{index}].jsonPath");
        let json_path = text(field, &["jsonPath"]);
        if json_path.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let found = match follow(json_path, schema) {
            Ok(found) => found,
            Err(problem) => {
                errors.push(FieldError::invalid(at, json_path, format!("is an invalid path: {problem}")));
                continue;
            }
        };
        if json_path == ".metadata" || json_path.starts_with(".metadata.") {
            errors.push(FieldError::invalid(at.clone(), json_path, "must not point to fields in metadata"));
        }
        if !matches!(text(found, &["type"]), "string" | "boolean" | "integer") {
            errors.push(FieldError::invalid(at.clone(), json_path, WRONG_TYPE));
        }
        if !seen.insert(json_path) {
            errors.push(FieldError::duplicate(at, json_path));
        }
    }
    if seen.len() > FIELDS_MAX {
        errors.push(FieldError::too_many(path, seen.len(), FIELDS_MAX));
    }
}

/// The schema of the field that a path names.
fn follow<'a>(path: &str, schema: &'a Value) -> Result<&'a Value, String> {
    let mut schema = schema;
    let mut rest = path;
    while !rest.is_empty() {
        if rest.starts_with('[') {
            return Err("array notation is not allowed".to_owned());
        }
        let Some(after) = rest.strip_prefix('.') else {
            let token = rest.split(['.', '[', ']']).next().filter(|token| !token.is_empty());
            return Err(format!("expected [ or . but got: {}", token.unwrap_or("]")));
        };
        let end = after.find(['.', '[', ']']).unwrap_or(after.len());
        let (name, next) = after.split_at(end);
        schema = match (&schema["properties"], &schema["additionalProperties"]) {
            _ if after.is_empty() => return Err("unexpected end of JSON path".to_owned()),
            (Value::Object(properties), _) => {
                properties.get(name).ok_or_else(|| "does not refer to a valid field".to_owned())?
            }
            (_, entries @ Value::Object(_)) => entries,
            _ => return Err("does not refer to a valid field".to_owned()),
        };
        rest = next;
    }
    Ok(schema)
}
