//! Evaluates the rules of custom kinds over an object and its old state.

use serde_json::Value;

use super::correlate;
use super::node_checks::join;
use super::rules::{Budget, Consequence, RuleFailure};
use super::types::{SchemaPosition, Shape};
use crate::field_error::{CAUSES_MAX, FieldError};

/// The result of evaluating rules.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// Broken rules.
    pub(crate) errors: Vec<FieldError>,
    /// Rules that the old value broke as well: they only cause warnings.
    pub(crate) overlooked: Vec<FieldError>,
}

/// Evaluates the rules of a value that fits its type.
pub(crate) fn judge(position: SchemaPosition<'_>, value: &Value, old: Option<&Value>) -> Judgement {
    let mut judge = Judge { budget: Budget::of_object(), judgement: Judgement::default(), is_stopped: false };
    judge.walk(position, &ValueWithOld { value, old, ancestor: None }, "");
    judge.judgement
}

struct Judge {
    budget: Budget,
    judgement: Judgement,
    is_stopped: bool,
}

/// A value with its old value.
struct ValueWithOld<'a> {
    value: &'a Value,
    old: Option<&'a Value>,
    /// The nearest enclosing value that has an old value, with that.
    ancestor: Option<(&'a Value, &'a Value)>,
}

impl<'a> ValueWithOld<'a> {
    fn below(&self, value: &'a Value, old: Option<&'a Value>) -> Self {
        let ancestor = self.old.map(|old| (self.value, old)).or(self.ancestor);
        Self { value, old: old.filter(|old| !old.is_null()), ancestor }
    }

    /// Whether the value is unchanged or, without an old value of its own, its nearest ancestor is.
    fn is_unchanged(&self) -> bool {
        match self.old {
            Some(old) => self.value == old,
            None => self.ancestor.is_some_and(|(value, old)| value == old),
        }
    }
}

impl Judge {
    fn walk(&mut self, position: SchemaPosition<'_>, pair: &ValueWithOld<'_>, path: &str) {
        let node = position.node();
        let Some(checks) = node.checks.as_ref().filter(|_| !pair.value.is_null()) else { return };
        for rule in &checks.rules {
            if self.is_stopped || self.judgement.errors.len() >= CAUSES_MAX {
                return;
            }
            if let Err(failure) = rule.check(pair.value, pair.old, &mut self.budget) {
                self.is_stopped = failure.consequence == Consequence::Stopped;
                let kept = failure.consequence == Consequence::RefusedWhenChanged && pair.is_unchanged();
                let Judgement { errors, overlooked } = &mut self.judgement;
                let list = if kept { overlooked } else { errors };
                if list.len() < CAUSES_MAX {
                    list.push(report(failure, path));
                }
            }
        }
        match (&node.shape, pair.value) {
            (Shape::Struct(_) | Shape::Map { .. }, Value::Object(members)) => {
                let is_map = matches!(node.shape, Shape::Map { .. });
                for (key, item) in members {
                    let before = pair.old.and_then(|old| old.get(key));
                    let at = if is_map { format!("{path}[{key}]") } else { join(path, key) };
                    self.walk(position.child(key).0, &pair.below(item, before), &at);
                }
            }
            (Shape::List(list), Value::Array(items)) => {
                let before = correlate::Items::new(list, pair.old);
                for (index, item) in items.iter().enumerate() {
                    self.walk(
                        position.item(),
                        &pair.below(item, before.find(item)),
                        &format!("{path}[{index}]"),
                    );
                }
            }
            _ => {}
        }
    }
}

fn report(failure: RuleFailure, path: &str) -> FieldError {
    let RuleFailure { kind, field, value, message, .. } = failure;
    let field = match (path, field.as_str()) {
        ("", "") => "<nil>".to_owned(),
        (path, "") => path.to_owned(),
        (path, below) => join(path, below),
    };
    FieldError { kind, field, value, detail: message }
}
