//! Label selectors: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.

use std::borrow::Cow;
use std::fmt;

use thiserror::Error;

use super::SELECTOR_LEN_MAX;
use crate::names;

/// An invalid label selector, with kube-apiserver's messages.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LabelSelectorError {
    /// An unexpected token within a requirement.
    #[error("unable to parse requirement: {0}")]
    Requirement(String),
    /// An unexpected token between requirements.
    #[error("found '{found}', expected: {expected}")]
    Between {
        /// The token that was found.
        found: String,
        /// The token that was expected.
        expected: &'static str,
    },
    /// The selector is too long.
    #[error("the label selector is longer than {SELECTOR_LEN_MAX} bytes")]
    TooLong,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

/// A conjunction of requirements.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// Parses a selector; an empty text selects everything.
    ///
    /// # Errors
    /// [`LabelSelectorError`] when it is invalid.
    pub fn parse(text: &str) -> Result<Self, LabelSelectorError> {
        if text.len() > SELECTOR_LEN_MAX {
            return Err(LabelSelectorError::TooLong);
        }
        let mut parser = Parser { tokens: tokens(text), at: 0 };
        let mut requirements = Vec::new();
        match parser.peek() {
            Token::End => return Ok(Self::default()),
            Token::Word(_) | Token::Sign("!") => {}
            other => {
                let found = other.text().to_owned();
                return Err(LabelSelectorError::Between {
                    found,
                    expected: "!, identifier, or 'end of string'",
                });
            }
        }
        loop {
            requirements.push(parser.requirement()?);
            match parser.next() {
                Token::End => return Ok(Self { requirements }),
                Token::Comma if !matches!(parser.peek(), Token::Word(_) | Token::Sign("!")) => {
                    let found = parser.peek().text().to_owned();
                    return Err(LabelSelectorError::Between { found, expected: "identifier after ','" });
                }
                Token::Comma => {}
                other => {
                    let found = other.text().to_owned();
                    return Err(LabelSelectorError::Between { found, expected: "',' or 'end of string'" });
                }
            }
        }
    }

    /// Whether there are no conditions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether labels, given by a lookup, satisfy all requirements.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<Cow<'a, str>>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = label(&requirement.key);
            let value = value.as_deref();
            let number = || value.and_then(|text| text.parse::<i64>().ok());
            match &requirement.test {
                Test::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
                Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
                Test::Above(limit) => number().is_some_and(|number| number > *limit),
                Test::Below(limit) => number().is_some_and(|number| number < *limit),
            }
        })
    }
}

impl fmt::Display for LabelSelector {
    /// Writes a normalized form: selectors with the same requirements have the same text.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, test }) in self.requirements.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match test {
                Test::In(values) => match values.as_slice() {
                    [value] => write!(out, "{comma}{key}={value}"),
                    values => write!(out, "{comma}{key} in ({})", values.join(",")),
                },
                Test::NotIn(values) => match values.as_slice() {
                    [value] => write!(out, "{comma}{key}!={value}"),
                    values => write!(out, "{comma}{key} notin ({})", values.join(",")),
                },
                Test::Exists => write!(out, "{comma}{key}"),
                Test::Absent => write!(out, "{comma}!{key}"),
                Test::Above(limit) => write!(out, "{comma}{key}>{limit}"),
                Test::Below(limit) => write!(out, "{comma}{key}<{limit}"),
            }?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Sign(&'static str),
    Comma,
    Open,
    Close,
    End,
}

impl Token<'_> {
    fn text(&self) -> &str {
        match self {
            Self::Word(word) => word,
            Self::Sign(sign) => sign,
            Self::Comma => ",",
            Self::Open => "(",
            Self::Close => ")",
            Self::End => "",
        }
    }
}

