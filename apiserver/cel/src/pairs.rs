//! Rewrites two-variable comprehensions to one-variable ones, the only form that the evaluator supports. The one
//! variable holds a pair, and each use of the original variables is replaced by that part of the pair.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue};

/// The function that returns the pairs of a list or map.
pub(crate) const PAIRS: &str = "@pairs";

/// The function that merges several maps into one.
pub(crate) const MERGED: &str = "cel.@merged";

/// The same for maps of one entry that a macro, not the author, created.
pub(crate) const MAPPED: &str = "cel.@mapped";

/// The same comprehension with one variable. `id` must differ from that of every enclosing and nested comprehension.
pub(crate) fn single(id: u64, mut fold: ComprehensionExpr) -> ComprehensionExpr {
    let Some(second) = fold.iter_var2.take() else { return fold };
    let pair = format!("@pair{id}");
    let first = std::mem::replace(&mut fold.iter_var, pair.clone());
    for (name, part) in [(first, 0), (second, 1)] {
        replace(&mut fold.loop_step, &name, &|| element(&pair, part));
    }
    let range = CallExpr { func_name: PAIRS.to_owned(), target: None, args: vec![fold.iter_range] };
    fold.iter_range = made(Expr::Call(range));
    fold
}

fn made(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

/// `pair[part]`.
fn element(pair: &str, part: i64) -> Expr {
    let args = vec![made(Expr::Ident(pair.to_owned())), made(Expr::Literal(LiteralValue::Int(part.into())))];
    Expr::Call(CallExpr { func_name: "_[_]".to_owned(), target: None, args })
}

/// Replaces every use of a variable, except where another variable of that name shadows it.
fn replace(node: &mut IdedExpr, name: &str, with: &dyn Fn() -> Expr) {
    match &mut node.expr {
        Expr::Ident(own) if own == name => node.expr = with(),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
        Expr::Call(call) => {
            for part in call.target.as_deref_mut().into_iter().chain(&mut call.args) {
                replace(part, name, with);
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(|item| replace(item, name, with)),
        Expr::Select(select) => replace(&mut select.operand, name, with),
        Expr::Map(map) => map.entries.iter_mut().for_each(|entry| in_entry(&mut entry.expr, name, with)),
        Expr::Struct(object) => {
            object.entries.iter_mut().for_each(|entry| in_entry(&mut entry.expr, name, with));
        }
        Expr::Comprehension(fold) => {
            replace(&mut fold.iter_range, name, with);
            replace(&mut fold.accu_init, name, with);
            if fold.accu_var == name {
                return;
            }
            replace(&mut fold.result, name, with);
            if fold.iter_var != name && fold.iter_var2.as_deref() != Some(name) {
                replace(&mut fold.loop_cond, name, with);
                replace(&mut fold.loop_step, name, with);
            }
        }
    }
}

fn in_entry(entry: &mut EntryExpr, name: &str, with: &dyn Fn() -> Expr) {
    match entry {
        EntryExpr::MapEntry(entry) => {
            replace(&mut entry.key, name, with);
            replace(&mut entry.value, name, with);
        }
        EntryExpr::StructField(field) => replace(&mut field.value, name, with),
    }
}
