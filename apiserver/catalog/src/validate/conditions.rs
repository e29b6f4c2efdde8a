//! Validation of `metav1.Condition`.

use std::collections::HashSet;

use super::field::{Errors, Field};
use super::{FieldError, names};

const REASON_LEN_MAX: usize = 1024;
const MESSAGE_LEN_MAX: usize = 32 * 1024;
const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

/// Checks a list of `metav1.Condition`.
pub(super) fn check(list: &Field<'_, '_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for condition in list.items() {
        let [kind, status, generation, time, reason, message] =
            ["type", "status", "observedGeneration", "lastTransitionTime", "reason", "message"]
                .map(|field| condition.child(field));
        if !seen.insert(kind.text()) {
            errors.push(kind.duplicate());
        }
        kind.grammar(names::qualified_name, errors);
        if !["False", "True", "Unknown"].contains(&status.text()) {
            errors.push(status.not_supported(&["False", "True", "Unknown"]));
        }
        if generation.int() < 0 {
            errors.push(generation.invalid("must be greater than or equal to zero"));
        }
        if !time.is_set() {
            errors.push(time.required(""));
        }
        match reason.text() {
            "" => errors.push(reason.required("")),
            text if !is_reason(text) => errors.push(reason.invalid(REASON)),
            _ => reason.overlong(REASON_LEN_MAX, errors),
        }
        if message.text().len() > MESSAGE_LEN_MAX {
            errors.push(FieldError::too_long(message.path(), MESSAGE_LEN_MAX));
        }
    }
}

fn is_reason(text: &str) -> bool {
    let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(word)
        && bytes.iter().all(|b| word(b) || b",:".contains(b))
}
