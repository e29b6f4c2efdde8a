//! Type checker: finds the type of every node of an expression, or the errors in it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cel::IdedExpr;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, ListExpr, LiteralValue, MapExpr, SelectExpr, StructExpr,
};

use crate::pairs::{MAPPED, MERGED};
use crate::parse::{Parsed, position, render};
use crate::signatures::{Bindings, Signature, Signatures};
use crate::types::{ListKind, Type};

/// Types that expressions can name.
const TYPE_NAMES: [&str; 16] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "type",
    "null_type",
    "net.IP",
    "net.CIDR",
    "kubernetes.Quantity",
    "kubernetes.URL",
    "google.protobuf.Timestamp",
    "google.protobuf.Duration",
];

/// Name of the type of the variable `authorizer`.
pub const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";

/// Name to which `authorizer.requestResource` is bound. No expression can contain it.
pub const OWN_REQUEST: &str = "@requestResource";

/// Maximum number of errors reported for one expression.
const ERRORS_MAX: usize = 20;

/// The results of checking an expression.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// Types by node id.
    pub(crate) types: HashMap<u64, Type>,
    /// Calls by node id whose target is part of the function's qualified name, with that name.
    pub(crate) qualified: HashMap<u64, String>,
    /// Variables that the expression uses.
    pub(crate) variables: BTreeSet<String>,
    /// Fields of variables that the expression names.
    pub(crate) members: BTreeSet<(String, String)>,
    /// Type of the whole expression.
    pub(crate) result: Option<Type>,
}

/// Checks an expression that can use the given variables.
///
/// # Errors
/// All errors, with their positions, in cel-go's words.
pub(crate) fn check(
    parsed: &Parsed,
    variables: &[(String, Type)],
    builds_objects: bool,
) -> Result<Checked, String> {
    let mut checker = Checker {
        parsed,
        signatures: Signatures::get(),
        scope: variables.to_vec(),
        globals: variables.len(),
        builds_objects,
        done: Checked::default(),
        errors: Vec::new(),
    };
    let result = checker.visit(&parsed.tree);
    checker.done.result = Some(result);
    match checker.errors.is_empty() {
        true => Ok(checker.done),
        false => Err(checker.errors.join("\n")),
    }
}

struct Checker<'a> {
    parsed: &'a Parsed,
    signatures: &'static Signatures,
    /// Variables in scope, innermost last.
    scope: Vec<(String, Type)>,
    /// How many of them are global variables of the expression.
    globals: usize,
    builds_objects: bool,
    done: Checked,
    errors: Vec<String>,
}

