//! A policy with compiled expressions.

use serde_json::Value;
use tombolo_apicore::field_error::FieldError;
use tombolo_cel::types::Type;
use tombolo_cel::{Environment, Expression};

use super::request_types;
use crate::objects::{items, text};

/// The two modes of policies. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Refuse requests.
    Validating,
    /// Change objects.
    Mutating,
}

/// Maximum number of variables, conditions and rules of one policy. A policy with more is refused.
const EXPRESSIONS_MAX: usize = 256;

/// The expressions of a policy.
#[derive(Debug)]
pub(super) struct Compiled {
    /// Named values that the other expressions can use. A variable can use only those before it.
    pub(super) variables: Vec<Named>,
    /// Match conditions: all must hold for the policy to apply.
    pub(super) conditions: Vec<Named>,
    /// The validations of a validating policy.
    pub(super) validations: Vec<Validation>,
    /// The mutations of a mutating policy.
    pub(super) mutations: Vec<Mutation>,
}

/// An expression with a name.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) expression: Expression,
}

/// A validation.
#[derive(Debug)]
pub(super) struct Validation {
    pub(super) text: String,
    pub(super) expression: Expression,
    pub(super) message: String,
    pub(super) message_expression: Option<Expression>,
    pub(super) reason: String,
}

/// A mutation.
#[derive(Debug)]
pub(super) enum Mutation {
    /// The expression returns an object with the fields to set. It is merged as in server-side apply.
    Apply(Expression),
    /// The expression returns the operations of a JSON patch.
    Patch(Expression),
}

impl Compiled {
    /// Compiles the expressions of a policy.
    ///
    /// # Errors
    /// All errors in the expressions.
    pub(super) fn read(policy: &Value, mode: Mode) -> Result<Self, Vec<FieldError>> {
        let count: usize = [
            "/spec/variables",
            "/spec/matchConditions",
            "/spec/validations",
            "/spec/mutations",
            "/spec/auditAnnotations",
        ]
        .iter()
        .map(|list| items(policy, list).len())
        .sum();
        if count > EXPRESSIONS_MAX {
            let text =
                format!("this API server evaluates at most {EXPRESSIONS_MAX} expressions of one policy");
            return Err(vec![FieldError::forbidden("spec", text)]);
        }
        let mut reader = PolicyCompiler { policy, mode, variables: Vec::new(), errors: Vec::new() };
        let compiled = reader.read();
        if reader.errors.is_empty() { Ok(compiled) } else { Err(reader.errors) }
    }
}

/// The required result type of an expression.
#[derive(Clone, Copy)]
enum RequiredType {
    Bool,
    Text,
    TextOrNull,
    Anything,
    Json,
}

struct PolicyCompiler<'a> {
    policy: &'a Value,
    mode: Mode,
    /// Types of the variables compiled so far.
    variables: Vec<(String, Type)>,
    errors: Vec<FieldError>,
}

