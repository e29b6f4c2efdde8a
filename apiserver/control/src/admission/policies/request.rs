//! The view of a request that policy expressions have.

use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_cel::limits::{CALL_COST_MAX, MATCH_COST_MAX, POLICY_COST_MAX};
use tombolo_cel::types::Type;
use tombolo_cel::{
    Authorize, Authorizer, Evaluation, EvaluationError, Expression, OWN_REQUEST, ResourceCheck, Variable,
    Variables,
};

use super::compiled::Compiled;
use super::request_types::{REQUEST, named_values};
use crate::admission::carried_kind;
use crate::objects::{Objects, core};

static ANY: Type = Type::DYN;

/// The values of the variables for one request.
pub(super) struct RequestVariables {
    object: Value,
    old: Value,
    request: Value,
    namespace: Value,
    /// The authorization check for the request itself.
    needed: ResourceCheck,
    authorizer: Authorizer,
}

impl RequestVariables {
    pub(super) fn of(request: &AdmissionRequest<'_>, objects: &Objects, rights: &Arc<dyn Authorize>) -> Self {
        let authorizer = Authorizer::new(Arc::clone(rights), request.attributes.identity.clone());
        let namespace = match request.namespace {
            "" => None,
            name => objects.get(core("namespaces"), "", name).map(|found| found.value),
        };
        let whole = |object: Option<&Value>| object.map_or(Value::Null, |object| typed(object, request));
        Self {
            object: whole(request.object.as_deref()),
            old: whole(request.old),
            request: describe(request),
            namespace: namespace.unwrap_or(Value::Null),
            needed: authorizer.about(request.attributes),
            authorizer,
        }
    }

    pub(super) fn object(&self) -> &Value {
        &self.object
    }

    pub(super) fn replace_object(&mut self, object: Value) {
        self.object = object;
    }

    pub(super) fn into_object(self) -> Value {
        self.object
    }
}

/// An object with its `apiVersion` and `kind`, which stored and decoded objects may lack.
fn typed(object: &Value, request: &AdmissionRequest<'_>) -> Value {
    let mut object = object.clone();
    if let Some(members) = object.as_object_mut() {
        members.entry("apiVersion").or_insert_with(|| request.kind.api_version().into());
        members.entry("kind").or_insert_with(|| (&*request.kind.kind).into());
    }
    object
}

fn describe(request: &AdmissionRequest<'_>) -> Value {
    let asked = request.attributes;
    let kind = carried_kind(request.kind, &asked.subresource);
    let resource = json!({"group": asked.group, "version": asked.version, "resource": asked.resource});
    let operation = match request.operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
    };
    let user = &asked.identity;
    let mut described = json!({
        "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
        "name": request.name, "namespace": request.namespace, "operation": operation, "dryRun": request.dry_run,
        "userInfo": {"username": user.user, "groups": user.groups, "extra": user.extra},
        "options": {},
    });
    if !asked.subresource.is_empty() {
        described["subResource"] = asked.subresource.as_str().into();
        described["requestSubResource"] = asked.subresource.as_str().into();
    }
    if let Some(uid) = &user.uid {
        described["userInfo"]["uid"] = uid.as_str().into();
    }
    described
}

/// Evaluates the expressions of one policy for one request.
pub(super) struct Asking<'a> {
    facts: &'a RequestVariables,
    params: Option<&'a Value>,
    policy: &'a Compiled,
    /// The cost of the expressions so far.
    spent: Mutex<u64>,
}

/// The variables of one expression.
struct ExpressionVariables<'a> {
    asking: &'a Asking<'a>,
    /// Values of those policy variables that the expression uses.
    named: Value,
    named_type: Type,
}

