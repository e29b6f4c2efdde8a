//! Numbers that environment variables set for a test.

/// The number in a variable; none if it is not set.
///
/// # Panics
/// The variable is not a number. Otherwise the test would silently do something else than requested.
#[must_use]
pub fn asked(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| number(variable, &text))
}

/// How often a test repeats its work: the number in the variable, or `usual`.
///
/// # Panics
/// The variable is not a number, or 0: the test would pass without checking anything.
#[must_use]
pub fn times(variable: &str, usual: u64) -> u64 {
    at_least_once(variable, asked(variable).unwrap_or(usual))
}

/// Cases of a property that does not use proptest's default: the number in proptest's own variable, or `usual`. A
/// configuration with a number of its own would ignore the variable.
///
/// # Panics
/// The variable is not a number, is 0 or is out of range.
#[must_use]
pub fn cases(usual: u32) -> u32 {
    u32::try_from(times("PROPTEST_CASES", usual.into())).expect("PROPTEST_CASES is too large")
}

fn number(variable: &str, text: &str) -> u64 {
    text.parse().unwrap_or_else(|error| panic!("{variable}={text:?} is not a number: {error}"))
}

fn at_least_once(variable: &str, times: u64) -> u64 {
    assert!(times > 0, "{variable}=0 would check nothing");
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_taken_as_it_is() {
        assert_eq!((number("N", "20"), at_least_once("N", 1)), (20, 1));
        assert_eq!(times("TOMBOLO_NEVER_SET", 7), 7);
    }

    #[test]
    #[should_panic(expected = "N=\"2O\" is not a number")]
    fn invalid_number_is_not_replaced_by_the_default() {
        let _ = number("N", "2O");
    }

    #[test]
    #[should_panic(expected = "N=0 would check nothing")]
    fn zero_is_refused() {
        let _ = at_least_once("N", 0);
    }
}
