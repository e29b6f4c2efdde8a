//! Meters the cost of an evaluation, and ends it when the cost limit is reached.
//!
//! The evaluator has no limits. So the tree is changed before it runs: every loop iteration, and every branch that is
//! not always taken, first pays the meter, and every operation that reads a whole value pays for its size. The costs
//! are those of kube-apiserver (cel-go's cost tracker), counted per branch instead of per node.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cel::IdedExpr;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, ListExpr, LiteralValue, MapEntryExpr,
    MapExpr,
};
use cel::common::types::{CelBool, CelInt, CelString, Type as CelType};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use crate::check::{self, AUTHORIZER, Checked, OWN_REQUEST, is_binding};
use crate::estimate::{AUTHORIZATION, AUTHORIZATION_COST, LIST_COST, MAP_COST, OBJECT_COST, tenth};
use crate::pairs::single;
use crate::types::Type;
use crate::value::elements;

/// The variable that holds the meter. No expression can contain it.
pub(crate) const METER: &str = "@meter";
/// Cost of a loop iteration in addition to its body.
const TURN_COST: u64 = 4;

/// Counts the cost of an evaluation.
#[derive(Debug, Clone)]
pub(crate) struct Meter(Arc<Count>);

#[derive(Debug)]
struct Count {
    spent: AtomicU64,
    limit: u64,
}

impl Meter {
    pub(crate) fn new(limit: u64) -> Self {
        Self(Arc::new(Count { spent: AtomicU64::new(0), limit }))
    }

    /// Adds a cost.
    ///
    /// # Errors
    /// The limit is exceeded.
    pub(crate) fn spend(&self, cost: u64) -> Result<(), ExecutionError> {
        let add = |spent: u64| Some(spent.saturating_add(cost));
        let before = self
            .0
            .spent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .unwrap_or_else(|spent| spent);
        match before.saturating_add(cost) > self.0.limit {
            true => Err(ExecutionError::function_error("cost", "actual cost limit exceeded")),
            false => Ok(()),
        }
    }

    pub(crate) fn spent(&self) -> u64 {
        self.0.spent.load(Ordering::Relaxed)
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.spent() > self.0.limit
    }

    /// Pays for reading a whole value.
    pub(crate) fn spend_size(&self, value: &dyn Val) -> Result<(), ExecutionError> {
        self.spend(traversal(value)?)
    }
}

static METER_TYPE: CelType = CelType::new_unspecified_type("@meter");

impl Val for Meter {
    fn get_type(&self) -> &CelType {
        &METER_TYPE
    }

    fn cel_type() -> &'static CelType {
        &METER_TYPE
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Meter {}

/// The meter, which is the first argument of a metered function.
pub(crate) fn meter<'a>(arguments: &'a [CowVal<'_, '_>]) -> Result<&'a Meter, ExecutionError> {
    let found = arguments.first().and_then(|first| first.as_any()?.downcast_ref::<Meter>());
    found.ok_or_else(|| ExecutionError::function_error("cost", "no meter"))
}

/// The cost of reading a whole value: a text costs a tenth per byte, a list or map one per element plus the cost of its
/// texts.
fn traversal(value: &dyn Val) -> Result<u64, ExecutionError> {
    if let Some(own) = text_size(value) {
        return Ok(tenth(own));
    }
    let Some(iterable) = value.as_iterable() else { return Ok(1) };
    let (mut items, mut cost) = (iterable.iter(), 0_u64);
    while let Some(item) = items.next() {
        cost = cost.saturating_add(1).saturating_add(text_size(item).map_or(0, tenth));
    }
    Ok(cost)
}

/// Length of a text in bytes.
pub(crate) fn text_size(value: &dyn Val) -> Option<u64> {
    if let Some(text) = value.downcast_ref::<CelString<'_>>() {
        return Some(text.inner().len() as u64);
    }
    value.downcast_ref::<cel::common::types::CelBytes<'_>>().map(|bytes| bytes.inner().len() as u64)
}

