//! Estimates the maximum cost of an expression from the sizes that its types allow. The estimate decides whether a
//! definition may contain a rule. Follows cel-go's `checker/cost.go` and kube-apiserver's additions
//! (`library/cost.go`).

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr};

use crate::check::{Checked, is_binding};
use crate::pairs::{MAPPED, MERGED};
use crate::types::Type;

/// The function that calls the authorizer; below, the cost of one call (kube-apiserver's fixed cost).
pub(crate) const AUTHORIZATION: &str = "check";
pub(crate) const AUTHORIZATION_COST: u64 = 350_000;

/// Cost of reading one byte of a text, in tenths.
const TRAVERSAL_TENTHS: u64 = 1;
/// Costs of creating a list, a map and an object.
pub(crate) const LIST_COST: u64 = 10;
pub(crate) const MAP_COST: u64 = 30;
pub(crate) const OBJECT_COST: u64 = 40;

/// The maximum cost; `u64::MAX` means unbounded.
pub(crate) fn estimate(tree: &IdedExpr, checked: &Checked) -> u64 {
    Estimate { checked }.cost(tree)
}

/// A tenth, rounded up.
pub(crate) fn tenth(size: u64) -> u64 {
    match size {
        u64::MAX => u64::MAX,
        size => size.saturating_mul(TRAVERSAL_TENTHS).div_ceil(10),
    }
}

/// The cost of matching a pattern of some length against a text.
pub(crate) fn pattern_cost(text: u64, pattern: u64) -> u64 {
    tenth(text.saturating_add(1)).saturating_mul(pattern.div_ceil(4))
}

struct Estimate<'a> {
    checked: &'a Checked,
}

