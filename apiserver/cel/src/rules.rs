//! Validation rules of custom resources (`x-kubernetes-validations`): checks of the rules in a definition, and their
//! evaluation for objects, as in apiextensions-apiserver.

mod path;

use serde_json::{Value, json};
use std::sync::Arc;

use tombolo_apicore::field_error::ErrorKind;
use tombolo_apicore::field_error::FieldError;
use tombolo_apicore::schema::rules::{
    Budget, Compiled, CompiledRule, Consequence, RuleEngine, RuleFailure, RuleSite, cost_message,
};

use crate::expression::{Environment, Evaluation, EvaluationError, Expression, Variable, Variables};
use crate::limits::{CALL_COST_MAX, MESSAGE_BYTES_MAX, RULE_ESTIMATE_MAX};
use crate::schema::{Declared, cardinality_max, declare};
use crate::types::Type;

/// The error when the cost budget for an object's rules is used up.
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Evaluates the rules of custom resources.
#[derive(Debug, Clone, Copy, Default)]
pub struct CelRules;

impl RuleEngine for CelRules {
    fn compile(&self, site: &RuleSite<'_>) -> Result<Compiled, Vec<FieldError>> {
        let errors = form(site);
        if !errors.is_empty() {
            return Err(errors);
        }
        let Some(declared) = declare(site.schema, site.is_object) else {
            let text = "rules need a schema that says what the values are";
            return Err(vec![FieldError::forbidden("rule", text)]);
        };
        Reader { site, declared }.read()
    }
}

fn text<'a>(rule: &'a Value, key: &str) -> &'a str {
    rule[key].as_str().unwrap_or_default()
}

/// Problems with the parts of a rule that are not expressions.
fn form(site: &RuleSite<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let part = |key: &str| (text(site.rule, key), text(site.rule, key).trim());
    let ((_, rule), (raw_message, message)) = (part("rule"), part("message"));
    if rule.is_empty() {
        errors.push(FieldError::required("rule", "rule is not specified"));
    } else if !raw_message.is_empty() && message.is_empty() {
        errors.push(FieldError::invalid("message", raw_message, "must be non-empty if specified"));
    } else if message.contains('\n') {
        errors.push(FieldError::invalid("message", raw_message, "must not contain line breaks"));
    } else if rule.contains('\n') && message.is_empty() {
        errors
            .push(FieldError::required("message", "message must be specified if rule contains line breaks"));
    }
    if let (raw, "") = part("messageExpression")
        && !raw.is_empty()
    {
        errors.push(FieldError::required(
            "messageExpression",
            "messageExpression must be non-empty if specified",
        ));
    }
    if let Some(reason) = site.rule["reason"].as_str().filter(|reason| kind(reason).is_none()) {
        let supported =
            ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
        errors.push(FieldError::not_supported("reason", reason, &supported));
    }
    let (raw, trimmed) = part("fieldPath");
    if !raw.is_empty() {
        if trimmed.is_empty() {
            errors.push(FieldError::invalid("fieldPath", raw, "must be non-empty if specified"));
        }
        if raw.contains('\n') {
            errors.push(FieldError::invalid("fieldPath", raw, "must not contain line breaks"));
        }
        if path::read(raw, site.schema).is_none() {
            errors.push(FieldError::invalid("fieldPath", raw, "must be a valid path"));
        }
    }
    errors
}

fn kind(reason: &str) -> Option<ErrorKind> {
    Some(match reason {
        "FieldValueDuplicate" => ErrorKind::Duplicate,
        "FieldValueForbidden" => ErrorKind::Forbidden,
        "FieldValueInvalid" => ErrorKind::Invalid,
        "FieldValueRequired" => ErrorKind::Required,
        _ => return None,
    })
}

/// Compiles the expressions of one rule.
struct Reader<'a> {
    site: &'a RuleSite<'a>,
    declared: Declared,
}