impl Variables for ExpressionVariables<'_> {
    fn get<'a>(&'a self, name: &str) -> Option<Variable<'a>> {
        let facts = self.asking.facts;
        Some(match name {
            "object" => Variable::Json(&facts.object, &ANY),
            "oldObject" => Variable::Json(&facts.old, &ANY),
            "namespaceObject" => Variable::Json(&facts.namespace, &ANY),
            "request" => Variable::Json(&facts.request, &REQUEST),
            "authorizer" => Variable::Authorizer(facts.authorizer.clone()),
            OWN_REQUEST => Variable::Resource(Box::new(facts.needed.clone())),
            "params" => Variable::Json(self.asking.params?, &ANY),
            "variables" => Variable::Json(&self.named, &self.named_type),
            _ => return None,
        })
    }
}

impl<'a> Asking<'a> {
    pub(super) fn new(facts: &'a RequestVariables, params: Option<&'a Value>, policy: &'a Compiled) -> Self {
        Self { facts, params, policy, spent: Mutex::new(0) }
    }

    /// Adds the cost of an evaluation. Returns its result, or an error when all expressions together exceed the limit.
    fn paid<T>(&self, evaluation: Evaluation<T>, limit: u64) -> Result<T, EvaluationError> {
        let mut spent = self.spent.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *spent = spent.saturating_add(evaluation.cost);
        if *spent > limit { Err(EvaluationError::CostExceeded) } else { evaluation.result }
    }

    /// Evaluates the variables that an expression uses, directly or through other variables.
    fn seen(&self, expression: &Expression) -> ExpressionVariables<'_> {
        let mut wanted: Vec<&str> = expression.members("variables").collect();
        let mut index = 0;
        while let Some(name) = wanted.get(index).copied() {
            index += 1;
            let found = self.policy.variables.iter().find(|variable| variable.name == name);
            for more in found.into_iter().flat_map(|variable| variable.expression.members("variables")) {
                if !wanted.contains(&more) {
                    wanted.push(more);
                }
            }
        }
        let mut seen = ExpressionVariables {
            asking: self,
            named: Value::Object(Map::new()),
            named_type: named_values(&[]),
        };
        let mut types = Vec::new();
        // A variable uses only the variables before it.
        for variable in
            self.policy.variables.iter().filter(|variable| wanted.contains(&variable.name.as_str()))
        {
            let evaluation = variable.expression.evaluate_json(&seen, CALL_COST_MAX);
            // A variable that fails is missing: only expressions that use it fail.
            if let Ok(value) = self.paid(evaluation, POLICY_COST_MAX) {
                seen.named[variable.name.as_str()] = value;
                types.push((variable.name.clone(), variable.expression.result_type().clone()));
                seen.named_type = named_values(&types);
            }
        }
        seen
    }

    /// Whether the conditions of the policy hold.
    ///
    /// # Errors
    /// The first condition that could not be evaluated, unless another condition is false.
    pub(super) fn matches(&self) -> Result<bool, String> {
        let mut failure = None;
        for condition in &self.policy.conditions {
            let seen = self.seen(&condition.expression);
            let evaluation = condition.expression.evaluate_bool(&seen, CALL_COST_MAX);
            match self.paid(evaluation, MATCH_COST_MAX) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    failure.get_or_insert_with(|| {
                        format!("match condition {:?} failed: {error}", condition.name)
                    });
                }
            }
        }
        failure.map_or(Ok(true), Err)
    }

    pub(super) fn bool(&self, expression: &Expression) -> Result<bool, EvaluationError> {
        self.paid(expression.evaluate_bool(&self.seen(expression), CALL_COST_MAX), POLICY_COST_MAX)
    }

    pub(super) fn text(&self, expression: &Expression) -> Result<String, EvaluationError> {
        self.paid(expression.evaluate_string(&self.seen(expression), CALL_COST_MAX), POLICY_COST_MAX)
    }

    pub(super) fn json(&self, expression: &Expression) -> Result<Value, EvaluationError> {
        self.paid(expression.evaluate_json(&self.seen(expression), CALL_COST_MAX), POLICY_COST_MAX)
    }
}
