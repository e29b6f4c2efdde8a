//! Errors at the protocol's boundaries.

use thiserror::Error;

/// An identity that breaks its grammar. The text names the field, the invalid value and the rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("bad {what} {value:?}: {rule}")]
pub struct IdError {
    what: &'static str,
    value: String,
    rule: &'static str,
}

impl IdError {
    /// Describes a refused value; long values are cut to 64 characters.
    #[must_use]
    pub fn new(what: &'static str, value: &str, rule: &'static str) -> Self {
        Self { what, value: value.chars().take(64).collect(), rule }
    }
}