impl Reader<'_> {
    fn read(self) -> Result<Compiled, Vec<FieldError>> {
        let rule = self.site.rule;
        let optional_old = rule["optionalOldSelf"] == true;
        let own = self.declared.ty.clone();
        let old = if optional_old { Type::Optional(Arc::new(own.clone())) } else { own.clone() };
        let environment =
            Environment::new(vec![("self".to_owned(), own.clone()), ("oldSelf".to_owned(), old)]);
        let expression = self.rule(&environment)?;
        let mut errors = Vec::new();
        let cost = self.total(expression.cost_max());
        if cost > RULE_ESTIMATE_MAX {
            let text = cost_message("estimated rule cost", cost, RULE_ESTIMATE_MAX);
            errors.push(FieldError::forbidden("rule", text));
        }
        let message = self.message(&environment, &mut errors);
        let is_transition = expression.uses("oldSelf");
        if !is_transition && let Some(set) = rule["optionalOldSelf"].as_bool() {
            let text = "may not be set if oldSelf is not used in rule";
            errors.push(FieldError::invalid("optionalOldSelf", set, text));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let message_cost = message.as_ref().map_or(0, Expression::cost_max);
        let shows_value = !matches!(self.site.schema["type"].as_str(), Some("object" | "array"));
        let compiled = ValidationRule {
            own,
            expression,
            message,
            text: text(rule, "rule").trim().to_owned(),
            fixed_message: text(rule, "message").trim().to_owned(),
            kind: rule["reason"].as_str().and_then(kind).unwrap_or(ErrorKind::Invalid),
            field: path::read(text(rule, "fieldPath"), self.site.schema).unwrap_or_default(),
            schema_type: text(self.site.schema, "type").to_owned(),
            shows_value,
            optional_old,
            is_transition,
        };
        Ok(Compiled { rule: Arc::new(compiled), cost: cost.saturating_add(message_cost), is_transition })
    }

    /// The cost for all values that one object can have at this position.
    fn total(&self, cost: u64) -> u64 {
        cost.saturating_mul(self.site.occurrences_max.unwrap_or_else(|| cardinality_max(&self.declared)))
    }

    /// The rule in the form that errors show.
    fn shown(&self) -> Value {
        let rule = self.site.rule;
        json!({
            "Rule": rule["rule"], "Message": text(rule, "message"),
            "MessageExpression": text(rule, "messageExpression"), "Reason": rule["reason"],
            "FieldPath": text(rule, "fieldPath"), "OptionalOldSelf": rule["optionalOldSelf"],
        })
    }

    fn rule(&self, environment: &Environment) -> Result<Expression, Vec<FieldError>> {
        let refused = |detail: String| vec![FieldError::invalid("rule", self.shown(), detail)];
        let expression = environment
            .compile(text(self.site.rule, "rule"))
            .map_err(|why| refused(format!("compilation failed: {why}")))?;
        match expression.result_type() {
            Type::Bool => Ok(expression),
            _ => Err(refused("cel expression must evaluate to a bool".to_owned())),
        }
    }

    fn message(&self, environment: &Environment, errors: &mut Vec<FieldError>) -> Option<Expression> {
        let source = text(self.site.rule, "messageExpression");
        if source.is_empty() {
            return None;
        }
        let mut refuse = |detail: String| {
            errors.push(FieldError::invalid("messageExpression", self.shown(), detail));
        };
        let expression = match environment.compile(source) {
            Ok(expression) => expression,
            Err(why) => {
                refuse(format!("messageExpression compilation failed: {why}"));
                return None;
            }
        };
        if !matches!(expression.result_type(), Type::String(_)) {
            refuse("messageExpression must evaluate to a string".to_owned());
            return None;
        }
        if expression.cost_max() > RULE_ESTIMATE_MAX {
            let text =
                cost_message("estimated messageExpression cost", expression.cost_max(), RULE_ESTIMATE_MAX);
            errors.push(FieldError::forbidden("messageExpression", text));
        }
        Some(expression)
    }
}

/// A compiled rule.
#[derive(Debug)]
struct ValidationRule {
    own: Type,
    expression: Expression,
    message: Option<Expression>,
    text: String,
    fixed_message: String,
    kind: ErrorKind,
    field: String,
    schema_type: String,
    shows_value: bool,
    optional_old: bool,
    is_transition: bool,
}

/// The variables of one evaluation.
struct RuleVariables<'a> {
    rule: &'a ValidationRule,
    value: &'a Value,
    old: Option<&'a Value>,
}

