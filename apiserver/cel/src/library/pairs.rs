//! Two-variable comprehensions: index and element of a list, key and value of a map. The macros keep both variables
//! until the types are known. Then a one-variable comprehension iterates over the pairs (see [`crate::pairs`]).

use std::collections::HashMap;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue,
    MapEntryExpr, MapExpr,
};
use cel::common::types::{CelInt, CelList, CelMap, CelMapKey, CelString, DYN_TYPE, Kind, LIST_TYPE};
use cel::common::value::{CowVal, Val};
use cel::parser::{Macro, MacroExprHelper, ParseError};
use cel::{DeclarationError, Env, ExecutionError};

use crate::arguments::no_overload;
use crate::pairs::{MAPPED, MERGED, PAIRS};
use crate::value::elements;

/// The accumulator variable of a comprehension.
const RESULT: &str = "@result";

/// A function that assembles a comprehension.
type Shape = fn(&mut Maker<'_, '_>, &str, Vec<IdedExpr>) -> ComprehensionParts;

/// The parts that differ between the macros.
struct ComprehensionParts {
    init: IdedExpr,
    condition: IdedExpr,
    step: IdedExpr,
    result: IdedExpr,
    /// The function that merges the accumulated maps into one.
    merge: Option<&'static str>,
}

pub(super) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_overload(PAIRS, PAIRS, vec![DYN_TYPE], pairs)?;
    env.add_overload(MERGED, MERGED, vec![LIST_TYPE], merged)?;
    env.add_overload(MAPPED, MAPPED, vec![LIST_TYPE], merged)?;
    let shapes: [(&str, usize, Shape); 10] = [
        ("all", 3, all),
        ("exists", 3, exists),
        ("existsOne", 3, exists_one),
        ("exists_one", 3, exists_one),
        ("transformList", 3, transform_list),
        ("transformList", 4, transform_list),
        ("transformMap", 3, transform_map),
        ("transformMap", 4, transform_map),
        ("transformMapEntry", 3, transform_entry),
        ("transformMapEntry", 4, transform_entry),
    ];
    for (name, arguments, shape) in shapes {
        env.add_macro(Macro::receiver(name, arguments, move |helper, target, given| {
            expand(helper, target, given, shape).map(Some)
        }))?;
    }
    Ok(())
}

fn expand(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    arguments: &mut Vec<IdedExpr>,
    shape: Shape,
) -> Result<IdedExpr, ParseError> {
    let rest = arguments.split_off(2);
    let mut names = Vec::new();
    for argument in arguments.iter() {
        let Expr::Ident(name) = &argument.expr else {
            return Err(helper.new_error(argument.id, "argument must be a simple name"));
        };
        if names.contains(name) {
            return Err(helper.new_error(argument.id, format!("duplicate variable name: {name}")));
        }
        if name == "__result__" {
            let text = "iteration variable overwrites accumulator variable";
            return Err(helper.new_error(argument.id, text));
        }
        names.push(name.clone());
    }
    let mut maker = Maker(helper);
    let second = names.pop();
    let first = names.pop().unwrap_or_default();
    let ComprehensionParts { init, condition, step, result, merge } = shape(&mut maker, &first, rest);
    let fold = Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: target.take().unwrap_or_default(),
        iter_var: first,
        iter_var2: second,
        accu_var: RESULT.to_owned(),
        accu_init: init,
        loop_cond: condition,
        loop_step: step,
        result,
    }));
    let fold = maker.0.next_expr(fold);
    Ok(match merge {
        Some(name) => maker.call(name, vec![fold]),
        None => fold,
    })
}

/// Creates nodes.
struct Maker<'a, 'b>(&'a mut MacroExprHelper<'b>);

