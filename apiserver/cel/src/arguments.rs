//! Reads the arguments of functions.

use cel::ExecutionError;
use cel::common::types::{CelInt, CelString};
use cel::common::value::CowVal;

/// A string argument.
pub(crate) fn text<'a>(
    function: &str,
    arguments: &'a [CowVal<'_, '_>],
    index: usize,
) -> Result<&'a str, ExecutionError> {
    let found = arguments.get(index).and_then(|value| value.downcast_ref::<CelString<'_>>());
    found.map(CelString::inner).ok_or_else(|| no_overload(function))
}

/// An integer argument.
pub(crate) fn whole(
    function: &str,
    arguments: &[CowVal<'_, '_>],
    index: usize,
) -> Result<i64, ExecutionError> {
    let found = arguments.get(index).and_then(|value| value.downcast_ref::<CelInt>());
    found.map(|number| *number.inner()).ok_or_else(|| no_overload(function))
}

/// The error for arguments that the function does not accept.
pub(crate) fn no_overload(function: &str) -> ExecutionError {
    ExecutionError::function_error(function, "no such overload")
}
