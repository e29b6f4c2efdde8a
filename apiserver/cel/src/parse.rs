//! Parses a text into a tree, and checks that the tree is small enough to be evaluated.

use cel::Env;
use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr, SourceInfo};

use crate::limits::{EXPRESSION_BYTES_MAX, EXPRESSION_DEPTH_MAX};
use crate::threads;

/// A tree with the source positions of its nodes.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) tree: IdedExpr,
    pub(crate) source: SourceInfo,
}

/// Parses an expression.
///
/// # Errors
/// The error with its position, in cel-go's words.
pub(crate) fn parse(env: &'static Env, text: &str) -> Result<Parsed, String> {
    if text.len() > EXPRESSION_BYTES_MAX {
        return Err(format!(
            "expression code point size exceeds limit: size: {}, limit {EXPRESSION_BYTES_MAX}",
            text.len()
        ));
    }
    // The recursion depth of parsing, traversing and dropping grows with the length of operator chains.
    let (owned, is_long) = (text.to_owned(), text.len() > threads::SHORT_TEXT_BYTES_MAX);
    let parsed = threads::parse(is_long, move || parse_here(env, &owned));
    parsed.unwrap_or_else(|why| Err(why.to_owned()))
}

fn parse_here(env: &Env, text: &str) -> Result<Parsed, String> {
    let (tree, source) = env.parser().parse_with_source_info(text).map_err(|errors| {
        let located = errors.errors.iter().map(|error| {
            let (line, column) = (error.pos.0, error.pos.1);
            render(text, usize::try_from(line).unwrap_or(1), usize::try_from(column).unwrap_or(1), &error.msg)
        });
        located.collect::<Vec<_>>().join("\n")
    })?;
    let depth = depth(&tree);
    if depth > EXPRESSION_DEPTH_MAX {
        return Err(format!(
            "expression nests {depth} deep with its macros expanded, which is more than the {EXPRESSION_DEPTH_MAX} \
             that this API server evaluates"
        ));
    }
    Ok(Parsed { tree, source })
}

/// An error with its line, as cel-go shows it. Lines and columns start at 1.
pub(crate) fn render(text: &str, line: usize, column: usize, message: &str) -> String {
    let snippet = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let dots = ".".repeat(column.saturating_sub(1).min(snippet.len()));
    format!("ERROR: <input>:{line}:{column}: {message}\n | {snippet}\n | {dots}^")
}

/// Line and column of a byte of the text, starting at 1.
pub(crate) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (line, column)
}

/// The depth of a tree.
pub(crate) fn depth(node: &IdedExpr) -> usize {
    1 + children(node).into_iter().map(depth).max().unwrap_or(0)
}

/// The direct children of a node.
pub(crate) fn children(node: &IdedExpr) -> Vec<&IdedExpr> {
    match &node.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Struct(object) => object.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Comprehension(fold) => {
            vec![&fold.iter_range, &fold.accu_init, &fold.loop_cond, &fold.loop_step, &fold.result]
        }
    }
}

fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        EntryExpr::StructField(field) => vec![&field.value],
    }
}
