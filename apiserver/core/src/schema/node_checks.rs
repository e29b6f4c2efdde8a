//! The rules of one schema node about a value.

use std::sync::Arc;

use regex::Regex;
use serde_json::Value;

use crate::field_error::{ErrorKind, FieldError};
use crate::schema::format;
use crate::schema::rules::CompiledRule;
use crate::value::json_type;

/// The smallest number above the range of signed 64-bit integers: two to the power of 63.
const INT64_END: f64 = 9_223_372_036_854_775_808.0;

/// The same for 32 bits.
const INT32_END: f64 = 2_147_483_648.0;

/// Floating point numbers above this need not be integers even if they look like it: two to the power of 53, minus one.
const WHOLE_MAX: f64 = 9_007_199_254_740_991.0;

/// `type` of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonType {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    /// `x-kubernetes-int-or-string`.
    IntOrString,
}

/// A limit of a number.
#[derive(Debug, Clone)]
pub(crate) struct NumericBound {
    pub(crate) value: f64,
    pub(crate) exclusive: bool,
}

/// Rules about a value, one field for each keyword of a schema that restricts values. Missing rules cost only the
/// memory of their field.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checks {
    pub(crate) ty: Option<JsonType>,
    pub(crate) nullable: bool,
    pub(crate) minimum: Option<NumericBound>,
    pub(crate) maximum: Option<NumericBound>,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) min_length: Option<usize>,
    pub(crate) max_length: Option<usize>,
    pub(crate) pattern: Option<Regex>,
    pub(crate) format: Option<String>,
    pub(crate) min_items: Option<usize>,
    pub(crate) max_items: Option<usize>,
    pub(crate) min_properties: Option<usize>,
    pub(crate) max_properties: Option<usize>,
    pub(crate) one_of_values: Option<Vec<Value>>,
    /// Used only inside `allOf`, `anyOf`, `oneOf` and `not`: elsewhere the types themselves state it.
    pub(crate) required: Vec<String>,
    pub(crate) properties: Vec<(String, Self)>,
    pub(crate) items: Option<Box<Self>>,
    pub(crate) entries: Option<Box<Self>>,
    pub(crate) all_of: Vec<Self>,
    pub(crate) any_of: Vec<Self>,
    pub(crate) one_of: Vec<Self>,
    pub(crate) not: Option<Box<Self>>,
    /// `x-kubernetes-validations`; evaluated after the other rules hold.
    pub(crate) rules: Vec<Arc<dyn CompiledRule>>,
}

impl Checks {
    /// Applies the rules to a value that may replace an `old` one. Returns false when it has a wrong type, so that its
    /// content need not be checked.
    pub(crate) fn value(
        &self,
        value: &Value,
        old: Option<&Value>,
        path: &str,
        errors: &mut Vec<FieldError>,
    ) -> bool {
        if (value.is_null() && self.nullable) || old == Some(value) {
            return true;
        }
        let misfit = self.ty.filter(|ty| !ty.admits(value));
        if let Some(expected) = misfit {
            let numeric = matches!(expected, JsonType::Integer | JsonType::Number);
            errors.push(match (&self.format, value) {
                // For a fraction, kube-apiserver names the formats.
                (Some(format), Value::Number(_)) if numeric => type_error(path, format, "float64"),
                _ => type_error(path, expected.name(), type_name(value)),
            });
        }
        // Rules apply by the actual type of the value; those about other types are skipped. Here and below, the order
        // is that of kube-openapi's validators.
        self.alternatives(value, old, path, errors);
        match value {
            Value::Number(number) => self.number(number.as_f64().unwrap_or_default(), value, path, errors),
            Value::String(text) => self.string(text, path, errors),
            Value::Array(items) => self.array(items, path, errors),
            Value::Object(_) | Value::Null | Value::Bool(_) => {}
        }
        self.values(value, path, errors);
        if let Value::Object(map) = value {
            self.object(map, old, path, errors);
        }
        misfit.is_none()
    }

