//! Functions of lists: those of Kubernetes, sets, and comparison, which pays for the elements that it reads.

use std::cmp::Ordering;

use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelString, CelUInt};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::metered;
use super::strings::index_of;
use crate::arguments::{no_overload, text, whole};
use crate::estimate::tenth;
use crate::meter::{Meter, comparison, meter};
use crate::time::Duration;
use crate::value::{elements, equal};

pub(super) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    use cel::common::types::LIST_TYPE;
    env.add_member_overload("isSorted", "list_is_sorted", LIST_TYPE, vec![], is_sorted)?;
    env.add_member_overload("sum", "list_sum", LIST_TYPE, vec![], sum)?;
    env.add_member_overload("min", "list_min", LIST_TYPE, vec![], |arguments| extreme("min", arguments))?;
    env.add_member_overload("max", "list_max", LIST_TYPE, vec![], |arguments| extreme("max", arguments))?;
    for (name, arguments) in [("indexOf", 2), ("indexOf", 3)] {
        metered(env, name, arguments, |arguments| find("indexOf", arguments))?;
    }
    for (name, arguments) in [("lastIndexOf", 2), ("lastIndexOf", 3)] {
        metered(env, name, arguments, |arguments| find("lastIndexOf", arguments))?;
    }
    metered(env, "distinct", 1, distinct)?;
    metered(env, "flatten", 1, flatten)?;
    metered(env, "flatten", 2, flatten)?;
    metered(env, "lists.range", 1, range)?;
    metered(env, "sets.contains", 2, |arguments| sets(&arguments, |a, b, meter| subset(b, a, meter)))?;
    metered(env, "sets.equivalent", 2, |arguments| {
        sets(&arguments, |a, b, meter| Ok(subset(a, b, meter)? && subset(b, a, meter)?))
    })?;
    metered(env, "sets.intersects", 2, |arguments| sets(&arguments, intersects))?;
    metered(env, "_==_", 2, |arguments| Ok(CowVal::owned(CelBool::from(same(&arguments)?))))?;
    metered(env, "_!=_", 2, |arguments| Ok(CowVal::owned(CelBool::from(!same(&arguments)?))))?;
    metered(env, "@in", 2, contained)
}

type Items<'a, 'v> = Vec<&'a (dyn Val + 'v)>;

fn items<'a, 'v>(list: &'a (dyn Val + 'v)) -> Result<Items<'a, 'v>, ExecutionError> {
    let (mut each, mut all) = (elements(list)?, Vec::new());
    while let Some(item) = each.next() {
        all.push(item);
    }
    Ok(all)
}

fn nth<'a, 'b, 'v>(
    arguments: &'a [CowVal<'b, 'v>],
    index: usize,
) -> Result<&'a (dyn Val + 'v), ExecutionError> {
    arguments.get(index).map(AsRef::as_ref).ok_or_else(|| no_overload("list"))
}

fn order(a: &dyn Val, b: &dyn Val) -> Result<Ordering, ExecutionError> {
    a.as_comparer().ok_or_else(|| no_overload("compare"))?.compare(b)
}

fn is_sorted<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let list = items(nth(&arguments, 0)?)?;
    for pair in list.windows(2) {
        if order(pair[0], pair[1])? == Ordering::Greater {
            return Ok(CowVal::owned(CelBool::from(false)));
        }
    }
    Ok(CowVal::owned(CelBool::from(true)))
}

fn sum<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let list = items(nth(&arguments, 0)?)?;
    let Some((first, rest)) = list.split_first() else { return Ok(CowVal::owned(CelInt::from(0))) };
    let summable = first.downcast_ref::<CelInt>().is_some()
        || first.downcast_ref::<CelUInt>().is_some()
        || first.downcast_ref::<CelDouble>().is_some()
        || first.downcast_ref::<Duration>().is_some();
    if !summable {
        return Err(no_overload("sum"));
    }
    let mut total: Box<dyn Val + 'v> = first.clone_as_boxed();
    for item in rest {
        let adder = total.as_adder().ok_or_else(|| no_overload("sum"))?;
        total = adder.add(*item)?.into_owned();
    }
    Ok(CowVal::Owned(total))
}

fn extreme<'b, 'v>(
    name: &'static str,
    arguments: Vec<CowVal<'b, 'v>>,
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
    let list = items(nth(&arguments, 0)?)?;
    let empty = || ExecutionError::function_error(name, format!("{name} called on empty list"));
    let (first, rest) = list.split_first().ok_or_else(empty)?;
    let mut best = *first;
    for item in rest {
        if order(*item, best)? == wanted {
            best = *item;
        }
    }
    Ok(CowVal::Owned(best.clone_as_boxed()))
}

