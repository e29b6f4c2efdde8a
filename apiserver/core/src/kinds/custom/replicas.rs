//! Validates the fields of a custom kind that its `scale` subresource reads: a Scale must be able to show them,
//! whichever endpoint writes them.

use serde_json::Value;

use super::KindInfo;
use crate::field_error::FieldError;
use crate::gofmt;

/// Checks the fields that the definition names for its scale. The status endpoint does not check the desired count.
pub(crate) fn check(kind: &KindInfo, object: &Value, subresource: &str, errors: &mut Vec<FieldError>) {
    let Some(paths) = kind.scale.as_ref().filter(|_| kind.custom) else { return };
    if subresource != "status" {
        errors.extend(count(object, &paths.spec_replicas));
    }
    errors.extend(count(object, &paths.status_replicas));
    if let Some(path) = &paths.label_selector {
        let wrong = match field(object, path) {
            Ok(None | Some(Value::String(_))) => None,
            Ok(Some(value)) => Some(misfit(path, value, "string")),
            Err(problem) => Some(problem),
        };
        errors.extend(wrong.map(|problem| FieldError::invalid(format!(".{path}"), "", problem)));
    }
}

/// Checks a replica count.
fn count(object: &Value, path: &str) -> Option<FieldError> {
    let (number, problem) = match field(object, path).map(|value| value.map(|value| (value, value.as_i64())))
    {
        Ok(None | Some((_, Some(0..=0x7fff_ffff)))) => return None,
        Ok(Some((_, Some(number @ ..0)))) => (number, "should be a non-negative integer".to_owned()),
        Ok(Some((_, Some(number)))) => (number, format!("should be less than or equal to {}", i32::MAX)),
        Ok(Some((value, None))) => (0, misfit(path, value, "int64")),
        Err(problem) => (0, problem),
    };
    Some(FieldError::invalid(format!(".{path}"), number, problem))
}

/// The value at a path, or an error when a value on the way is not an object.
fn field<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, String> {
    let mut value = object;
    for (end, name) in path.match_indices('.').map(|(end, _)| end).chain([path.len()]).zip(path.split('.')) {
        let below = match value {
            Value::Object(members) => members.get(name),
            Value::Null => None,
            other => return Err(misfit(&path[..end], other, "map[string]interface{}")),
        };
        let Some(below) = below else { return Ok(None) };
        value = below;
    }
    Ok(Some(value))
}

fn misfit(path: &str, value: &Value, wanted: &str) -> String {
    let (shown, found) = (gofmt::value(value), gofmt::type_name(value));
    format!(".{path} accessor error: {shown} is of the type {found}, expected {wanted}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_are_those_of_a_scale() {
        let cases = [
            (json!({}), ""),
            (json!({"spec": null}), ""),
            (json!({"spec": {"replicas": 2_147_483_647}}), ""),
            (json!({"spec": {"replicas": -1}}), "Invalid value: -1: should be a non-negative integer"),
            (
                json!({"spec": {"replicas": 2_147_483_648_i64}}),
                "Invalid value: 2147483648: should be less than or equal to 2147483647",
            ),
            (
                json!({"spec": {"replicas": "x"}}),
                "Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64",
            ),
            (
                json!({"spec": 5}),
                "Invalid value: 0: .spec.replicas accessor error: 5 is of the type int64, expected \
                 map[string]interface{}",
            ),
        ];
        for (object, wanted) in cases {
            let found = count(&object, "spec.replicas").map_or_else(String::new, |error| error.body());
            assert_eq!(found, wanted, "{object}");
        }
    }
}
