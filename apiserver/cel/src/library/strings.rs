//! String functions whose results grow with their arguments: they pay before they build the result.

use cel::common::types::{CelInt, CelList, CelString};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::metered;
use crate::arguments::{no_overload, text, whole};
use crate::estimate::tenth;
use crate::meter::{Meter, meter, text_size};
use crate::value::elements;

pub(super) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    metered(env, "replace", 3, replace)?;
    metered(env, "replace", 4, replace)?;
    metered(env, "split", 2, split)?;
    metered(env, "split", 3, split)?;
    metered(env, "join", 1, join)?;
    metered(env, "join", 2, join)?;
    metered(env, "_+_", 2, add)?;
    cel::add_overload!(env, fn escape_key: (CelString<'_>) -> CelString<'static>, name = "jsonpatch.escapeKey")
}

/// The optional limit argument of a call. A negative number means no limit.
fn limit(function: &str, arguments: &[CowVal<'_, '_>], index: usize) -> Result<usize, ExecutionError> {
    match arguments.len() > index {
        true => Ok(usize::try_from(whole(function, arguments, index)?).unwrap_or(usize::MAX)),
        false => Ok(usize::MAX),
    }
}

fn replace<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (subject, from) = (text("replace", &arguments, 1)?, text("replace", &arguments, 2)?);
    let to = text("replace", &arguments, 3)?;
    let limit = limit("replace", &arguments, 4)?;
    let meter = meter(&arguments)?;
    meter.spend(tenth(subject.len() as u64))?;
    let count = subject.matches(from).take(limit).count() as u64;
    meter.spend(tenth((subject.len() as u64).saturating_add(count.saturating_mul(to.len() as u64))))?;
    Ok(CowVal::owned(CelString::from(subject.replacen(from, to, limit))))
}

fn split<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (subject, separator) = (text("split", &arguments, 1)?, text("split", &arguments, 2)?);
    let limit = limit("split", &arguments, 3)?;
    let meter = meter(&arguments)?;
    meter.spend(tenth((subject.len() as u64).saturating_mul(2)))?;
    let mut list: Vec<Box<dyn Val + 'v>> = Vec::new();
    let mut push = |part: &str| {
        list.push(Box::new(CelString::from(part.to_owned())));
        meter.spend(1)
    };
    match (limit, separator) {
        (0, _) => {}
        (_, "") => {
            // Splits between all characters. With a limit, the last part is the rest.
            let mut rest = subject;
            let mut parts = 1;
            while let Some(first) =
                rest.chars().next().filter(|first| parts < limit && rest.len() > first.len_utf8())
            {
                let (part, after) = rest.split_at(first.len_utf8());
                push(part)?;
                (rest, parts) = (after, parts + 1);
            }
            if !rest.is_empty() {
                push(rest)?;
            }
        }
        (limit, separator) => {
            for part in subject.splitn(limit, separator) {
                push(part)?;
            }
        }
    }
    Ok(CowVal::owned(CelList::from(list)))
}

fn join<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let separator = if arguments.len() > 2 { text("join", &arguments, 2)? } else { "" };
    let list = arguments.get(1).ok_or_else(|| no_overload("join"))?;
    let meter = meter(&arguments)?;
    let (mut items, mut out) = (elements(list.as_ref())?, String::new());
    let mut first = true;
    while let Some(item) = items.next() {
        let part = item.downcast_ref::<CelString<'_>>().ok_or_else(|| no_overload("join"))?;
        meter.spend(1 + tenth((part.inner().len() + separator.len()) as u64 * 2))?;
        if !std::mem::take(&mut first) {
            out.push_str(separator);
        }
        out.push_str(part.inner());
    }
    Ok(CowVal::owned(CelString::from(out)))
}

/// Pays for building a sum: the bytes of strings, the elements of lists.
fn spend_sum(a: &dyn Val, b: &dyn Val, meter: &Meter) -> Result<(), ExecutionError> {
    for part in [a, b] {
        match (text_size(part), part.as_sizer()) {
            (Some(bytes), _) => meter.spend(tenth(bytes))?,
            (None, Some(sizer)) => meter.spend(sizer.size().inner().unsigned_abs())?,
            _ => {}
        }
    }
    Ok(())
}

fn add<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let [_, a, b] = arguments.as_slice() else { return Err(no_overload("_+_")) };
    spend_sum(a.as_ref(), b.as_ref(), meter(&arguments)?)?;
    let adder = a.as_adder().ok_or_else(|| no_overload("_+_"))?;
    adder.add(b.as_ref()).map(CowVal::into_owned).map(CowVal::Owned).map_err(|error| match error {
        ExecutionError::UnsupportedBinaryOperator(..) => no_overload("_+_"),
        other => other,
    })
}

/// Escapes a part of a JSON pointer (RFC 6901).
fn escape_key(key: &CelString<'_>) -> CelString<'static> {
    key.inner().replace('~', "~0").replace('/', "~1").into()
}

/// Position of one string in another, counted in characters, at or after an offset.
pub(super) fn index_of(
    subject: &str,
    part: &str,
    offset: Option<i64>,
    last: bool,
) -> Result<CelInt, ExecutionError> {
    let count = |bytes: usize| subject.get(..bytes).map_or(0, |before| before.chars().count());
    let length = count(subject.len());
    let out_of_range = |at: i64| {
        ExecutionError::function_error(
            if last { "lastIndexOf" } else { "indexOf" },
            format!("index out of range: {at}"),
        )
    };
    let at = match offset {
        None => {
            if last {
                length
            } else {
                0
            }
        }
        Some(at) => usize::try_from(at).ok().filter(|at| *at <= length).ok_or_else(|| out_of_range(at))?,
    };
    let byte = |chars: usize| subject.char_indices().nth(chars).map_or(subject.len(), |(byte, _)| byte);
    let found = match last {
        false => subject[byte(at)..].find(part).map(|found| found + byte(at)),
        // A match may begin at the offset and extend beyond it.
        true => {
            let end = byte(at).saturating_add(part.len()).min(subject.len());
            let end =
                (end..=subject.len()).find(|end| subject.is_char_boundary(*end)).unwrap_or(subject.len());
            subject[..end].rfind(part)
        }
    };
    let index = found.map_or(-1, |found| i64::try_from(count(found)).unwrap_or(i64::MAX));
    Ok(CelInt::from(index))
}
