//! A value of an object with its path. The path is formatted only for an error.

use std::fmt::{self, Display, Write as _};

use serde_json::Value;

use super::FieldError;
use tombolo_apicore::field_error::ErrorKind;

/// The errors found.
pub(super) type Errors = Vec<FieldError>;

/// Returns the problem with a text; `None` if it is valid.
pub(super) type Grammar = fn(&str) -> Option<String>;

const NEGATIVE: &str = "must be greater than or equal to 0";

/// A value at a path. `'v` is the lifetime of the object, `'p` that of the path segments.
#[derive(Clone, Copy)]
pub(super) struct Field<'p, 'v> {
    value: &'v Value,
    above: Option<&'p Self>,
    step: PathStep<'p>,
}

#[derive(Clone, Copy)]
enum PathStep<'p> {
    Name(&'p str),
    Index(usize),
    Key(&'p str),
}

impl<'p, 'v> Field<'p, 'v> {
    /// A value at the start of a path; the name may itself be a path.
    pub(super) fn root(name: &'p str, value: &'v Value) -> Self {
        Self { value, above: None, step: PathStep::Name(name) }
    }

    /// The value itself; null if it is missing.
    pub(super) fn value(&self) -> &'v Value {
        self.value
    }

    /// A member of an object.
    pub(super) fn child<'c>(&'c self, name: &'c str) -> Field<'c, 'v> {
        Field { value: &self.value[name], above: Some(self), step: PathStep::Name(name) }
    }

    /// Another value, reported as if it were a member.
    pub(super) fn with<'c>(&'c self, name: &'c str, value: &'v Value) -> Field<'c, 'v> {
        Field { value, above: Some(self), step: PathStep::Name(name) }
    }

    /// Another value, reported at this path.
    pub(super) fn with_itself(&self, value: &'v Value) -> Self {
        Self { value, ..*self }
    }

    /// An entry of a map.
    pub(super) fn key<'c>(&'c self, key: &'c str) -> Field<'c, 'v> {
        Field { value: &self.value[key], above: Some(self), step: PathStep::Key(key) }
    }

    /// An item of a list.
    pub(super) fn index(&self, index: usize) -> Field<'_, 'v> {
        Field { value: &self.value[index], above: Some(self), step: PathStep::Index(index) }
    }

    /// The items of a list; empty if it is missing.
    pub(super) fn items(&self) -> impl Iterator<Item = Field<'_, 'v>> {
        (0..self.list().len()).map(|index| self.index(index))
    }

    /// The entries of a map; empty if it is missing.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'v str, Field<'_, 'v>)> {
        let members = self.value.as_object().into_iter().flatten();
        members.map(|(key, value)| {
            let key = key.as_str();
            (key, Field { value, above: Some(self), step: PathStep::Key(key) })
        })
    }

    /// The values of a list.
    pub(super) fn list(&self) -> &'v [Value] {
        self.value.as_array().map_or(&[], Vec::as_slice)
    }

    /// The text; empty if it is missing.
    pub(super) fn text(&self) -> &'v str {
        self.value.as_str().unwrap_or_default()
    }

    /// The integer; zero if it is missing.
    pub(super) fn int(&self) -> i64 {
        self.value.as_i64().unwrap_or_default()
    }

    /// Whether the value is true.
    pub(super) fn is_true(&self) -> bool {
        self.value == &Value::Bool(true)
    }

    /// Whether the value is present, even if empty.
    pub(super) fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// Whether the value is missing or empty.
    pub(super) fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(members) => members.is_empty(),
            _ => false,
        }
    }

    /// The path, for example `spec.containers[0].image`.
    pub(super) fn path(&self) -> String {
        self.to_string()
    }

    /// The error that the value is required.
    pub(super) fn required(&self, detail: &str) -> FieldError {
        FieldError::required(self.path(), detail)
    }

    /// The error that the value is forbidden.
    pub(super) fn forbidden(&self, detail: &str) -> FieldError {
        FieldError::forbidden(self.path(), detail)
    }

    /// The error that the value breaks a rule.
    pub(super) fn invalid(&self, detail: impl Into<String>) -> FieldError {
        FieldError::invalid(self.path(), self.value.clone(), detail)
    }

    /// The error that breaks a rule, with another value in the message.
    pub(super) fn invalid_value(&self, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        FieldError::invalid(self.path(), value, detail)
    }

    /// The error that the text is not one of the supported ones.
    pub(super) fn not_supported(&self, words: &[&str]) -> FieldError {
        FieldError::not_supported(self.path(), self.text(), words)
    }

    /// The error that the value is a duplicate.
    pub(super) fn duplicate(&self) -> FieldError {
        FieldError::duplicate(self.path(), self.value.clone())
    }

    /// The error that the object that the text refers to does not exist.
    pub(super) fn not_found(&self, detail: &str) -> FieldError {
        FieldError {
            kind: ErrorKind::NotFound,
            field: self.path(),
            value: Some(self.text().into()),
            detail: detail.to_owned(),
        }
    }

    /// Reports a non-empty text that breaks a grammar.
    pub(super) fn check(&self, grammar: Grammar, errors: &mut Errors) {
        if !self.text().is_empty() {
            self.check_all(grammar(self.text()), errors);
        }
    }

    /// Reports every problem with the text.
    pub(super) fn check_all<S: Into<String>>(
        &self,
        problems: impl IntoIterator<Item = S>,
        errors: &mut Errors,
    ) {
        errors.extend(problems.into_iter().map(|problem| self.invalid_value(self.text(), problem)));
    }

    /// Reports a text that is missing or breaks a grammar.
    pub(super) fn check_required(&self, grammar: Grammar, errors: &mut Errors) {
        match self.text() {
            "" => errors.push(self.required("")),
            _ => self.check(grammar, errors),
        }
    }

    /// Reports a missing text.
    pub(super) fn demand(&self, errors: &mut Errors) -> bool {
        if self.is_empty() {
            errors.push(self.required(""));
        }
        !self.is_empty()
    }

    /// Reports a text that is present, even if empty, and is not one of the supported ones.
    pub(super) fn one_of(&self, words: &[&str], errors: &mut Errors) {
        if self.is_set() && !words.contains(&self.text()) {
            errors.push(self.not_supported(words));
        }
    }

    /// Reports a text that is missing or not one of the supported ones.
    pub(super) fn one_of_required(&self, words: &[&str], errors: &mut Errors) {
        match self.text() {
            "" => errors.push(self.required("")),
            _ => self.one_of(words, errors),
        }
    }

    /// Reports a negative number.
    pub(super) fn non_negative(&self, errors: &mut Errors) {
        if self.int() < 0 {
            errors.push(self.invalid(NEGATIVE));
        }
    }

    /// Reports a number that is present and outside a range.
    pub(super) fn within(&self, least: i64, most: i64, errors: &mut Errors) {
        if self.is_set() && !(least..=most).contains(&self.int()) {
            errors.push(self.invalid(format!("must be between {least} and {most}, inclusive")));
        }
    }
}

impl Display for Field<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            above.fmt(f)?;
        }
        match self.step {
            PathStep::Name(name) => {
                if self.above.is_some() {
                    f.write_char('.')?;
                }
                f.write_str(name)
            }
            PathStep::Index(index) => write!(f, "[{index}]"),
            PathStep::Key(key) => write!(f, "[{key}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_path_is_written_as_kubernetes_writes_it() {
        let spec = json!({"a": [{"b": {"x/y": "v"}}]});
        let spec = Field::root("spec", &spec);
        let list = spec.child("a");
        let item = list.index(0);
        let map = item.child("b");
        let entry = map.key("x/y");
        assert_eq!(entry.path(), "spec.a[0].b[x/y]");
        assert_eq!(entry.text(), "v");
        assert!(!spec.child("c").is_set() && spec.child("c").is_empty());
    }
}