/// `indexOf` and `lastIndexOf` of strings and lists.
fn find<'b, 'v>(
    name: &'static str,
    arguments: Vec<CowVal<'b, 'v>>,
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let last = name == "lastIndexOf";
    let meter = meter(&arguments)?;
    let subject = nth(&arguments, 1)?;
    if let Some(found) = subject.downcast_ref::<CelString<'_>>() {
        let part = text(name, &arguments, 2)?;
        let product = tenth(found.inner().len() as u64).saturating_mul(tenth(part.len() as u64).max(1));
        meter.spend(product)?;
        let offset = if arguments.len() > 3 { Some(whole(name, &arguments, 3)?) } else { None };
        return index_of(found.inner(), part, offset, last).map(CowVal::owned);
    }
    let (list, wanted) = (items(subject)?, nth(&arguments, 2)?);
    let mut found = -1;
    for (index, item) in list.iter().enumerate() {
        meter.spend(1)?;
        comparison(*item, wanted, meter)?;
        if equal(*item, wanted) {
            found = i64::try_from(index).unwrap_or(i64::MAX);
            if !last {
                break;
            }
        }
    }
    Ok(CowVal::owned(CelInt::from(found)))
}

fn includes(list: &Items<'_, '_>, wanted: &dyn Val, meter: &Meter) -> Result<bool, ExecutionError> {
    for item in list {
        meter.spend(1)?;
        comparison(*item, wanted, meter)?;
        if equal(*item, wanted) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn distinct<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let meter = meter(&arguments)?;
    let mut kept: Items<'_, 'v> = Vec::new();
    for item in items(nth(&arguments, 1)?)? {
        if !includes(&kept, item, meter)? {
            kept.push(item);
        }
    }
    let list: Vec<Box<dyn Val + 'v>> = kept.into_iter().map(Val::clone_as_boxed).collect();
    Ok(CowVal::owned(CelList::from(list)))
}

fn flatten<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let depth = if arguments.len() > 2 { whole("flatten", &arguments, 2)? } else { 1 };
    if depth < 0 {
        return Err(ExecutionError::function_error("flatten", "level must be non-negative"));
    }
    let mut list: Vec<Box<dyn Val + 'v>> = Vec::new();
    flatten_into(nth(&arguments, 1)?, depth, meter(&arguments)?, &mut list)?;
    Ok(CowVal::owned(CelList::from(list)))
}

fn flatten_into<'v>(
    list: &(dyn Val + 'v),
    depth: i64,
    meter: &Meter,
    out: &mut Vec<Box<dyn Val + 'v>>,
) -> Result<(), ExecutionError> {
    let mut each = elements(list)?;
    while let Some(item) = each.next() {
        meter.spend(1)?;
        match item.get_type().kind() == cel::common::types::Kind::List && depth > 0 {
            true => flatten_into(item, depth - 1, meter, out)?,
            false => out.push(item.clone_as_boxed()),
        }
    }
    Ok(())
}

fn range<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let count = whole("lists.range", &arguments, 1)?;
    meter(&arguments)?.spend(u64::try_from(count).unwrap_or(0))?;
    let numbers = (0..count).map(|number| Box::new(CelInt::from(number)) as Box<dyn Val + 'v>);
    Ok(CowVal::owned(CelList::from(numbers.collect::<Vec<_>>())))
}

type SetRule = fn(&Items<'_, '_>, &Items<'_, '_>, &Meter) -> Result<bool, ExecutionError>;

fn sets<'b, 'v>(arguments: &[CowVal<'_, '_>], rule: SetRule) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (a, b) = (items(nth(arguments, 1)?)?, items(nth(arguments, 2)?)?);
    Ok(CowVal::owned(CelBool::from(rule(&a, &b, meter(arguments)?)?)))
}

fn subset(part: &Items<'_, '_>, whole: &Items<'_, '_>, meter: &Meter) -> Result<bool, ExecutionError> {
    for item in part {
        if !includes(whole, *item, meter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersects(a: &Items<'_, '_>, b: &Items<'_, '_>, meter: &Meter) -> Result<bool, ExecutionError> {
    for item in a {
        if includes(b, *item, meter)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn same(arguments: &[CowVal<'_, '_>]) -> Result<bool, ExecutionError> {
    let (a, b) = (nth(arguments, 1)?, nth(arguments, 2)?);
    comparison(a, b, meter(arguments)?)?;
    Ok(equal(a, b))
}

fn contained<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (value, container) = (nth(&arguments, 1)?, nth(&arguments, 2)?);
    let meter = meter(&arguments)?;
    let found = match container.get_type().kind() {
        cel::common::types::Kind::List => includes(&items(container)?, value, meter)?,
        _ => container.as_container().ok_or_else(|| no_overload("@in"))?.contains(value)?,
    };
    Ok(CowVal::owned(CelBool::from(found)))
}
