//! The rules of one schema node that speak about a value alone.

use std::sync::Arc;

use regex::Regex;
use serde_json::Value;

use super::{join, type_error};
use crate::kinds::error::{ErrorKind, FieldError};
use crate::schema::format;
use crate::schema::rules::CompiledRule;

/// Numbers above it do not fit into 64 bits with a sign: two to the power of 63.
const INT64_LIMIT: f64 = 9_223_372_036_854_775_808.0;

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
pub(crate) struct Bound {
    pub(crate) value: f64,
    pub(crate) exclusive: bool,
}

/// Rules about a value. Absent rules cost nothing but their place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checks {
    pub(crate) ty: Option<JsonType>,
    pub(crate) nullable: bool,
    pub(crate) minimum: Option<Bound>,
    pub(crate) maximum: Option<Bound>,
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
    /// Inside `allOf`, `anyOf`, `oneOf` and `not` only: elsewhere the types themselves say it.
    pub(crate) required: Vec<String>,
    pub(crate) properties: Vec<(String, Self)>,
    pub(crate) items: Option<Box<Self>>,
    pub(crate) entries: Option<Box<Self>>,
    pub(crate) all_of: Vec<Self>,
    pub(crate) any_of: Vec<Self>,
    pub(crate) one_of: Vec<Self>,
    pub(crate) not: Option<Box<Self>>,
    /// `x-kubernetes-validations`; judged once the rest holds.
    pub(crate) rules: Vec<Arc<dyn CompiledRule>>,
}

impl Checks {
    /// Applies the rules to a value that may replace an `old` one; false when it has a wrong type, so that looking
    /// below it makes no sense.
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
            errors.push(type_error(path, expected.name(), value));
        }
        // Rules go by what the value is: those of another type do not speak of it.
        match value {
            Value::Number(number) => self.number(number.as_f64().unwrap_or_default(), value, path, errors),
            Value::String(text) => self.string(text, path, errors),
            Value::Array(items) => self.array(items, path, errors),
            Value::Object(map) => self.object(map, old, path, errors),
            Value::Null | Value::Bool(_) => {}
        }
        self.values(value, path, errors);
        self.alternatives(value, old, path, errors);
        misfit.is_none()
    }

    /// What is wrong with a value, on its own.
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
        errors.push(FieldError::not_supported(place(path), value.clone(), &texts));
    }

    fn number(&self, number: f64, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        if self.ty == Some(JsonType::Integer) && number.fract() != 0.0 {
            let text = format!("Checked value must be of type integer (default format) in {path}");
            errors.push(FieldError::invalid("<nil>", "", text));
        }
        self.width(value, path, errors);
        let mut report = |text: String| {
            errors.push(FieldError::invalid(place(path), value.clone(), format!("{path} in body {text}")));
        };
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
        if let Some(factor) = self.multiple_of.filter(|factor| *factor > 0.0) {
            let quotient = number / factor;
            if (quotient - quotient.round()).abs() > 1e-9 {
                report(format!("should be a multiple of {factor}"));
            }
        }
    }

    /// Integers with a format have room for so many bits.
    fn width(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        let Some(format @ ("int32" | "int64")) = self.format.as_deref() else { return };
        let max = if format == "int32" { f64::from(i32::MAX) } else { INT64_LIMIT };
        let is_whole = |number: &f64| number.fract() == 0.0;
        if value.as_f64().filter(is_whole).is_some_and(|number| number > max || number < -max - 1.0) {
            let text = format!("Checked value must be of type integer with format {format} in {path}");
            errors.push(FieldError::invalid("<nil>", "", text));
        }
    }

    fn string(&self, text: &str, path: &str, errors: &mut Vec<FieldError>) {
        let length = text.chars().count();
        let invalid = |rule: String| FieldError::invalid(place(path), text, format!("{path} in body {rule}"));
        // Of these three only the first is reported.
        if let Some(max) = self.max_length.filter(|max| length > *max) {
            errors.push(FieldError::too_long(place(path), max));
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
        if let Some(max) = self.max_items.filter(|max| items.len() > *max) {
            errors.push(FieldError::too_many(place(path), items.len(), max));
        }
        if let Some(min) = self.min_items.filter(|min| items.len() < *min) {
            let text = format!("{path} in body should have at least {min} items");
            errors.push(FieldError::invalid(place(path), items.len(), text));
        }
        if let Some(checks) = &self.items {
            for (index, item) in items.iter().enumerate() {
                checks.value(item, None, &format!("{path}[{index}]"), errors);
            }
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
        if let Some(max) = self.max_properties.filter(|max| map.len() > *max) {
            errors.push(FieldError::too_many(place(path), map.len(), max));
        }
        if let Some(min) = self.min_properties.filter(|min| map.len() < *min) {
            let text = format!("{path} in body should have at least {min} properties");
            errors.push(FieldError::invalid(place(path), map.len(), text));
        }
        for name in self.required.iter().filter(|name| !map.contains_key(*name)) {
            errors.push(FieldError::required(join(path, name), ""));
        }
        for (name, checks) in &self.properties {
            if let Some(value) = map.get(name) {
                checks.value(value, before(name), &join(path, name), errors);
            }
        }
        if let Some(checks) = &self.entries {
            for (name, value) in map {
                checks.value(value, before(name), &join(path, name), errors);
            }
        }
    }

    fn alternatives(&self, value: &Value, old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
        let found = |checks: &[Self]| -> Vec<Vec<FieldError>> {
            checks.iter().map(|checks| checks.problems(value, old, path)).collect()
        };
        // Messages about alternatives name no field but in their text.
        let report = |rule: &str| FieldError::invalid("<nil>", "", format!("{path:?} {rule}"));
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
        let any_of = found(&self.any_of);
        if !any_of.is_empty() && !any_of.iter().any(Vec::is_empty) {
            errors.push(report("must validate at least one schema (anyOf)"));
            errors.extend(any_of.into_iter().next().unwrap_or_default());
        }
        let all_of = found(&self.all_of);
        let valid = all_of.iter().filter(|problems| problems.is_empty()).count();
        if valid < all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            errors.push(report(&format!("must validate all the schemas (allOf){none}")));
            errors.extend(all_of.into_iter().flatten());
        }
        if self.not.as_ref().is_some_and(|checks| checks.problems(value, old, path).is_empty()) {
            errors.push(report("must not validate the schema (not)"));
        }
    }
}

fn place(path: &str) -> &str {
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
                number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|n| n.fract() == 0.0)
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