impl Checker<'_> {
    fn report(&mut self, node: u64, message: &str) -> Type {
        if self.errors.len() < ERRORS_MAX {
            let text = &self.parsed.source.source;
            let offset = self.parsed.source.offset_for(node).map_or(0, |(start, _)| start as usize);
            let (line, column) = position(text, offset);
            self.errors.push(render(text, line, column, message));
        }
        Type::DYN
    }

    fn visit(&mut self, node: &IdedExpr) -> Type {
        let ty = match &node.expr {
            Expr::Unspecified => self.report(node.id, "unspecified expression"),
            Expr::Literal(literal) => literal_type(literal),
            Expr::Ident(name) => self.ident(node.id, name),
            Expr::Select(select) => self.select(node, select),
            Expr::Call(call) => self.call(node.id, call),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(map),
            Expr::Struct(object) => self.structure(node.id, object),
            Expr::Comprehension(fold) => self.comprehension(fold),
        };
        self.done.types.insert(node.id, ty.clone());
        ty
    }

    fn variable(&mut self, name: &str) -> Option<Type> {
        let at = self.scope.iter().rposition(|(known, _)| known == name)?;
        if at < self.globals {
            self.done.variables.insert(name.to_owned());
        }
        Some(self.scope[at].1.clone())
    }

    fn ident(&mut self, node: u64, name: &str) -> Type {
        match self.variable(name) {
            Some(ty) => ty,
            None if TYPE_NAMES.contains(&name) => Type::Meta,
            None => self.report(node, &format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    fn select(&mut self, node: &IdedExpr, select: &SelectExpr) -> Type {
        if let Some(name) = qualified_name(node)
            && TYPE_NAMES.contains(&name.as_str())
            && self.scope.iter().all(|(known, _)| !name.starts_with(&format!("{known}.")))
        {
            return Type::Meta;
        }
        let operand = self.visit(&select.operand);
        if is_own_request(node) && matches!(operand, Type::Opaque(AUTHORIZER)) {
            self.done.variables.insert(OWN_REQUEST.to_owned());
            return Type::Opaque(RESOURCE_CHECK);
        }
        if let Expr::Ident(variable) = &select.operand.expr {
            self.done.members.insert((variable.clone(), select.field.clone()));
        }
        let (inner, optional) = match &operand {
            Type::Optional(of) => (of.as_ref().clone(), true),
            other => (other.clone(), false),
        };
        let found = self.field(node.id, &inner, &select.field);
        match (select.test, optional) {
            (true, _) => Type::Bool,
            (false, true) => Type::Optional(Arc::new(found)),
            (false, false) => found,
        }
    }

    fn field(&mut self, node: u64, of: &Type, name: &str) -> Type {
        match of {
            Type::Dyn(_) | Type::Unknown => Type::DYN,
            Type::Map(_, value, _) => value.as_ref().clone(),
            Type::Object(object) => match object.fields.get(name) {
                Some(field) => field.ty.clone(),
                None => self.report(node, &format!("undefined field '{name}'")),
            },
            other => self.report(node, &format!("type '{other}' does not support field selection")),
        }
    }

    fn call(&mut self, node: u64, call: &CallExpr) -> Type {
        if call.func_name == "_?._"
            && let [operand, field] = call.args.as_slice()
        {
            return self.optional_select(node, operand, field);
        }
        let mut arguments: Vec<Type> = Vec::new();
        let (name, signatures) = match &call.target {
            None => (call.func_name.clone(), self.signatures.global(&call.func_name)),
            Some(target) => match self.qualified_function(target, &call.func_name) {
                Some(name) => {
                    self.done.qualified.insert(node, name.clone());
                    let signatures = self.signatures.global(&name);
                    (name, signatures)
                }
                None => {
                    arguments.push(self.visit(target));
                    (call.func_name.clone(), self.signatures.member(&call.func_name))
                }
            },
        };
        for argument in &call.args {
            arguments.push(self.visit(argument));
        }
        let Some(signatures) = signatures else {
            return self.report(node, &format!("undeclared reference to '{name}' (in container '')"));
        };
        let member = call.target.is_some() && !self.done.qualified.contains_key(&node);
        match resolve(signatures, &arguments) {
            Some(result) => sized(&name, result, &arguments),
            None => {
                let listed =
                    |types: &[Type]| types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
                let applied = match member {
                    true => format!("{}.({})", arguments[0], listed(&arguments[1..])),
                    false => format!("({})", listed(&arguments)),
                };
                self.report(node, &format!("found no matching overload for '{name}' applied to '{applied}'"))
            }
        }
    }

    /// The qualified name of a function such as `ip.isCanonical`, unless its first part is a variable.
    fn qualified_function(&self, target: &IdedExpr, name: &str) -> Option<String> {
        let prefix = qualified_name(target)?;
        let root = prefix.split('.').next()?;
        if self.scope.iter().any(|(known, _)| known == root) {
            return None;
        }
        let name = format!("{prefix}.{name}");
        self.signatures.global(&name).map(|_| name)
    }

    fn optional_select(&mut self, node: u64, operand: &IdedExpr, field: &IdedExpr) -> Type {
        let of = self.visit(operand);
        self.visit(field);
        let name = match &field.expr {
            Expr::Literal(LiteralValue::String(name)) => name.inner().to_owned(),
            _ => return self.report(node, "unsupported optional field selection"),
        };
        let of = match of {
            Type::Optional(of) => of.as_ref().clone(),
            other => other,
        };
        Type::Optional(Arc::new(self.field(node, &of, &name)))
    }

    fn list(&mut self, list: &ListExpr) -> Type {
        let mut element = Type::Unknown;
        for (index, item) in list.elements.iter().enumerate() {
            let optional = list.optional_indices.contains(&index);
            let ty = self.visit(item);
            element = self.aggregate(item.id, &element, ty, optional);
        }
        Type::List(Arc::new(element), list.elements.len() as u64, ListKind::Atomic)
    }

    fn map(&mut self, map: &MapExpr) -> Type {
        let (mut key, mut value) = (Type::Unknown, Type::Unknown);
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else { continue };
            let given = self.visit(&entry.key);
            key = self.aggregate(entry.key.id, &key, given, false);
            let given = self.visit(&entry.value);
            value = self.aggregate(entry.value.id, &value, given, entry.optional);
        }
        Type::Map(Arc::new(key), Arc::new(value), map.entries.len() as u64)
    }

    /// Kubernetes requires that list and map literals contain one type.
    fn aggregate(&mut self, node: u64, so_far: &Type, given: Type, optional: bool) -> Type {
        let given = match (optional, given) {
            (true, Type::Optional(of)) => of.as_ref().clone(),
            (_, given) => given,
        };
        match so_far.join(&given) {
            Some(joined) => joined,
            None => self.report(node, &format!("expected type '{so_far}' but found '{given}'")),
        }
    }

    fn structure(&mut self, node: u64, object: &StructExpr) -> Type {
        let name = object.type_name.as_str();
        let known = name == "Object" || name.starts_with("Object.") || name == "JSONPatch";
        if !(known && self.builds_objects) {
            return self.report(node, &format!("undeclared reference to '{name}' (in container '')"));
        }
        for entry in &object.entries {
            if let EntryExpr::StructField(field) = &entry.expr {
                self.visit(&field.value);
            }
        }
        // The fields are those of a kind that is known only when the policy is evaluated.
        Type::DYN
    }

    fn comprehension(&mut self, fold: &ComprehensionExpr) -> Type {
        let range = self.visit(&fold.iter_range);
        let accumulated = self.visit(&fold.accu_init);
        let two = fold.iter_var2.is_some();
        let (item, second) = match &range {
            Type::List(element, ..) if two => (Type::Int, element.as_ref().clone()),
            Type::List(element, ..) => (element.as_ref().clone(), Type::DYN),
            Type::Map(key, value, _) => (key.as_ref().clone(), value.as_ref().clone()),
            Type::Dyn(_) | Type::Unknown => (Type::DYN, Type::DYN),
            other => {
                let text = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                (self.report(fold.iter_range.id, &text), Type::DYN)
            }
        };
        let depth = self.scope.len();
        self.scope.push((fold.accu_var.clone(), accumulated));
        self.scope.push((fold.iter_var.clone(), item));
        if let Some(name) = &fold.iter_var2 {
            self.scope.push((name.clone(), second));
        }
        self.visit(&fold.loop_cond);
        let step = self.visit(&fold.loop_step);
        self.scope.truncate(depth);
        // A value bound to a name without a loop keeps its type; an accumulated value gets the type of the step.
        let gathered =
            if is_binding(fold) { self.type_of(&fold.accu_init) } else { step.sized(range.size()) };
        self.scope.push((fold.accu_var.clone(), gathered));
        let result = self.visit(&fold.result);
        self.scope.truncate(depth);
        result
    }

    fn type_of(&self, node: &IdedExpr) -> Type {
        self.done.types.get(&node.id).cloned().unwrap_or(Type::DYN)
    }
}

/// Whether a comprehension only binds a value to a name: it has no loop.
pub(crate) fn is_binding(fold: &ComprehensionExpr) -> bool {
    matches!(&fold.iter_range.expr, Expr::List(list) if list.elements.is_empty())
        && fold.accu_var != "@result"
}

fn literal_type(literal: &LiteralValue) -> Type {
    match literal {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Bytes(bytes) => Type::Bytes(bytes.inner().len() as u64),
        LiteralValue::Double(_) => Type::Double,
        LiteralValue::Int(_) => Type::Int,
        LiteralValue::Null => Type::Null,
        LiteralValue::String(text) => Type::String(text.inner().len() as u64),
        LiteralValue::UInt(_) => Type::Uint,
    }
}

/// Whether a node is `authorizer.requestResource`.
pub(crate) fn is_own_request(node: &IdedExpr) -> bool {
    qualified_name(node).is_some_and(|name| name == "authorizer.requestResource")
}

/// The name `a.b.c`, if the node is one.
pub(crate) fn qualified_name(node: &IdedExpr) -> Option<String> {
    match &node.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => {
            Some(format!("{}.{}", qualified_name(&select.operand)?, select.field))
        }
        _ => None,
    }
}

