//! Field selectors: `a.b=c,d!=e`, where `\` escapes a comma, equals sign or backslash.

use std::borrow::Cow;
use std::fmt;

use thiserror::Error;

use super::SELECTOR_LEN_MAX;

/// An invalid field selector, with kube-apiserver's messages.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FieldSelectorError {
    /// A term without an operator.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    NoOperator {
        /// The whole selector.
        selector: String,
        /// The term.
        term: String,
    },
    /// A character that must be escaped: its number, as in kube-apiserver's message.
    #[error("invalid field selector: unescaped character in value: {0}")]
    Unescaped(u32),
    /// An unknown escape sequence.
    #[error("invalid field selector: invalid escape sequence: {0}")]
    InvalidEscape(String),
    /// The selector is too long.
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
    /// [`FieldSelectorError`] when it is invalid.
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
            // An empty field compared with an empty value is no condition.
            if !(term.field.is_empty() && term.value.is_empty()) {
                terms.push(term);
            }
        }
        Ok(Self { terms })
    }

    /// Whether there are no conditions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The fields that are compared.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|term| term.field.as_str())
    }

    /// The value that the selector requires of a field. If there are several, which no object satisfies, it is the
    /// first in lexical order, as in kube-apiserver.
    #[must_use]
    pub fn fixed(&self, field: &str) -> Option<&str> {
        let terms = self.terms.iter().filter(|term| term.equal && term.field == field);
        terms.map(|term| term.value.as_str()).min()
    }

    /// Whether one of the terms requires this value of the field.
    #[must_use]
    pub fn requires(&self, field: &str, value: &str) -> bool {
        self.terms.iter().any(|term| term.equal && term.field == field && term.value == value)
    }

    /// Adds the condition that a field has this value.
    pub fn require(&mut self, field: &str, value: &str) {
        self.terms.push(Term { field: field.to_owned(), value: value.to_owned(), equal: true });
    }

    /// The same comparisons with renamed fields.
    #[must_use]
    pub(crate) fn renamed<'a>(&'a self, name: impl Fn(&'a str) -> Cow<'a, str>) -> Self {
        let renamed = |term: &'a Term| Term { field: name(&term.field).into_owned(), ..term.clone() };
        Self { terms: self.terms.iter().map(renamed).collect() }
    }

    /// Whether the terms hold whose fields `of_interest` selects.
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

/// Escapes a value for a selector.
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
