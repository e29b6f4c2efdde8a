//! Expressions that are parsed, checked and bounded, ready for evaluation.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cel::common::types::{CelBool, CelString};
use cel::common::value::Val;
use cel::{Context, ExecutionError, IdedExpr};
use serde_json::Value;

use crate::check::check;
use crate::estimate::estimate;
use crate::library::authorization::{Authorizer, ResourceCheck};
use crate::library::env;
use crate::limits::{CALL_COST_MAX, SHALLOW_DEPTH_MAX};
use crate::meter::{METER, Meter, weave};
use crate::parse::{depth, parse};
use crate::threads;
use crate::types::Type;
use crate::value;

/// The variables and features that expressions of one kind can use.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: Vec<(String, Type)>,
    builds_objects: bool,
}

impl Environment {
    /// An environment with these variables.
    #[must_use]
    pub fn new(variables: Vec<(String, Type)>) -> Self {
        Self { variables, builds_objects: false }
    }

    /// The same; expressions may also construct objects (`Object{..}` and `JSONPatch{..}`).
    #[must_use]
    pub fn building_objects(self) -> Self {
        Self { builds_objects: true, ..self }
    }

    /// Compiles an expression.
    ///
    /// # Errors
    /// The errors with their positions, in kube-apiserver's words.
    pub fn compile(&self, text: &str) -> Result<Expression, String> {
        let parsed = parse(env(), text)?;
        let checked = check(&parsed, &self.variables, self.builds_objects)?;
        let cost_max = estimate(&parsed.tree, &checked);
        let result = checked.result.clone().unwrap_or(Type::DYN);
        let (tree, cost_first) = weave(parsed.tree, &checked);
        let (variables, members) = (checked.variables, checked.members);
        let is_deep = depth(&tree) > SHALLOW_DEPTH_MAX;
        Ok(Expression(Arc::new(Compiled { tree, cost_first, cost_max, result, variables, members, is_deep })))
    }
}

/// An expression. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Expression(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    tree: IdedExpr,
    /// Cost that is paid before the first branch.
    cost_first: u64,
    cost_max: u64,
    result: Type,
    variables: BTreeSet<String>,
    members: BTreeSet<(String, String)>,
    is_deep: bool,
}

/// The outcome of an evaluation.
#[derive(Debug)]
pub struct Evaluation<T> {
    /// The value, or why evaluation failed.
    pub result: Result<T, EvaluationError>,
    /// The cost of the evaluation.
    pub cost: u64,
}

/// Why an evaluation failed. Closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// The cost limit was exceeded.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostExceeded,
    /// An operation failed, for example because of a missing key or an overflow.
    #[error("{0}")]
    Failed(String),
}

/// Values of variables, looked up when an expression uses them.
pub trait Variables: Send + Sync {
    /// The value with its type; `None` if the variable is not set. `authorizer.requestResource` is looked up as
    /// [`crate::OWN_REQUEST`].
    fn get<'a>(&'a self, name: &str) -> Option<Variable<'a>>;
}

/// The value of a variable.
#[derive(Debug, Clone)]
pub enum Variable<'a> {
    /// A JSON value with its type.
    Json(&'a Value, &'a Type),
    /// The authorizer.
    Authorizer(Authorizer),
    /// An authorization check for a resource.
    Resource(Box<ResourceCheck>),
    /// A JSON value that may be absent.
    Optional(Option<(&'a Value, &'a Type)>),
}

/// Passes the variables to the evaluator.
struct VariableBinder<'a>(&'a dyn Variables);

impl<'a> VariableBinder<'a> {
    fn bind(&self, names: &BTreeSet<String>, context: &mut Context<'_, 'a>) {
        for name in names {
            let bound: Box<dyn Val + 'a> = match self.0.get(name) {
                None => continue,
                Some(Variable::Json(json, ty)) => value::value(json, ty),
                Some(Variable::Authorizer(authorizer)) => Box::new(authorizer),
                Some(Variable::Resource(check)) => check,
                Some(Variable::Optional(found)) => {
                    let inner = found.map(|(json, ty)| value::value(json, ty));
                    Box::new(cel::common::types::CelOptional::from(inner))
                }
            };
            context.add_variable_as_val(name.as_str(), bound);
        }
    }
}