/// The result type of the first signature that accepts the arguments; dynamic if several do and their results differ.
fn resolve(signatures: &[Signature], arguments: &[Type]) -> Option<Type> {
    let mut found: Option<Type> = None;
    for signature in signatures.iter().filter(|signature| signature.parameters.len() == arguments.len()) {
        let mut bindings = Bindings::default();
        let pairs = signature.parameters.iter().zip(arguments);
        if !pairs.clone().all(|(parameter, given)| bindings.accept(parameter, given)) {
            continue;
        }
        let result = bindings.fill(&signature.result);
        found = Some(match found {
            None => result,
            Some(before) if before.is_like(&result) => before.join(&result).unwrap_or(Type::DYN),
            Some(_) => Type::DYN,
        });
    }
    found
}

/// The result type with the size bound that follows from the sizes of the arguments.
fn sized(name: &str, result: Type, arguments: &[Type]) -> Type {
    let size = |index: usize| arguments.get(index).map_or(crate::types::UNBOUNDED, Type::size);
    match name {
        "_+_" => result.sized(size(0).saturating_add(size(1))),
        "_?_:_" => result.sized(size(1).max(size(2))),
        "lowerAscii" | "upperAscii" | "substring" | "trim" | "find" | "slice" | "reverse" | "distinct"
        | "sort" | "string" | "dyn" | "charAt" => match size(0) {
            // A scalar as text; the longest one is a double.
            1 => result.sized(32),
            size => result.sized(size),
        },
        "split" | "findAll" => match result {
            Type::List(..) => Type::List(Arc::new(Type::String(size(0))), size(0), ListKind::Atomic),
            other => other,
        },
        "replace" => {
            let (text, with) = (size(0), size(2));
            result.sized(text.saturating_add(text.saturating_add(1).saturating_mul(with)))
        }
        "join" => match &arguments[0] {
            Type::List(element, count, _) => {
                let separator = if arguments.len() > 1 { size(1) } else { 0 };
                result.sized(count.saturating_mul(element.size().saturating_add(separator)))
            }
            _ => result,
        },
        "bytes" => result.sized(size(0).saturating_mul(4)),
        "strings.quote" => result.sized(size(0).saturating_mul(2).saturating_add(2)),
        MERGED | MAPPED | "jsonpatch.escapeKey" => result.sized(size(0)),
        _ => result,
    }
}
