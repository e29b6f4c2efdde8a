//! Numbers that somebody asks a test for, by a variable of the environment.

/// What a variable asks for; none when it is not set.
///
/// # Panics
/// When it is no number: a test that did something else than what was asked for would say nothing of it.
#[must_use]
pub fn asked(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| number(variable, &text))
}

/// How often a test does something: as often as a variable asks for, or as it usually does.
///
/// # Panics
/// When the variable is no number, or 0: the test would pass and have checked nothing.
#[must_use]
pub fn times(variable: &str, usual: u64) -> u64 {
    at_least_once(variable, asked(variable).unwrap_or(usual))
}

fn number(variable: &str, text: &str) -> u64 {
    text.parse().unwrap_or_else(|error| panic!("{variable}={text:?} is no number: {error}"))
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
    #[should_panic(expected = "N=\"2O\" is no number")]
    fn what_is_no_number_is_not_taken_for_the_usual_one() {
        let _ = number("N", "2O");
    }

    #[test]
    #[should_panic(expected = "N=0 would check nothing")]
    fn nothing_at_all_cannot_be_asked_for() {
        let _ = at_least_once("N", 0);
    }
}
