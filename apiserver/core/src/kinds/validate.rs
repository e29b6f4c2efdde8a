//! Validation: the metadata of every object, the schema and rules of custom kinds, and the strategies of built-in
//! kinds.

use serde_json::Value;

use super::custom::replicas;
use super::{KindInfo, meta};
use crate::field_error::{CAUSES_MAX, FieldError};
use crate::schema::check;
use crate::schema::judge::judge;

/// The result of validating an update.
#[derive(Debug, Default)]
pub struct UpdateValidation {
    /// The errors.
    pub errors: Vec<FieldError>,
    /// Rules of a custom kind that the object breaks just as its old version did: the client is warned of them, also
    /// when the object is refused for another reason.
    pub overlooked: Vec<FieldError>,
}

/// Validates a new object.
pub(super) fn create(kind: &KindInfo, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::object(kind, object, &mut errors);
    if kind.custom {
        custom(kind, object, None, "", &mut errors);
    } else {
        kind.strategy.validate_create(kind, object, &mut errors);
    }
    errors.truncate(CAUSES_MAX);
    errors
}

/// Validates an update.
pub(super) fn update(kind: &KindInfo, new: &Value, old: &Value, subresource: &str) -> UpdateValidation {
    let mut validation = UpdateValidation::default();
    let errors = &mut validation.errors;
    meta::object(kind, new, errors);
    meta::update(new, old, errors);
    if kind.custom {
        validation.overlooked = custom(kind, new, Some(old), subresource, errors);
    } else {
        kind.strategy.validate_update(kind, new, old, subresource, errors);
    }
    validation.errors.truncate(CAUSES_MAX);
    validation
}

/// Checks an object against its definition. Returns the broken rules that only cause warnings.
fn custom(
    kind: &KindInfo,
    object: &Value,
    old: Option<&Value>,
    subresource: &str,
    errors: &mut Vec<FieldError>,
) -> Vec<FieldError> {
    errors.extend(check::check(kind.position(), object, old));
    replicas::check(kind, object, subresource, errors);
    rules(kind, object, old, errors)
}

/// Evaluates the rules of the definition. They are written for values that fit the schema, so others skip them.
fn rules(kind: &KindInfo, new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) -> Vec<FieldError> {
    if errors.iter().any(|error| error.kind.is_blocking()) {
        if kind.schema().types().has_rules() {
            errors.push(FieldError::invalid("<nil>", Value::Null, UNCHECKED));
        }
        return Vec::new();
    }
    let judgement = judge(kind.position(), new, old);
    errors.extend(judgement.errors);
    judgement.overlooked
}

/// The message about a custom object with errors that prevent the evaluation of its rules.
const UNCHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing \
                         errors to complete validation";
