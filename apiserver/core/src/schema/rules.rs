//! Rules of custom kinds (`x-kubernetes-validations`): the hook for an engine that evaluates their expressions.
//!
//! A definition with rules that the engine refuses is refused as well: no rule is accepted without being enforced.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::field_error::{ErrorKind, FieldError};

#[cfg(test)]
mod tests;

/// Maximum cost of all rules of one object together, in the units of kube-apiserver (`RuntimeCELCostBudget`).
pub const COST_MAX: u64 = 10_000_000;

/// Maximum estimated cost of all rules of one definition (`StaticEstimatedCRDCostLimit`).
const ESTIMATE_MAX: u64 = 100_000_000;
/// Minimum estimated cost of a rule to be named among those that exceed the limit of a definition.
const ESTIMATE_NAMED_MIN: u64 = ESTIMATE_MAX / 100;
/// Maximum number of rules that are named as the most expensive ones.
const ESTIMATES_NAMED_MAX: usize = 4;

/// Reserved words of CEL: they name no variable, and a field with such a name is escaped.
pub const RESERVED_WORDS: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Compiles the rules of definitions.
pub trait RuleEngine: fmt::Debug + Send + Sync {
    /// Compiles a rule.
    ///
    /// # Errors
    /// The errors of the rule. Their fields are those of the rule: `rule`, `messageExpression`, ...
    fn compile(&self, site: &RuleSite<'_>) -> Result<Compiled, Vec<FieldError>>;
}

/// A rule of one schema node.
pub trait CompiledRule: fmt::Debug + Send + Sync {
    /// Checks a value. `old` is the corresponding old value, if any: the one at the same fields and keys, where items
    /// of lists of type map are identified by their keys.
    ///
    /// # Errors
    /// The reason why the rule is broken.
    fn check(&self, value: &Value, old: Option<&Value>, budget: &mut Budget) -> Result<(), RuleFailure>;
}

/// The result of compiling a rule.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// The rule to evaluate.
    pub rule: Arc<dyn CompiledRule>,
    /// Maximum cost in one object, by the sizes that the schema allows.
    pub cost: u64,
    /// Whether the rule refers to the old value.
    pub is_transition: bool,
}

/// One rule with its context.
#[derive(Debug, Clone, Copy)]
pub struct RuleSite<'a> {
    /// The schema that contains the rule, as written in the definition; `self` is a value of it.
    pub schema: &'a Value,
    /// The rule as written: `rule`, `message`, `messageExpression`, `reason`, `fieldPath`, `optionalOldSelf`.
    pub rule: &'a Value,
    /// Whether values are whole objects: the custom resource itself, or an embedded one.
    pub is_object: bool,
    /// Maximum number of values in one object; none when the schema does not limit it.
    pub occurrences_max: Option<u64>,
}

/// Why a rule is broken.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleFailure {
    /// `reason` of the rule.
    pub kind: ErrorKind,
    /// `fieldPath` of the rule without its leading dot; empty for the value itself.
    pub field: String,
    /// The value that the answer shows; `None` where the message has none.
    pub value: Option<Value>,
    /// The rule's message.
    pub message: String,
    /// What the failure means for the object.
    pub consequence: Consequence,
}

/// What a broken rule means for the object. The set is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// The object is refused, unless the value did not change (ratcheting).
    RefusedWhenChanged,
    /// The object is refused.
    Refused,
    /// The object is refused and no other rule is evaluated.
    Stopped,
}

/// The remaining cost budget of an evaluation.
#[derive(Debug)]
pub struct Budget {
    left: u64,
}

impl Budget {
    /// The budget for the rules of one object.
    pub(super) fn of_object() -> Self {
        Self { left: COST_MAX }
    }

    /// Spends a cost. Returns false when it exceeds the rest, which must end the evaluation.
    #[must_use]
    pub fn spend(&mut self, cost: u64) -> bool {
        let enough = cost <= self.left;
        self.left = self.left.saturating_sub(cost);
        enough
    }
}

/// Refuses every rule.
#[derive(Debug)]
pub struct NoRules;

