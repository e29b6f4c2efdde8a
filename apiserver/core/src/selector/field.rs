//! Field selectors: `a.b=c,d!=e`, with `\` before a literal comma, equals sign or backslash.

use std::borrow::Cow;
use std::fmt;

use thiserror::Error;

use super::SELECTOR_LEN_MAX;

/// A malformed field selector, in the words of the real server.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FieldSelectorError {
    /// No operator in a term.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    NoOperator {
        /// The whole selector.
        selector: String,
        /// The term.
        term: String,
    },
    /// A character that must be escaped: its number, as the real server says it.
    #[error("invalid field selector: unescaped character in value: {0}")]
    Unescaped(u32),
    /// An escape that there is not.
    #[error("invalid field selector: invalid escape sequence: {0}")]
    InvalidEscape(String),
    /// Too long to be read.
    #[error("the field selector is longer than {SELECTOR_LEN_MAX} bytes")]
    TooLong,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    field: String,
    value: String,
    equal: bool,
}

/// A conjunction of comparisons.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

impl FieldSelector {
    /// Parses a selector; an empty text selects everything.
    ///
    /// # Errors
    /// [`FieldSelectorError`] when it is malformed.
    pub fn parse(text: &str) -> Result<Self, FieldSelectorError> {
        if text.len() > SELECTOR_LEN_MAX {
            return Err(FieldSelectorError::TooLong);
        }
        let mut terms = Vec::new();
        for part in split(text) {
            if part.is_empty() {
                continue;
            }
            let term = term(text, part)?;
            // A comparison of nothing with nothing says nothing.
            if !(term.field.is_empty() && term.value.is_empty()) {
                terms.push(term);
            }
        }
        Ok(Self { terms })
    }

    /// Whether there is no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The fields that are compared.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|term| term.field.as_str())
    }

    /// The value that a field must have, when the selector fixes it. Of several, which nothing has at once, it is the first
    /// in the order of texts, as kube-apiserver has it.
    #[must_use]
    pub fn fixed(&self, field: &str) -> Option<&str> {
        let terms = self.terms.iter().filter(|term| term.equal && term.field == field);
        terms.map(|term| term.value.as_str()).min()
    }

    /// Whether one of the terms is that a field has a value.
    #[must_use]
    pub fn requires(&self, field: &str, value: &str) -> bool {
        self.terms.iter().any(|term| term.equal && term.field == field && term.value == value)
    }

    /// Adds the condition that a field has a value.
    pub fn require(&mut self, field: &str, value: &str) {
        self.terms.push(Term { field: field.to_owned(), value: value.to_owned(), equal: true });
    }

    /// The same comparisons of fields with other names.
    #[must_use]
    pub(crate) fn renamed<'a>(&'a self, name: impl Fn(&'a str) -> Cow<'a, str>) -> Self {
        let renamed = |term: &'a Term| Term { field: name(&term.field).into_owned(), ..term.clone() };
        Self { terms: self.terms.iter().map(renamed).collect() }
    }

    /// Whether the terms over those fields that `of_interest` picks hold.
    pub(super) fn matches_where<'a>(
        &self,
        of_interest: impl Fn(&str) -> bool,
        value: impl Fn(&str) -> Cow<'a, str>,
    ) -> bool {
        let mut terms = self.terms.iter().filter(|term| of_interest(&term.field));
        terms.all(|term| (value(&term.field) == term.value.as_str()) == term.equal)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Term { field, value, equal }) in self.terms.iter().enumerate() {
            let (comma, operator) = (if index == 0 { "" } else { "," }, if *equal { "=" } else { "!=" });
            write!(out, "{comma}{field}{operator}{}", escape(value))?;
        }
        Ok(())
    }
}

/// Splits at commas that are not escaped.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn term(selector: &str, part: &str) -> Result<Term, FieldSelectorError> {
    let mut escaped = false;
    for (at, byte) in part.bytes().enumerate() {
        if escaped {
            escaped = false;
            continue;
        }
        escaped = byte == b'\\';
        let rest = &part.as_bytes()[at..];
        for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
            if rest.starts_with(operator.as_bytes()) {
                let value = unescape(&part[at + operator.len()..])?;
                return Ok(Term { field: part[..at].to_owned(), value, equal });
            }
        }
    }
    Err(FieldSelectorError::NoOperator { selector: selector.to_owned(), term: part.to_owned() })
}

/// A value as a selector says it.
#[must_use]
pub fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for next in value.chars() {
        if matches!(next, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(next);
    }
    out
}

fn unescape(text: &str) -> Result<String, FieldSelectorError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(next) = chars.next() {
        match next {
            '\\' => match chars.next() {
                Some(literal @ ('\\' | ',' | '=')) => out.push(literal),
                other => {
                    let sequence = ['\\'].into_iter().chain(other).collect();
                    return Err(FieldSelectorError::InvalidEscape(sequence));
                }
            },
            ',' | '=' => return Err(FieldSelectorError::Unescaped(u32::from(next))),
            other => out.push(other),
        }
    }
    Ok(out)
}