    /// The errors of a single value.
    fn problems(&self, value: &Value, old: Option<&Value>, path: &str) -> Vec<FieldError> {
        let mut errors = Vec::new();
        self.value(value, old, path, &mut errors);
        errors
    }

    fn values(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        let Some(values) = self.one_of_values.as_ref().filter(|values| !values.contains(value)) else {
            return;
        };
        let texts: Vec<String> = values
            .iter()
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        errors.push(FieldError::not_supported(field_at(path), value.clone(), &texts));
    }

    fn number(&self, number: f64, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        self.width(number, value, path, errors);
        let mut report = |text: String| {
            errors.push(FieldError::invalid(field_at(path), value.clone(), format!("{path} in body {text}")));
        };
        if let Some(factor) = self.multiple_of.filter(|factor| *factor > 0.0) {
            let quotient = number / factor;
            if (quotient - quotient.round()).abs() > 1e-9 {
                report(format!("should be a multiple of {factor}"));
            }
        }
        if let Some(bound) = &self.minimum {
            match bound.exclusive {
                true if number <= bound.value => report(format!("should be greater than {}", bound.value)),
                false if number < bound.value => {
                    report(format!("should be greater than or equal to {}", bound.value));
                }
                _ => {}
            }
        }
        if let Some(bound) = &self.maximum {
            match bound.exclusive {
                true if number >= bound.value => report(format!("should be less than {}", bound.value)),
                false if number > bound.value => {
                    report(format!("should be less than or equal to {}", bound.value));
                }
                _ => {}
            }
        }
    }

    /// Checks the range of integers, and of other numbers with an integer format.
    fn width(&self, number: f64, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        let is_integer = self.ty == Some(JsonType::Integer);
        let (end, words) = match self.format.as_deref() {
            Some("int32") => (INT32_END, "with format int32"),
            Some("int64") => (INT64_END, "with format int64"),
            _ if is_integer => (INT64_END, "(default format)"),
            _ => return,
        };
        let is_whole = number.fract() == 0.0;
        let has_room = match value.as_i64() {
            Some(number) => end > INT32_END || i32::try_from(number).is_ok(),
            None => (-end..end).contains(&number),
        };
        if (is_whole && !has_room) || (is_integer && !is_whole) {
            let text = format!("Checked value must be of type integer {words} in {path}");
            errors.push(FieldError::invalid("<nil>", "", text));
        }
    }