impl RuleEngine for NoRules {
    fn compile(&self, _: &RuleSite<'_>) -> Result<Compiled, Vec<FieldError>> {
        let text = "this API server does not evaluate CEL rules: a definition with rules is refused rather than \
                    accepted without enforcing them; remove x-kubernetes-validations";
        Err(vec![FieldError::forbidden("rule", text)])
    }
}

/// The state of the compiler of a definition: what surrounds the current schema, and the rules so far.
#[derive(Debug)]
pub(super) struct Scope {
    /// What surrounds the current schema.
    pub(super) surroundings: Surroundings,
    /// Estimated costs of the rules so far, with the paths of the expensive ones.
    costs: Costs,
    /// Errors of the rules so far. They are kept apart, because rules are compiled only where their schema is valid.
    errors: Vec<FieldError>,
}

/// The context of a schema node.
#[derive(Debug, Clone)]
pub(super) struct Surroundings {
    /// Maximum number of values in one object; none when the schema does not limit it.
    pub(super) occurrences_max: Option<u64>,
    /// The outermost list whose items do not correspond to items of the old list.
    pub(super) uncorrelated: Option<String>,
}

impl Surroundings {
    /// The context below a list or map of at most this many values.
    pub(super) fn times(&self, most: Option<u64>) -> Self {
        let product = self.occurrences_max.zip(most).map(|(here, most)| here.saturating_mul(most));
        Self { occurrences_max: product, ..self.clone() }
    }
}

#[derive(Debug, Default)]
struct Costs {
    total: u64,
    dear: Vec<(u64, String)>,
}

impl Default for Scope {
    fn default() -> Self {
        let surroundings = Surroundings { occurrences_max: Some(1), uncorrelated: None };
        Self { surroundings, costs: Costs::default(), errors: Vec::new() }
    }
}

impl Scope {
    /// Compiles the rules of one schema node.
    pub(super) fn compile(
        &mut self,
        engine: &dyn RuleEngine,
        schema: &Value,
        is_object: bool,
        path: &str,
    ) -> Vec<Arc<dyn CompiledRule>> {
        let written = schema["x-kubernetes-validations"].as_array();
        let mut compiled = Vec::new();
        for (index, rule) in written.into_iter().flatten().enumerate() {
            let at = format!("{path}.x-kubernetes-validations[{index}]");
            let site =
                RuleSite { schema, rule, is_object, occurrences_max: self.surroundings.occurrences_max };
            match engine.compile(&site) {
                Ok(one) => {
                    self.account(one.cost, format!("{at}.rule"));
                    if let Some(list) = self.surroundings.uncorrelated.as_ref().filter(|_| one.is_transition)
                    {
                        let text = format!(
                            "oldSelf cannot be used on the uncorrelatable portion of the schema within {list}"
                        );
                        let field = format!("{at}.rule");
                        self.errors.push(FieldError::invalid(field, rule["rule"].clone(), text));
                    }
                    compiled.push(one.rule);
                }
                Err(found) => {
                    let placed =
                        |error: FieldError| FieldError { field: format!("{at}.{}", error.field), ..error };
                    self.errors.extend(found.into_iter().map(placed));
                }
            }
        }
        compiled
    }

    fn account(&mut self, cost: u64, path: String) {
        self.costs.total = self.costs.total.saturating_add(cost);
        if cost >= ESTIMATE_NAMED_MIN {
            self.costs.dear.push((cost, path));
            self.costs.dear.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
            self.costs.dear.truncate(ESTIMATES_NAMED_MAX);
        }
    }

    /// The errors of the rules, including that of their total cost.
    pub(super) fn finish(&mut self, path: &str) -> Vec<FieldError> {
        let mut errors = std::mem::take(&mut self.errors);
        if self.costs.total <= ESTIMATE_MAX {
            return errors;
        }
        for (_, site) in &self.costs.dear {
            let text =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.push(FieldError::forbidden(site.clone(), text));
        }
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(FieldError::forbidden(path, cost_message(name, self.costs.total, ESTIMATE_MAX)));
        errors
    }
}

/// kube-apiserver's message about an estimate that exceeds a limit.
#[must_use]
pub fn cost_message(name: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor > 100.0 {
        true => "more than 100x".to_owned(),
        false => format!("{factor:.1}x"),
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, \
         and maxLength where arrays, maps, and strings are declared)"
    )
}
