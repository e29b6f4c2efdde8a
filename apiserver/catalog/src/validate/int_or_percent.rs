//! Numbers that may be given as a percentage: `3` or `25%`.

use serde_json::Value;

use super::field::{Errors, Field};

const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

/// The percentage that a text stands for.
fn percent(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(i64::MAX))
}

/// The number, or the number before the percent sign. Any other text counts as zero.
pub(super) fn value(at: &Field<'_, '_>) -> i64 {
    match at.value() {
        Value::String(text) => percent(text).or_else(|| text.parse().ok()).unwrap_or_default(),
        _ => at.int(),
    }
}

/// Reports a value that is neither a non-negative number nor a percentage.
pub(super) fn not_negative(at: &Field<'_, '_>, errors: &mut Errors) {
    match at.value() {
        Value::String(text) if percent(text).is_none() => errors.push(at.invalid(PERCENT)),
        _ => at.non_negative(errors),
    }
}

/// Reports a percentage above 100.
pub(super) fn at_most_all(at: &Field<'_, '_>, errors: &mut Errors) {
    if percent(at.text()).is_some_and(|share| share > 100) {
        errors.push(at.invalid("must not be greater than 100%"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shares_end_with_a_percent_sign() {
        for (given, number, wrong) in [
            (json!(3), 3, 0),
            (json!("25%"), 25, 0),
            (json!("150%"), 150, 1),
            (json!("7"), 7, 1),
            (json!("x"), 0, 1),
            (json!("%"), 0, 1),
            (json!(-1), -1, 1),
            (Value::Null, 0, 0),
        ] {
            let (at, mut errors) = (Field::root("p", &given), Vec::new());
            not_negative(&at, &mut errors);
            at_most_all(&at, &mut errors);
            assert_eq!((value(&at), errors.len()), (number, wrong), "{given}");
        }
    }
}