    fn string(&self, text: &str, path: &str, errors: &mut Vec<FieldError>) {
        let length = text.chars().count();
        let invalid =
            |rule: String| FieldError::invalid(field_at(path), text, format!("{path} in body {rule}"));
        // Only the first of these three errors is reported.
        if let Some(max) = self.max_length.filter(|max| length > *max) {
            errors.push(FieldError::too_long(field_at(path), max));
        } else if let Some(min) = self.min_length.filter(|min| length < *min) {
            errors.push(invalid(format!("should be at least {min} chars long")));
        } else if let Some(pattern) = self.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
            errors.push(invalid(format!("should match '{}'", pattern.as_str())));
        }
        if let Some(format) = self.format.as_ref().filter(|format| !format::matches_format(format, text)) {
            let error = invalid(format!("must be of type {format}: \"{text}\""));
            errors.push(FieldError { kind: ErrorKind::TypeInvalid, ..error });
        }
    }

    fn array(&self, items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
        if let Some(checks) = &self.items {
            for (index, item) in items.iter().enumerate() {
                checks.value(item, None, &format!("{path}[{index}]"), errors);
            }
        }
        if let Some(min) = self.min_items.filter(|min| items.len() < *min) {
            let text = format!("{path} in body should have at least {min} items");
            errors.push(FieldError::invalid(field_at(path), items.len(), text));
        }
        if let Some(max) = self.max_items.filter(|max| items.len() > *max) {
            errors.push(FieldError::too_many(field_at(path), items.len(), max));
        }
    }

    fn object(
        &self,
        map: &serde_json::Map<String, Value>,
        old: Option<&Value>,
        path: &str,
        errors: &mut Vec<FieldError>,
    ) {
        let before = |name: &str| old.and_then(|old| old.get(name));
        if let Some(min) = self.min_properties.filter(|min| map.len() < *min) {
            let text = format!("{path} in body should have at least {min} properties");
            errors.push(FieldError::invalid(field_at(path), map.len(), text));
        }
        if let Some(max) = self.max_properties.filter(|max| map.len() > *max) {
            errors.push(FieldError::too_many(field_at(path), map.len(), max));
        }
        if let Some(checks) = &self.entries {
            for (name, value) in map {
                checks.value(value, before(name), &join(path, name), errors);
            }
        }
        for (name, checks) in &self.properties {
            if let Some(value) = map.get(name) {
                checks.value(value, before(name), &join(path, name), errors);
            }
        }
        for name in self.required.iter().filter(|name| !map.contains_key(*name)) {
            errors.push(FieldError::required(join(path, name), ""));
        }
    }

    fn alternatives(&self, value: &Value, old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
        let found = |checks: &[Self]| -> Vec<Vec<FieldError>> {
            checks.iter().map(|checks| checks.problems(value, old, path)).collect()
        };
        // Errors of alternatives name the field only in their text.
        let report = |rule: &str| FieldError::invalid("<nil>", "", format!("{path:?} {rule}"));
        let any_of = found(&self.any_of);
        if !any_of.is_empty() && !any_of.iter().any(Vec::is_empty) {
            errors.push(report("must validate at least one schema (anyOf)"));
            errors.extend(any_of.into_iter().next().unwrap_or_default());
        }
        let one_of = found(&self.one_of);
        match one_of.iter().filter(|problems| problems.is_empty()).count() {
            _ if one_of.is_empty() => {}
            0 => {
                errors.push(report("must validate one and only one schema (oneOf). Found none valid"));
                errors.extend(one_of.into_iter().next().unwrap_or_default());
            }
            1 => {}
            n => {
                let text =
                    format!("must validate one and only one schema (oneOf). Found {n} valid alternatives");
                errors.push(report(&text));
            }
        }
        let all_of = found(&self.all_of);
        let valid = all_of.iter().filter(|problems| problems.is_empty()).count();
        if valid < all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            errors.extend(all_of.into_iter().flatten());
            errors.push(report(&format!("must validate all the schemas (allOf){none}")));
        }
        if self.not.as_ref().is_some_and(|checks| checks.problems(value, old, path).is_empty()) {
            errors.push(report("must not validate the schema (not)"));
        }
    }
}

fn field_at(path: &str) -> &str {
    if path.is_empty() { "<nil>" } else { path }
}

impl JsonType {
    fn admits(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Object, Value::Object(_))
            | (Self::Array, Value::Array(_))
            | (Self::String | Self::IntOrString, Value::String(_))
            | (Self::Number, Value::Number(_))
            | (Self::Boolean, Value::Bool(_)) => true,
            (Self::Integer | Self::IntOrString, Value::Number(number)) => {
                let is_whole = |float: f64| float.fract() == 0.0 && float.abs() <= WHOLE_MAX;
                number.is_i64() || number.as_f64().is_some_and(is_whole)
            }
            _ => false,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::IntOrString => "integer,string",
        }
    }
}

/// The path of a field.
pub(crate) fn join(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}

/// The OpenAPI name of a value's type.
pub(super) fn type_name(value: &Value) -> &'static str {
    match json_type(value) {
        "bool" => "boolean",
        "number" if value.as_i64().is_none() => "number",
        "number" => "integer",
        other => other,
    }
}

pub(super) fn type_error(path: &str, expected: &str, found: &str) -> FieldError {
    let field = if path.is_empty() { "<nil>" } else { path };
    FieldError {
        kind: ErrorKind::TypeInvalid,
        field: field.to_owned(),
        value: Some(found.into()),
        detail: format!("{path} in body must be of type {expected}: \"{found}\""),
    }
}
