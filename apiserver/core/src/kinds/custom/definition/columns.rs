//! `additionalPrinterColumns` of a definition.

use serde_json::Value;

use super::super::super::jsonpath::JsonPath;
use crate::field_error::FieldError;
use crate::value::text;

const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

/// The message about a path that does not begin with a dot.
pub(super) const NOT_SIMPLE: &str = "must be a simple json path starting with .";

/// Checks the columns of a version.
pub(super) fn check(columns: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    for (index, column) in columns.iter().enumerate() {
        check_column(column, &format!("{path}[{index}]"), errors);
    }
}

fn check_column(column: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if text(column, &["name"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    let (ty, format) = (text(column, &["type"]), text(column, &["format"]));
    let allowed = format!("must be one of {}", TYPES.join(","));
    if ty.is_empty() {
        errors.push(FieldError::required(format!("{path}.type"), allowed));
    } else if !TYPES.contains(&ty) {
        errors.push(FieldError::invalid(format!("{path}.type"), ty, allowed));
    }
    if !format.is_empty() && !FORMATS.contains(&format) {
        let allowed = format!("must be one of {}", FORMATS.join(","));
        errors.push(FieldError::invalid(format!("{path}.format"), format, allowed));
    }
    let at = format!("{path}.JSONPath");
    match text(column, &["jsonPath"]) {
        "" => errors.push(FieldError::required(at, "")),
        found if !found.starts_with('.') => errors.push(FieldError::invalid(at, found, NOT_SIMPLE)),
        found => {
            if let Err(problem) = JsonPath::parse(found) {
                errors.push(FieldError::invalid(at, found, problem));
            }
        }
    }
}