impl Variables for RuleVariables<'_> {
    fn get<'a>(&'a self, name: &str) -> Option<Variable<'a>> {
        let own = &self.rule.own;
        match name {
            "self" => Some(Variable::Json(self.value, own)),
            "oldSelf" if self.rule.optional_old => Some(Variable::Optional(self.old.map(|old| (old, own)))),
            "oldSelf" => self.old.map(|old| Variable::Json(old, own)),
            _ => None,
        }
    }
}

impl CompiledRule for ValidationRule {
    fn check(&self, value: &Value, old: Option<&Value>, budget: &mut Budget) -> Result<(), RuleFailure> {
        if self.is_transition && old.is_none() && !self.optional_old {
            return Ok(());
        }
        let variables = RuleVariables { rule: self, value, old };
        let Evaluation { result, cost } = self.expression.evaluate_bool(&variables, CALL_COST_MAX);
        let shown = self.shown();
        match result {
            Err(EvaluationError::CostExceeded) => Err(self.failed(
                Consequence::Stopped,
                format!(
                    "'{}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}",
                    EvaluationError::CostExceeded
                ),
            )),
            _ if !budget.spend(cost) => Err(self.failed(Consequence::Stopped, OUT_OF_BUDGET.to_owned())),
            Ok(true) => Ok(()),
            Ok(false) => Err(self.broken(&variables, budget)),
            Err(EvaluationError::Failed(why)) if why == "no such overload" => Err(self.failed(
                Consequence::Refused,
                format!(
                    "'{why}': call arguments did not match a supported operator, function or macro signature for \
                     rule: {shown}"
                ),
            )),
            Err(EvaluationError::Failed(why)) => {
                Err(self.failed(Consequence::Refused, format!("{why} evaluating rule: {shown}")))
            }
        }
    }
}

impl ValidationRule {
    /// The name of the rule in messages: the fixed message or the expression.
    fn shown(&self) -> &str {
        if self.fixed_message.is_empty() { &self.text } else { &self.fixed_message }
    }

    /// The failure that the evaluation has no result.
    fn failed(&self, consequence: Consequence, message: String) -> RuleFailure {
        RuleFailure {
            kind: ErrorKind::Invalid,
            field: String::new(),
            value: Some(self.schema_type.as_str().into()),
            message,
            consequence,
        }
    }

    /// The failure that the value breaks the rule.
    fn broken(&self, variables: &RuleVariables<'_>, budget: &mut Budget) -> RuleFailure {
        let message = match self.evaluated_message(variables, budget) {
            Ok(Some(message)) => message,
            Ok(None) if self.fixed_message.is_empty() => format!("failed rule: {}", self.text),
            Ok(None) => self.fixed_message.clone(),
            Err(why) => return self.failed(Consequence::Stopped, why),
        };
        let has_value = self.shows_value && !matches!(self.kind, ErrorKind::Forbidden | ErrorKind::Required);
        let duplicate = self.kind == ErrorKind::Duplicate;
        RuleFailure {
            kind: self.kind,
            field: self.field.clone(),
            value: (has_value || duplicate).then(|| variables.value.clone()),
            message: if duplicate { String::new() } else { message },
            consequence: match self.is_transition {
                true => Consequence::Refused,
                false => Consequence::RefusedWhenChanged,
            },
        }
    }

    /// The result of the message expression, if there is one that can be shown.
    fn evaluated_message(
        &self,
        variables: &RuleVariables<'_>,
        budget: &mut Budget,
    ) -> Result<Option<String>, String> {
        let Some(expression) = &self.message else { return Ok(None) };
        let Evaluation { result, cost } = expression.evaluate_string(variables, CALL_COST_MAX);
        if !budget.spend(cost) {
            return Err("messageExpression evaluation failed due to running out of cost budget, no further \
                        validation rules will be run"
                .to_owned());
        }
        match result {
            Ok(text) => Ok(message_text(&text)),
            Err(EvaluationError::CostExceeded) => {
                Err("no further validation rules will be run due to call cost exceeds limit for messageExpression"
                    .to_owned())
            }
            Err(EvaluationError::Failed(_)) => Ok(None),
        }
    }
}

/// The result of a message expression, if it can be shown: one line, not empty and not too long.
#[must_use]
pub fn message_text(text: &str) -> Option<String> {
    let text = text.trim();
    let fits = !text.is_empty() && text.len() <= MESSAGE_BYTES_MAX && !text.contains('\n');
    fits.then(|| text.to_owned())
}