/// Pays for what a comparison of two values reads.
pub(crate) fn comparison(a: &dyn Val, b: &dyn Val, meter: &Meter) -> Result<(), ExecutionError> {
    match (text_size(a), text_size(b)) {
        (Some(x), Some(y)) => meter.spend(tenth(x.min(y))),
        (None, None) if a.as_iterable().is_some() && b.as_iterable().is_some() => {
            if let (Some(x), Some(y)) = (a.as_indexer(), b.as_indexer())
                && a.get_type().kind() == cel::common::types::Kind::Map
            {
                let mut keys = elements(a)?;
                while let Some(key) = keys.next() {
                    meter.spend(1)?;
                    if let (Ok(left), Ok(right)) = (x.get(key), y.get(key)) {
                        comparison(left.as_ref(), right.as_ref(), meter)?;
                    }
                }
                return Ok(());
            }
            let (mut left, mut right) = (elements(a)?, elements(b)?);
            while let (Some(x), Some(y)) = (left.next(), right.next()) {
                meter.spend(1)?;
                comparison(x, y, meter)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Registers the functions that changed trees call.
pub(crate) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    use cel::common::types::{DYN_TYPE, INT_TYPE};
    env.add_overload("@tick", "@tick", vec![METER_TYPE.to_owned(), INT_TYPE], tick)?;
    env.add_overload("@size", "@size", vec![METER_TYPE.to_owned(), DYN_TYPE], size)
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "functions take their arguments as the evaluator gives them"
)]
fn tick<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let cost =
        arguments.get(1).and_then(|cost| cost.downcast_ref::<CelInt>()).map_or(0, |cost| *cost.inner());
    meter(&arguments)?.spend(cost.unsigned_abs())?;
    Ok(CowVal::owned(CelBool::from(true)))
}

fn size<'b, 'v>(mut arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let value = arguments.pop().ok_or_else(|| ExecutionError::invalid_argument_count(2, 0))?;
    meter(&arguments)?.spend_size(value.as_ref())?;
    Ok(value)
}

/// Functions that pay for what they read themselves; their first argument is the meter.
const METERED: [&str; 18] = [
    "_==_",
    "_!=_",
    "@in",
    "_+_",
    "matches",
    "find",
    "findAll",
    "replace",
    "split",
    "join",
    "indexOf",
    "lastIndexOf",
    "distinct",
    "lists.range",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "flatten",
];

/// Functions that do not read large values, although their arguments may be large.
const FREE: [&str; 12] = [
    "_&&_",
    "_||_",
    "_?_:_",
    "_[_]",
    "_[?_]",
    "_?._",
    "dyn",
    "type",
    "optional.of",
    "optional.none",
    "hasValue",
    "value",
];

/// Adds metering to a tree. Returns it with the cost before its first branch.
pub(crate) fn weave(tree: IdedExpr, checked: &Checked) -> (IdedExpr, u64) {
    Metering { checked }.weave(tree)
}

struct Metering<'a> {
    checked: &'a Checked,
}