impl Estimate<'_> {
    fn ty(&self, node: &IdedExpr) -> Type {
        self.checked.types.get(&node.id).cloned().unwrap_or(Type::DYN)
    }

    fn size(&self, node: &IdedExpr) -> u64 {
        self.ty(node).size()
    }

    fn cost(&self, node: &IdedExpr) -> u64 {
        match &node.expr {
            Expr::Unspecified | Expr::Literal(_) => 0,
            Expr::Ident(_) => 1,
            Expr::Select(select) => {
                let operand = self.cost(&select.operand);
                match self.ty(&select.operand) {
                    Type::Map(..) | Type::Object(_) if !select.test => operand.saturating_add(1),
                    _ => operand,
                }
            }
            Expr::Call(call) => self.call(node, call),
            Expr::List(list) => self.all(&list.elements).saturating_add(LIST_COST),
            Expr::Map(map) => {
                self.entries(map.entries.iter().map(|entry| &entry.expr)).saturating_add(MAP_COST)
            }
            Expr::Struct(object) => {
                self.entries(object.entries.iter().map(|entry| &entry.expr)).saturating_add(OBJECT_COST)
            }
            Expr::Comprehension(fold) => self.comprehension(fold),
        }
    }

    fn all(&self, nodes: &[IdedExpr]) -> u64 {
        nodes.iter().fold(0, |sum, node| sum.saturating_add(self.cost(node)))
    }

    fn entries<'e>(&self, entries: impl Iterator<Item = &'e EntryExpr>) -> u64 {
        entries.fold(0, |sum, entry| {
            sum.saturating_add(match entry {
                EntryExpr::MapEntry(entry) => self.cost(&entry.key).saturating_add(self.cost(&entry.value)),
                EntryExpr::StructField(field) => self.cost(&field.value),
            })
        })
    }

    fn comprehension(&self, fold: &ComprehensionExpr) -> u64 {
        let once = self.cost(&fold.iter_range).saturating_add(self.cost(&fold.accu_init));
        let once = once.saturating_add(self.cost(&fold.result));
        if is_binding(fold) {
            return once;
        }
        let step = self.cost(&fold.loop_cond).saturating_add(self.cost(&fold.loop_step));
        once.saturating_add(self.size(&fold.iter_range).saturating_mul(step))
    }

    fn call(&self, node: &IdedExpr, call: &CallExpr) -> u64 {
        let name = self.checked.qualified.get(&node.id).map_or(call.func_name.as_str(), String::as_str);
        let member = call.target.as_deref().filter(|_| !self.checked.qualified.contains_key(&node.id));
        let arguments: Vec<&IdedExpr> = member.into_iter().chain(&call.args).collect();
        let costs: Vec<u64> = arguments.iter().map(|argument| self.cost(argument)).collect();
        if name == "_?_:_"
            && let [condition, yes, no] = costs.as_slice()
        {
            return condition.saturating_add(*yes.max(no));
        }
        let sum = costs.iter().fold(0_u64, |sum, cost| sum.saturating_add(*cost));
        if let (MERGED | MAPPED, [argument]) = (name, arguments.as_slice()) {
            return self.without_wrapping(name, argument, sum);
        }
        sum.saturating_add(self.own(name, &arguments))
    }

    /// Subtracts the lists and maps that only pass on the entries of a map: cel-go does not create them.
    fn without_wrapping(&self, name: &str, gathered: &IdedExpr, cost: u64) -> u64 {
        let (Expr::Comprehension(fold), true) = (&gathered.expr, cost < u64::MAX) else { return cost };
        let turn = if name == MAPPED { LIST_COST + MAP_COST } else { LIST_COST };
        cost.saturating_sub(self.size(&fold.iter_range).saturating_mul(turn))
    }

    /// The cost of a function without its arguments.
    fn own(&self, name: &str, arguments: &[&IdedExpr]) -> u64 {
        let size = |index: usize| arguments.get(index).map_or(0, |node| self.size(node));
        match name {
            "_&&_" | "_||_" => 0,
            "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => tenth(size(0).min(size(1))).max(1),
            "_+_" => match self.ty(arguments[0]) {
                Type::String(_) | Type::Bytes(_) => tenth(size(0).saturating_add(size(1))),
                _ => 1,
            },
            "@in" => match self.ty(arguments[1]) {
                Type::Map(..) => 1,
                _ => size(1),
            },
            "contains" => tenth(size(0)).saturating_mul(tenth(size(1))),
            "matches" | "find" | "findAll" => pattern_cost(size(0), size(1)),
            "startsWith" | "endsWith" => tenth(size(1)),
            "replace" | "split" => tenth(size(0).saturating_mul(2)),
            "validate" => pattern_cost(size(1), 128),
            "sets.contains" | "sets.equivalent" | "sets.intersects" => size(0).saturating_mul(size(1)),
            "lists.range" => u64::from(u32::MAX),
            AUTHORIZATION => AUTHORIZATION_COST,
            "distinct" => size(0).saturating_mul(size(0)),
            "isSorted"
            | "sum"
            | "min"
            | "max"
            | "indexOf"
            | "lastIndexOf"
            | "sort"
            | "join"
            | "flatten"
            | "slice"
            | "reverse"
            | "@sortByAssociatedKeys" => self.traversal(arguments[0]),
            "url"
            | "isURL"
            | "lowerAscii"
            | "upperAscii"
            | "substring"
            | "trim"
            | "jsonpatch.escapeKey"
            | "ip"
            | "isIP"
            | "cidr"
            | "isCIDR"
            | "ip.isCanonical"
            | "quantity"
            | "isQuantity"
            | "semver"
            | "isSemver"
            | "format"
            | "bytes"
            | "strings.quote" => tenth(size(0)),
            _ => 1,
        }
    }

    /// Cost of reading a whole list or text.
    fn traversal(&self, node: &IdedExpr) -> u64 {
        match self.ty(node) {
            Type::List(element, size, _) => {
                let each = match element.as_ref() {
                    Type::String(size) | Type::Bytes(size) => tenth(*size).saturating_add(1),
                    _ => 1,
                };
                size.saturating_mul(each)
            }
            other => tenth(other.size()),
        }
    }
}
