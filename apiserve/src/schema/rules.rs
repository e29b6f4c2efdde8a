//! Rules of custom kinds (`x-kubernetes-validations`): the hook for an engine that evaluates their expressions.
//!
//! A definition whose rules the engine does not take is refused: a rule is never accepted and then not enforced.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::check::join;
use super::correlate;
use super::types::{Place, Shape};
use crate::kinds::error::{CAUSES_MAX, ErrorKind, FieldError};

#[cfg(test)]
mod tests;

/// What all rules of one object may cost together, in the units of kube-apiserver (`RuntimeCELCostBudget`).
pub const COST_MAX: u64 = 10_000_000;

/// Reads expressions when a definition is checked.
pub trait RuleEngine: fmt::Debug + Send + Sync {
    /// Makes a rule that can be evaluated.
    ///
    /// # Errors
    /// Why the definition must be refused.
    fn compile(&self, site: &RuleSite<'_>) -> Result<Arc<dyn CompiledRule>, RuleRefusal>;
}

/// A rule of one schema node.
pub trait CompiledRule: fmt::Debug + Send + Sync {
    /// Checks a value. `old` is the value that it replaces, where there is one that corresponds to it: what stands
    /// at the same fields and keys, and in lists of type map under the same keys.
    ///
    /// # Errors
    /// How the rule is broken.
    fn check(&self, value: &Value, old: Option<&Value>, budget: &mut Budget) -> Result<(), RuleFailure>;
}

/// One rule with the place where it stands.
#[derive(Debug, Clone, Copy)]
pub struct RuleSite<'a> {
    /// The schema that has the rule, as it is written in the definition; `self` is a value of it.
    pub schema: &'a Value,
    /// The rule as it is written: `rule`, `message`, `messageExpression`, `reason`, `fieldPath`, `optionalOldSelf`.
    pub rule: &'a Value,
}

/// Why a rule is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleRefusal {
    /// This server cannot evaluate it, with the reason and the way out.
    NotEvaluated(String),
    /// It is wrong, as the text says.
    Invalid(String),
}

/// How a rule is broken.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleFailure {
    /// `reason` of the rule.
    pub kind: ErrorKind,
    /// `fieldPath` of the rule without its leading dot; empty for the value itself.
    pub field: String,
    /// The rule's message.
    pub message: String,
}

/// What evaluation may still cost.
#[derive(Debug)]
pub struct Budget {
    left: u64,
}

impl Budget {
    /// Takes a cost; false when more is asked for than is left, which must end the evaluation.
    #[must_use]
    pub fn spend(&mut self, cost: u64) -> bool {
        let enough = cost <= self.left;
        self.left = self.left.saturating_sub(cost);
        enough
    }
}

/// Takes no rule.
#[derive(Debug)]
pub struct NoRules;

impl RuleEngine for NoRules {
    fn compile(&self, _: &RuleSite<'_>) -> Result<Arc<dyn CompiledRule>, RuleRefusal> {
        let text = "this API server does not evaluate CEL rules: a definition with rules is refused rather than \
                    accepted without enforcing them; remove x-kubernetes-validations";
        Err(RuleRefusal::NotEvaluated(text.to_owned()))
    }
}

/// Compiles the rules of one schema node.
pub(super) fn compile(
    engine: &dyn RuleEngine,
    schema: &Value,
    path: &str,
    errors: &mut Vec<FieldError>,
) -> Vec<Arc<dyn CompiledRule>> {
    let written = schema["x-kubernetes-validations"].as_array();
    let mut compiled = Vec::new();
    for (index, rule) in written.into_iter().flatten().enumerate() {
        let at = format!("{path}.x-kubernetes-validations[{index}].rule");
        match engine.compile(&RuleSite { schema, rule }) {
            Ok(rule) => compiled.push(rule),
            Err(RuleRefusal::NotEvaluated(why)) => errors.push(FieldError::forbidden(at, why)),
            Err(RuleRefusal::Invalid(why)) => {
                errors.push(FieldError::invalid(at, rule["rule"].clone(), why));
            }
        }
    }
    compiled
}

/// Checks the rules of a value that fits its type.
pub(crate) fn judge(place: Place<'_>, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut judgement = Judgement { budget: Budget { left: COST_MAX }, errors: Vec::new() };
    judgement.walk(place, value, old, "");
    judgement.errors.truncate(CAUSES_MAX);
    judgement.errors
}

struct Judgement {
    budget: Budget,
    errors: Vec<FieldError>,
}

impl Judgement {
    fn walk(&mut self, place: Place<'_>, value: &Value, old: Option<&Value>, path: &str) {
        let node = place.node();
        let Some(checks) = node.checks.as_ref().filter(|_| !value.is_null()) else { return };
        let old = old.filter(|old| !old.is_null());
        for rule in &checks.rules {
            if self.errors.len() >= CAUSES_MAX {
                return;
            }
            if let Err(failure) = rule.check(value, old, &mut self.budget) {
                self.errors.push(report(failure, value, path));
            }
        }
        match (&node.shape, value) {
            (Shape::Struct(_) | Shape::Map { .. }, Value::Object(members)) => {
                for (key, item) in members {
                    let before = correlate::member(node, old, key);
                    self.walk(place.child(key).0, item, before, &join(path, key));
                }
            }
            (Shape::List(list), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    let before = correlate::item(list, old, item);
                    self.walk(place.item(), item, before, &format!("{path}[{index}]"));
                }
            }
            _ => {}
        }
    }
}

fn report(failure: RuleFailure, value: &Value, path: &str) -> FieldError {
    let RuleFailure { kind, field, message } = failure;
    let field = match (path, field.as_str()) {
        ("", "") => "<nil>".to_owned(),
        (path, "") => path.to_owned(),
        (path, below) => join(path, below),
    };
    let found = super::types::json_type(value);
    FieldError { kind, field, value: Some(found.into()), detail: message }
}