const SIGNS: [&str; 6] = ["!=", "==", "=", "!", ">", "<"];

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            ',' => (Token::Comma, 1),
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            _ => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => (Token::Sign(sign), sign.len()),
                None => {
                    let end = rest.find(|c| is_space(c) || "=!(),<>".contains(c)).unwrap_or(rest.len());
                    (Token::Word(&rest[..end]), end)
                }
            },
        };
        tokens.push(token);
        rest = rest[length..].trim_start_matches(is_space);
    }
    tokens.push(Token::End);
    tokens
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &Token<'a> {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, LabelSelectorError> {
        let absent = *self.peek() == Token::Sign("!");
        if absent {
            self.next();
        }
        let key = match self.next() {
            Token::Word(word) => word.to_owned(),
            other => return Err(expected(&other, "identifier")),
        };
        check_key(&key)?;
        if absent {
            return Ok(Requirement { key, test: Test::Absent });
        }
        let test = self.test(&key)?;
        Ok(Requirement { key, test })
    }

    fn test(&mut self, key: &str) -> Result<Test, LabelSelectorError> {
        match self.peek().clone() {
            Token::End | Token::Comma => Ok(Test::Exists),
            Token::Sign("=" | "==") => self.one_value(key).map(|value| Test::In(vec![value])),
            Token::Sign("!=") => self.one_value(key).map(|value| Test::NotIn(vec![value])),
            Token::Sign(">") => self.number(key).map(Test::Above),
            Token::Sign("<") => self.number(key).map(Test::Below),
            Token::Word("in") => self.values(key).map(Test::In),
            Token::Word("notin") => self.values(key).map(Test::NotIn),
            other => Err(expected(&other, "in, notin, =, ==, !=, gt, lt")),
        }
    }

    fn one_value(&mut self, key: &str) -> Result<String, LabelSelectorError> {
        self.next();
        match self.peek().clone() {
            Token::Word(word) => {
                self.next();
                check_value(key, word)?;
                Ok(word.to_owned())
            }
            // `a=` and `a=,b` compare with the empty value.
            Token::End | Token::Comma => Ok(String::new()),
            other => Err(expected(&other, "identifier")),
        }
    }

    fn number(&mut self, key: &str) -> Result<i64, LabelSelectorError> {
        let text = self.one_value(key)?;
        text.parse().map_err(|_| {
            let text = format!(
                "values[0]: Invalid value: {text:?}: for 'Gt', 'Lt' operators, the value must be an integer"
            );
            LabelSelectorError::Requirement(text)
        })
    }

    fn values(&mut self, key: &str) -> Result<Vec<String>, LabelSelectorError> {
        self.next();
        match self.next() {
            Token::Open => {}
            other => {
                return Err(LabelSelectorError::Requirement(format!(
                    "found '{}' expected: '('",
                    other.text()
                )));
            }
        }
        let mut values = Vec::new();
        loop {
            match self.next() {
                Token::Word(word) => {
                    check_value(key, word)?;
                    values.push(word.to_owned());
                    match self.next() {
                        Token::Comma if *self.peek() == Token::Close => values.push(String::new()),
                        Token::Comma => {}
                        Token::Close => return Ok(values),
                        other => return Err(expected(&other, "',' or ')'")),
                    }
                }
                Token::Comma => values.push(String::new()),
                Token::Close => {
                    if values.is_empty() {
                        values.push(String::new());
                    }
                    return Ok(values);
                }
                other => return Err(expected(&other, "',', ')' or identifier")),
            }
        }
    }
}

fn expected(found: &Token<'_>, expected: &str) -> LabelSelectorError {
    LabelSelectorError::Requirement(format!("found '{}', expected: {expected}", found.text()))
}

fn check_key(key: &str) -> Result<(), LabelSelectorError> {
    let problems = names::qualified_name(key);
    if problems.is_empty() {
        return Ok(());
    }
    let rule = problems.join("; ").replace("a qualified name", "a valid label key");
    Err(LabelSelectorError::Requirement(format!("<nil>: Invalid value: {key:?}: {rule}")))
}

fn check_value(key: &str, value: &str) -> Result<(), LabelSelectorError> {
    let problems = names::label_value(value);
    if problems.is_empty() {
        return Ok(());
    }
    let rule = problems.join("; ");
    Err(LabelSelectorError::Requirement(format!("values[0][{key}]: Invalid value: {value:?}: {rule}")))
}