fn made(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

fn call(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    made(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

fn metered(name: &str, mut args: Vec<IdedExpr>) -> IdedExpr {
    args.insert(0, made(Expr::Ident(METER.to_owned())));
    call(name, args)
}

/// Makes a node pay before it is evaluated.
fn guarded(node: IdedExpr, cost: u64) -> IdedExpr {
    let cost = i64::try_from(cost).unwrap_or(i64::MAX);
    let tick = metered("@tick", vec![made(Expr::Literal(LiteralValue::Int(cost.into())))]);
    call("_?_:_", vec![tick, node, made(Expr::Literal(LiteralValue::Null))])
}

impl Metering<'_> {
    fn weave(&self, node: IdedExpr) -> (IdedExpr, u64) {
        let id = node.id;
        if check::is_own_request(&node) && self.is_authorizer(&node) {
            return (IdedExpr { id, expr: Expr::Ident(OWN_REQUEST.to_owned()) }, 1);
        }
        let (expr, cost) = match node.expr {
            Expr::Call(call) => return self.call(id, call),
            Expr::Comprehension(fold) => self.comprehension(id, *fold),
            Expr::Select(mut select) => {
                let (operand, cost) = self.weave(*select.operand);
                select.operand = Box::new(operand);
                let own = u64::from(!select.test);
                (Expr::Select(select), cost + own)
            }
            Expr::List(list) => {
                let (elements, cost) = self.all(list.elements);
                (Expr::List(ListExpr { elements, ..list }), cost + LIST_COST)
            }
            Expr::Map(map) => {
                let (entries, cost) = self.entries(map.entries);
                (Expr::Map(MapExpr { entries }), cost + MAP_COST)
            }
            Expr::Struct(object) => {
                let (entries, cost) = self.entries(object.entries);
                (Expr::Map(MapExpr { entries }), cost + OBJECT_COST)
            }
            ident @ Expr::Ident(_) => (ident, 1),
            other => (other, 0),
        };
        (IdedExpr { id, expr }, cost)
    }

    fn all(&self, nodes: Vec<IdedExpr>) -> (Vec<IdedExpr>, u64) {
        let mut sum = 0;
        let woven = nodes.into_iter().map(|node| {
            let (node, cost) = self.weave(node);
            sum += cost;
            node
        });
        (woven.collect(), sum)
    }

    /// Entries of a map. Fields of an object also become map entries, with the field names as keys.
    fn entries(&self, entries: Vec<IdedEntryExpr>) -> (Vec<IdedEntryExpr>, u64) {
        let mut sum = 0;
        let woven = entries.into_iter().map(|IdedEntryExpr { id, expr }| {
            let (key, value, optional) = match expr {
                EntryExpr::MapEntry(entry) => (entry.key, entry.value, entry.optional),
                EntryExpr::StructField(field) => {
                    let key = made(Expr::Literal(LiteralValue::String(field.field.into())));
                    (key, field.value, field.optional)
                }
            };
            let ((key, key_cost), (value, value_cost)) = (self.weave(key), self.weave(value));
            sum += key_cost + value_cost;
            IdedEntryExpr { id, expr: EntryExpr::MapEntry(MapEntryExpr { key, value, optional }) }
        });
        (woven.collect(), sum)
    }

    fn guard(&self, node: IdedExpr, more: u64) -> IdedExpr {
        let (node, cost) = self.weave(node);
        guarded(node, cost + more)
    }

    fn call(&self, id: u64, mut call: CallExpr) -> (IdedExpr, u64) {
        let name = self.checked.qualified.get(&id).cloned().unwrap_or_else(|| call.func_name.clone());
        if matches!(name.as_str(), "_&&_" | "_||_" | "_?_:_") && !call.args.is_empty() {
            let branches = call.args.split_off(1);
            let (first, cost) = self.all(call.args);
            call.args = first;
            call.args.extend(branches.into_iter().map(|branch| self.branch(branch)));
            return (IdedExpr { id, expr: Expr::Call(call) }, cost);
        }
        let qualified = self.checked.qualified.contains_key(&id);
        let target = call.target.take();
        let is_member = target.is_some() && !qualified;
        let mut arguments: Vec<IdedExpr> =
            target.map(|target| *target).filter(|_| is_member).into_iter().collect();
        arguments.append(&mut call.args);
        let types: Vec<bool> = arguments.iter().map(|argument| self.is_large(argument)).collect();
        let (mut arguments, cost) = self.all(arguments);
        let needs_meter = METERED.contains(&name.as_str())
            && (!matches!(name.as_str(), "_+_" | "_==_" | "_!=_") || types.contains(&true));
        if needs_meter {
            return (IdedExpr { id, ..metered(&format!("@{name}"), arguments) }, cost + 1);
        }
        if !FREE.contains(&name.as_str()) {
            for (argument, _) in arguments.iter_mut().zip(&types).filter(|(_, large)| **large) {
                let bare = std::mem::take(argument);
                *argument = metered("@size", vec![bare]);
            }
        }
        let target = is_member.then(|| Box::new(arguments.remove(0)));
        let own = if name == AUTHORIZATION { AUTHORIZATION_COST } else { 1 };
        let call = CallExpr { func_name: name, target, args: arguments };
        (IdedExpr { id, expr: Expr::Call(call) }, cost + own)
    }

    /// A branch pays when it is taken, unless it is a literal or an identifier.
    fn branch(&self, node: IdedExpr) -> IdedExpr {
        match &node.expr {
            Expr::Literal(_) | Expr::Ident(_) => node,
            _ => self.guard(node, 0),
        }
    }

    /// Whether the operand of a field selection is the authorizer.
    fn is_authorizer(&self, node: &IdedExpr) -> bool {
        let Expr::Select(select) = &node.expr else { return false };
        matches!(self.checked.types.get(&select.operand.id), Some(Type::Opaque(AUTHORIZER)))
    }

    fn is_large(&self, node: &IdedExpr) -> bool {
        self.checked.types.get(&node.id).is_none_or(Type::is_large)
    }

    fn comprehension(&self, id: u64, fold: ComprehensionExpr) -> (Expr, u64) {
        let binding = is_binding(&fold);
        let (iter_range, range_cost) = self.weave(fold.iter_range);
        let (accu_init, init_cost) = self.weave(fold.accu_init);
        let loop_step = if binding { fold.loop_step } else { self.step(fold.loop_step) };
        let (result, result_cost) = self.weave(fold.result);
        let fold = ComprehensionExpr { iter_range, accu_init, loop_step, result, ..fold };
        (Expr::Comprehension(Box::new(single(id, fold))), range_cost + init_cost + result_cost)
    }

    /// Meters the step of a loop. The evaluator recognizes the steps of the standard macros by their shape, which must
    /// stay: `result && x`, `result || x`, `result + [x]`, and the last of these behind a condition.
    fn step(&self, node: IdedExpr) -> IdedExpr {
        let id = node.id;
        let Expr::Call(mut call) = node.expr else { return self.guard(node, TURN_COST) };
        match (call.func_name.as_str(), call.args.len()) {
            ("_&&_" | "_||_", 2) => {
                let last = call.args.remove(1);
                call.args.push(self.guard(last, TURN_COST));
            }
            ("_+_", 2) => {
                let last = call.args.remove(1);
                call.args.push(self.appended(last));
            }
            ("_?_:_", 3) => {
                let condition = self.guard(std::mem::take(&mut call.args[0]), TURN_COST);
                call.args[0] = condition;
                let added = std::mem::take(&mut call.args[1]);
                call.args[1] = match added.expr {
                    Expr::Call(inner) if inner.func_name == "_+_" => {
                        self.step(IdedExpr { id: added.id, expr: Expr::Call(inner) })
                    }
                    expr => IdedExpr { id: added.id, expr },
                };
            }
            _ => return self.guard(IdedExpr { id, expr: Expr::Call(call) }, TURN_COST),
        }
        IdedExpr { id, expr: Expr::Call(call) }
    }

    fn appended(&self, node: IdedExpr) -> IdedExpr {
        match node.expr {
            Expr::List(list) => {
                let elements = list.elements.into_iter().map(|item| self.guard(item, TURN_COST + LIST_COST));
                let list = ListExpr { elements: elements.collect(), optional_indices: list.optional_indices };
                IdedExpr { id: node.id, expr: Expr::List(list) }
            }
            // The number that `exists_one` adds to its count.
            expr => IdedExpr { id: node.id, expr },
        }
    }
}
