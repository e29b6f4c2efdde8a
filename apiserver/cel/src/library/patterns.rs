//! Regular expressions: `matches`, `find` and `findAll`.

use std::cell::RefCell;
use std::collections::VecDeque;

use cel::common::types::{CelBool, CelList, CelString};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use regex::{Regex, RegexBuilder};

use super::metered;
use crate::arguments::{text, whole};
use crate::estimate::pattern_cost;
use crate::limits::{PATTERN_BYTES_MAX, PATTERNS_MAX};
use crate::meter::meter;

pub(super) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    metered(env, "matches", 2, matches)?;
    metered(env, "find", 2, find)?;
    metered(env, "findAll", 2, find_all)?;
    metered(env, "findAll", 3, find_all)
}

thread_local! {
    /// Compiled patterns by their text, the most recently used last: rules match value after value against the same
    /// pattern.
    static COMPILED: RefCell<VecDeque<(String, Regex)>> = const { RefCell::new(VecDeque::new()) };
}

/// Compiles a pattern, or returns the cached one.
///
/// # Errors
/// The text is not a valid pattern, or takes too much memory.
pub(crate) fn pattern(source: &str) -> Result<Regex, ExecutionError> {
    COMPILED.with_borrow_mut(|compiled| {
        let known = compiled.iter().position(|(text, _)| text == source).and_then(|at| compiled.remove(at));
        let (text, regex) = match known {
            Some(known) => known,
            None => {
                let built = RegexBuilder::new(source).size_limit(PATTERN_BYTES_MAX).build();
                let regex = built.map_err(|error| ExecutionError::function_error("matches", error))?;
                (source.to_owned(), regex)
            }
        };
        if compiled.len() >= PATTERNS_MAX {
            compiled.pop_front();
        }
        compiled.push_back((text, regex.clone()));
        Ok(regex)
    })
}

/// The text and the compiled pattern, with their cost paid.
fn prepare<'a>(function: &str, arguments: &'a [CowVal<'_, '_>]) -> Result<(&'a str, Regex), ExecutionError> {
    let (subject, source) = (text(function, arguments, 1)?, text(function, arguments, 2)?);
    meter(arguments)?.spend(pattern_cost(subject.len() as u64, source.len() as u64))?;
    Ok((subject, pattern(source)?))
}

fn matches<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (subject, regex) = prepare("matches", &arguments)?;
    Ok(CowVal::owned(CelBool::from(regex.is_match(subject))))
}

fn find<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (subject, regex) = prepare("find", &arguments)?;
    let found = regex.find(subject).map_or("", |found| found.as_str());
    Ok(CowVal::owned(CelString::from(found.to_owned())))
}

fn find_all<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let limit = if arguments.len() > 3 { whole("findAll", &arguments, 3)? } else { -1 };
    let (subject, regex) = prepare("findAll", &arguments)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let meter = meter(&arguments)?;
    let mut list: Vec<Box<dyn Val + 'v>> = Vec::new();
    for found in regex.find_iter(subject).take(limit) {
        meter.spend(1)?;
        list.push(Box::new(CelString::from(found.as_str().to_owned())));
    }
    Ok(CowVal::owned(CelList::from(list)))
}