impl Maker<'_, '_> {
    fn call(&mut self, name: &str, args: Vec<IdedExpr>) -> IdedExpr {
        self.0.next_expr(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
    }

    fn gathered(&mut self) -> IdedExpr {
        self.0.next_expr(Expr::Ident(RESULT.to_owned()))
    }

    fn truth(&mut self, truth: bool) -> IdedExpr {
        self.0.next_expr(Expr::Literal(LiteralValue::Boolean(truth.into())))
    }

    fn whole(&mut self, number: i64) -> IdedExpr {
        self.0.next_expr(Expr::Literal(LiteralValue::Int(number.into())))
    }

    fn list(&mut self, elements: Vec<IdedExpr>) -> IdedExpr {
        self.0.next_expr(Expr::List(ListExpr::new(elements)))
    }

    /// `wanted ? step : @result`, or only the step.
    fn filtered(&mut self, wanted: Option<IdedExpr>, step: IdedExpr) -> IdedExpr {
        let Some(wanted) = wanted else { return step };
        let unchanged = self.gathered();
        self.call("_?_:_", vec![wanted, step, unchanged])
    }

    /// Accumulates a list of `item` for the pairs that pass the filter.
    fn appending(
        &mut self,
        wanted: Option<IdedExpr>,
        item: IdedExpr,
        merge: Option<&'static str>,
    ) -> ComprehensionParts {
        let appended = self.list(vec![item]);
        let so_far = self.gathered();
        let step = self.call("_+_", vec![so_far, appended]);
        let step = self.filtered(wanted, step);
        ComprehensionParts {
            init: self.list(Vec::new()),
            condition: self.truth(true),
            step,
            result: self.gathered(),
            merge,
        }
    }
}

/// The optional filter, and the last argument.
fn filter_and_last(mut arguments: Vec<IdedExpr>) -> (Option<IdedExpr>, IdedExpr) {
    let last = arguments.pop().unwrap_or_default();
    (arguments.pop(), last)
}

fn all(maker: &mut Maker<'_, '_>, _: &str, arguments: Vec<IdedExpr>) -> ComprehensionParts {
    let (_, predicate) = filter_and_last(arguments);
    let so_far = maker.gathered();
    let condition = maker.call("@not_strictly_false", vec![so_far]);
    let so_far = maker.gathered();
    let step = maker.call("_&&_", vec![so_far, predicate]);
    ComprehensionParts { init: maker.truth(true), condition, step, result: maker.gathered(), merge: None }
}

fn exists(maker: &mut Maker<'_, '_>, _: &str, arguments: Vec<IdedExpr>) -> ComprehensionParts {
    let (_, predicate) = filter_and_last(arguments);
    let so_far = maker.gathered();
    let none = maker.call("!_", vec![so_far]);
    let condition = maker.call("@not_strictly_false", vec![none]);
    let so_far = maker.gathered();
    let step = maker.call("_||_", vec![so_far, predicate]);
    ComprehensionParts { init: maker.truth(false), condition, step, result: maker.gathered(), merge: None }
}

fn exists_one(maker: &mut Maker<'_, '_>, _: &str, arguments: Vec<IdedExpr>) -> ComprehensionParts {
    let (_, predicate) = filter_and_last(arguments);
    let (so_far, one) = (maker.gathered(), maker.whole(1));
    let step = maker.call("_+_", vec![so_far, one]);
    let step = maker.filtered(Some(predicate), step);
    let (count, one) = (maker.gathered(), maker.whole(1));
    let result = maker.call("_==_", vec![count, one]);
    ComprehensionParts { init: maker.whole(0), condition: maker.truth(true), step, result, merge: None }
}

fn transform_list(maker: &mut Maker<'_, '_>, _: &str, arguments: Vec<IdedExpr>) -> ComprehensionParts {
    let (wanted, item) = filter_and_last(arguments);
    maker.appending(wanted, item, None)
}

fn transform_map(maker: &mut Maker<'_, '_>, key: &str, arguments: Vec<IdedExpr>) -> ComprehensionParts {
    let (wanted, value) = filter_and_last(arguments);
    let key = maker.0.next_expr(Expr::Ident(key.to_owned()));
    let entry = EntryExpr::MapEntry(MapEntryExpr { key, value, optional: false });
    let entry = IdedEntryExpr { id: 0, expr: entry };
    let entry = maker.0.next_expr(Expr::Map(MapExpr { entries: vec![entry] }));
    maker.appending(wanted, entry, Some(MAPPED))
}

fn transform_entry(maker: &mut Maker<'_, '_>, _: &str, arguments: Vec<IdedExpr>) -> ComprehensionParts {
    let (wanted, entry) = filter_and_last(arguments);
    maker.appending(wanted, entry, Some(MERGED))
}

/// The pairs of a list or map, each as a list of two elements.
fn pairs<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let range = arguments.first().ok_or_else(|| no_overload(PAIRS))?.as_ref();
    let (mut items, mut pairs) = (elements(range)?, Vec::<Box<dyn Val + 'v>>::new());
    let is_map = range.get_type().kind() == Kind::Map;
    let members = range.as_indexer().ok_or_else(|| no_overload(PAIRS))?;
    let mut index = 0_i64;
    while let Some(item) = items.next() {
        let pair: [Box<dyn Val + 'v>; 2] = match is_map {
            true => [item.clone_as_boxed(), members.get(item)?.into_owned()],
            false => [Box::new(CelInt::from(index)), item.clone_as_boxed()],
        };
        pairs.push(Box::new(CelList::from(Vec::from(pair))));
        index += 1;
    }
    Ok(CowVal::owned(CelList::from(pairs)))
}

/// Merges several maps into one. A duplicate key is an error.
fn merged<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let list = arguments.first().ok_or_else(|| no_overload(MERGED))?.as_ref();
    let (mut maps, mut all) = (elements(list)?, HashMap::<CelMapKey<'v>, Box<dyn Val + 'v>>::new());
    while let Some(map) = maps.next() {
        let members = map.as_indexer().filter(|_| map.get_type().kind() == Kind::Map);
        let members = members.ok_or_else(|| no_overload(MERGED))?;
        let mut keys = elements(map)?;
        while let Some(key) = keys.next() {
            let value = members.get(key)?.into_owned();
            let owned: CowVal<'_, 'v> = CowVal::Owned(key.clone_as_boxed());
            if all.insert(owned.try_into()?, value).is_some() {
                let text = format!("insert failed: key {} already exists", shown(key));
                return Err(ExecutionError::function_error(MERGED, text));
            }
        }
    }
    Ok(CowVal::owned(CelMap::from(all)))
}

fn shown(key: &dyn Val) -> String {
    let number = |key: &dyn Val| key.downcast_ref::<CelInt>().map(|number| number.inner().to_string());
    let text = |key: &dyn Val| key.downcast_ref::<CelString<'_>>().map(|text| text.inner().to_owned());
    number(key).or_else(|| text(key)).unwrap_or_default()
}