impl PolicyCompiler<'_> {
    fn read(&mut self) -> Compiled {
        let conditions = self.named("/spec/matchConditions", "spec.matchConditions", RequiredType::Bool);
        let variables = self.named("/spec/variables", "spec.variables", RequiredType::Json);
        let (mut validations, mut mutations) = (Vec::new(), Vec::new());
        match self.mode {
            Mode::Validating => {
                let list = items(self.policy, "/spec/validations").iter().enumerate();
                validations = list.filter_map(|(index, one)| self.validation(index, one)).collect();
                self.annotations();
            }
            Mode::Mutating => {
                let list = items(self.policy, "/spec/mutations").iter().enumerate();
                mutations = list.filter_map(|(index, one)| self.mutation(index, one)).collect();
            }
        }
        Compiled { variables, conditions, validations, mutations }
    }

    fn environment(&self) -> Environment {
        let mut variables = request_types::variables();
        if self.policy.pointer("/spec/paramKind").is_some_and(Value::is_object) {
            variables.push(("params".to_owned(), Type::DYN));
        }
        variables.push(("variables".to_owned(), request_types::named_values(&self.variables)));
        let environment = Environment::new(variables);
        if self.mode == Mode::Mutating { environment.building_objects() } else { environment }
    }

    fn compile(&mut self, source: &str, at: &str, wanted: RequiredType) -> Option<Expression> {
        if source.trim().is_empty() {
            self.errors.push(FieldError::required(at, ""));
            return None;
        }
        let compiled = self.environment().compile(source);
        let expression = match compiled {
            Ok(expression) => expression,
            Err(why) => {
                self.errors.push(FieldError::invalid(at, source, format!("compilation failed: {why}")));
                return None;
            }
        };
        let ty = expression.result_type();
        let (fits, demand) = match wanted {
            RequiredType::Bool => (matches!(ty, Type::Bool | Type::Dyn(_)), format!("must evaluate to bool but got {ty}")),
            RequiredType::Text => {
                (matches!(ty, Type::String(_) | Type::Dyn(_)), format!("must evaluate to string but got {ty}"))
            }
            RequiredType::TextOrNull => (
                matches!(ty, Type::String(_) | Type::Dyn(_) | Type::Null),
                format!("must evaluate to one of [string null_type] but got {ty}"),
            ),
            RequiredType::Json => (
                !matches!(ty, Type::Opaque(_) | Type::Optional(_) | Type::Meta | Type::Bytes(_)),
                "must evaluate to a value that JSON can hold: this API server keeps values of variables as JSON".to_owned(),
            ),
            RequiredType::Anything => (true, String::new()),
        };
        if fits {
            return Some(expression);
        }
        self.errors.push(FieldError::invalid(at, source, demand));
        None
    }

    fn named(&mut self, pointer: &str, at: &str, wanted: RequiredType) -> Vec<Named> {
        let mut named = Vec::new();
        for (index, one) in items(self.policy, pointer).iter().enumerate() {
            let name = text(one, "/name").to_owned();
            let path = format!("{at}[{index}].expression");
            let Some(expression) = self.compile(text(one, "/expression"), &path, wanted) else { continue };
            if matches!(wanted, RequiredType::Json) {
                self.variables.push((name.clone(), expression.result_type().clone()));
            }
            named.push(Named { name, expression });
        }
        named
    }

    fn validation(&mut self, index: usize, one: &Value) -> Option<Validation> {
        let at = format!("spec.validations[{index}]");
        let source = text(one, "/expression");
        let expression = self.compile(source, &format!("{at}.expression"), RequiredType::Bool);
        let message_expression = match text(one, "/messageExpression") {
            "" => None,
            source => Some(self.compile(source, &format!("{at}.messageExpression"), RequiredType::Text)?),
        };
        Some(Validation {
            text: source.trim().to_owned(),
            expression: expression?,
            message: text(one, "/message").trim().to_owned(),
            message_expression,
            reason: text(one, "/reason").to_owned(),
        })
    }

    /// Checks the annotations for the audit log. They are not used: the log has no annotations.
    fn annotations(&mut self) {
        for (index, one) in items(self.policy, "/spec/auditAnnotations").iter().enumerate() {
            let at = format!("spec.auditAnnotations[{index}].valueExpression");
            self.compile(text(one, "/valueExpression"), &at, RequiredType::TextOrNull);
        }
    }

    fn mutation(&mut self, index: usize, one: &Value) -> Option<Mutation> {
        let at = format!("spec.mutations[{index}]");
        let mut part = |key: &str| {
            let source = text(one, &format!("/{key}/expression"));
            self.compile(source, &format!("{at}.{key}.expression"), RequiredType::Anything)
        };
        match text(one, "/patchType") {
            "ApplyConfiguration" => part("applyConfiguration").map(Mutation::Apply),
            "JSONPatch" => part("jsonPatch").map(Mutation::Patch),
            other => {
                let supported = ["ApplyConfiguration", "JSONPatch"];
                self.errors.push(FieldError::not_supported(format!("{at}.patchType"), other, &supported));
                None
            }
        }
    }
}