impl Expression {
    /// The maximum cost of an evaluation, from the sizes that the types allow.
    #[must_use]
    pub fn cost_max(&self) -> u64 {
        self.0.cost_max
    }

    /// The type of the expression's value.
    #[must_use]
    pub fn result_type(&self) -> &Type {
        &self.0.result
    }

    /// Whether the expression uses a variable.
    #[must_use]
    pub fn uses(&self, variable: &str) -> bool {
        self.0.variables.contains(variable)
    }

    /// The fields of a variable that the expression names.
    pub fn members<'a>(&'a self, variable: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.members.iter().filter(move |(of, _)| of == variable).map(|(_, field)| field.as_str())
    }

    /// Evaluates to a boolean.
    #[must_use]
    pub fn evaluate_bool(&self, variables: &dyn Variables, cost_max: u64) -> Evaluation<bool> {
        self.evaluate(variables, cost_max, |value| {
            let found = value.downcast_ref::<CelBool>().map(|value| *value.inner());
            found.ok_or_else(|| "no such overload".to_owned())
        })
    }

    /// Evaluates to a string.
    #[must_use]
    pub fn evaluate_string(&self, variables: &dyn Variables, cost_max: u64) -> Evaluation<String> {
        self.evaluate(variables, cost_max, |value| {
            let found = value.downcast_ref::<CelString<'_>>().map(|text| text.inner().to_owned());
            found.ok_or_else(|| "no such overload".to_owned())
        })
    }

    /// Evaluates to a value of any type, as JSON.
    #[must_use]
    pub fn evaluate_json(&self, variables: &dyn Variables, cost_max: u64) -> Evaluation<Value> {
        self.evaluate(variables, cost_max, value::json)
    }

    fn evaluate<T: Send>(
        &self,
        variables: &dyn Variables,
        cost_max: u64,
        read: impl Fn(&dyn Val) -> Result<T, String> + Sync + Send,
    ) -> Evaluation<T> {
        let meter = Meter::new(cost_max.min(CALL_COST_MAX));
        let run = || {
            meter.spend(self.0.cost_first).map_err(|error| describe(&error))?;
            let mut context = Context::with_env(Arc::clone(env()));
            VariableBinder(variables).bind(&self.0.variables, &mut context);
            context.add_variable_as_val(METER, meter.clone_as_boxed());
            let value = cel::Value::resolve_val(&self.0.tree, &context).map_err(|error| describe(&error))?;
            read(value.as_ref())
        };
        // The evaluator is a third-party crate: a panic in it must fail only this evaluation.
        let outcome = match self.0.is_deep {
            false => catch_unwind(AssertUnwindSafe(run)).map_err(drop),
            // The recursion of the evaluation is as deep as the tree.
            true => threads::evaluate(run),
        };
        let result = match outcome {
            _ if meter.is_exhausted() => Err(EvaluationError::CostExceeded),
            Ok(result) => result.map_err(EvaluationError::Failed),
            Err(()) => Err(EvaluationError::Failed(INTERNAL.to_owned())),
        };
        Evaluation { result, cost: meter.spent() }
    }
}

/// The error of an evaluation that fails although the expression is valid.
pub(crate) const INTERNAL: &str = "internal error of the evaluator";

/// An error in cel-go's words, as far as the evaluator provides the details.
fn describe(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload(_)
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnsupportedIndex(..) => "no such overload".to_owned(),
        ExecutionError::IndexOutOfBounds(index) => match index {
            cel::Value::Int(at) => format!("index out of bounds: {at}"),
            _ => "index out of bounds".to_owned(),
        },
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::FunctionError { message, .. } => message.clone(),
        ExecutionError::UndeclaredReference(name) => format!("no such attribute(s): {name}"),
        other => other.to_string(),
    }
}
