//! Field checks that several kinds share.

use serde_json::Value;

use super::FieldError;
use super::field::{Errors, Field};
use super::selectors::label_selector;

/// A field of an object, by its path from the object.
pub(super) fn top<'a>(object: &'a Value, path: &'a str) -> Field<'a, 'a> {
    Field::root(path, descend(object, path))
}

fn descend<'v>(value: &'v Value, path: &str) -> &'v Value {
    path.split('.').fold(value, |value, name| &value[name])
}

impl<'v> Field<'_, 'v> {
    /// A nested member; the names are joined with dots.
    pub(super) fn below<'c>(&'c self, path: &'c str) -> Field<'c, 'v> {
        self.with(path, descend(self.value(), path))
    }

    /// Number of items or entries.
    pub(super) fn len(&self) -> usize {
        match self.value() {
            Value::Array(list) => list.len(),
            Value::Object(map) => map.len(),
            _ => 0,
        }
    }

    /// The texts in this list.
    pub(super) fn texts(&self) -> Vec<&'v str> {
        self.list().iter().filter_map(Value::as_str).collect()
    }

    /// The error that the value breaks a rule about more than its own content.
    pub(super) fn broken(&self, detail: impl Into<String>) -> FieldError {
        FieldError { value: None, ..self.invalid_value(Value::Null, detail) }
    }

    /// Reports members that are negative numbers.
    pub(super) fn none_negative(&self, names: &[&str], errors: &mut Errors) {
        names.iter().for_each(|name| self.child(name).non_negative(errors));
    }

    /// Reports every grammar problem of the text, even if it is empty.
    pub(super) fn grammar<P>(&self, rule: impl Fn(&str) -> P, errors: &mut Errors)
    where
        P: IntoIterator<Item: Into<String>>,
    {
        self.check_all(rule(self.text()), errors);
    }

    /// Reports problems of a label selector, if there is one.
    pub(super) fn selector(&self, errors: &mut Errors) {
        label_selector(self.value(), &self.path(), errors);
    }

    /// The same for a required selector.
    pub(super) fn required_selector(&self, errors: &mut Errors) {
        match self.is_set() {
            true => self.selector(errors),
            false => errors.push(self.required("")),
        }
    }

    /// Reports a list or map with more than `max` entries. Returns whether it did.
    pub(super) fn overfull(&self, max: usize, errors: &mut Errors) -> bool {
        let is_overfull = self.len() > max;
        if is_overfull {
            errors.push(FieldError::too_many(self.path(), self.len(), max));
        }
        is_overfull
    }

    /// Reports a text that is longer than `max` bytes.
    pub(super) fn overlong(&self, max: usize, errors: &mut Errors) {
        if self.text().len() > max {
            errors.push(FieldError::too_long(self.path(), max));
        }
    }

    /// Reports duplicate items of this list.
    pub(super) fn unique(&self, errors: &mut Errors) {
        let list = self.list();
        for (index, item) in self.items().enumerate() {
            if list[..index].contains(item.value()) {
                errors.push(item.duplicate());
            }
        }
    }

    /// Reports a value that an update may not change.
    pub(super) fn unchanged(&self, old: &Value, errors: &mut Errors) {
        if self.value() != old {
            errors.push(self.invalid(super::IMMUTABLE));
        }
    }
}
