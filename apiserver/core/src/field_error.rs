//! Errors about single fields, in Kubernetes' wording.

use std::fmt;

use serde_json::Value;

use crate::gofmt::quoted;

/// Maximum number of causes in one answer, so that a hostile object cannot make a large answer.
pub const CAUSES_MAX: usize = 256;

/// Kind of a field error, as a reason of `metav1.StatusCause`. The set is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The field is required.
    Required,
    /// The value breaks a rule.
    Invalid,
    /// The value has a wrong JSON type.
    TypeInvalid,
    /// The value is not one of the supported ones.
    NotSupported,
    /// The value occurs twice.
    Duplicate,
    /// The field may not be set or changed.
    Forbidden,
    /// The value is too long.
    TooLong,
    /// Too many items.
    TooMany,
    /// The object that the field refers to does not exist.
    NotFound,
}

/// One field error.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    /// The kind of error.
    pub kind: ErrorKind,
    /// Path of the field, for example `spec.containers[0].image`.
    pub field: String,
    /// The value that was found; `None` where the message has none.
    pub value: Option<Value>,
    /// What is expected; may be empty.
    pub detail: String,
}

impl ErrorKind {
    /// The reason in `details.causes`.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::NotFound => "FieldValueNotFound",
        }
    }

    /// Whether a value with this error may not be what the rules of a definition are written for (`hasBlockingErr` of
    /// apiextensions).
    pub(crate) fn is_blocking(self) -> bool {
        matches!(
            self,
            Self::Required | Self::TypeInvalid | Self::NotSupported | Self::TooLong | Self::TooMany
        )
    }

    fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
        }
    }
}

impl FieldError {
    /// The field is required.
    #[must_use]
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Required, field: field.into(), value: None, detail: detail.into() }
    }

    /// The value breaks a rule.
    #[must_use]
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        let value = Some(value.into());
        Self { kind: ErrorKind::Invalid, field: field.into(), value, detail: detail.into() }
    }

    /// The value is not one of the supported ones.
    #[must_use]
    pub fn not_supported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> Self {
        let names: Vec<String> = supported.iter().map(|one| quoted(one)).collect();
        let detail = match names.is_empty() {
            true => String::new(),
            false => format!("supported values: {}", names.join(", ")),
        };
        Self { kind: ErrorKind::NotSupported, field: field.into(), value: Some(value.into()), detail }
    }

    /// The value occurs twice.
    #[must_use]
    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        let value = Some(value.into());
        Self { kind: ErrorKind::Duplicate, field: field.into(), value, detail: String::new() }
    }

    /// The field may not be set or changed.
    #[must_use]
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Forbidden, field: field.into(), value: None, detail: detail.into() }
    }

    /// The value is longer than `max` bytes.
    #[must_use]
    pub fn too_long(field: impl Into<String>, max: usize) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        let detail = format!("may not be more than {max} {unit}");
        Self { kind: ErrorKind::TooLong, field: field.into(), value: None, detail }
    }

    /// The list or map has more than `max` entries.
    #[must_use]
    pub fn too_many(field: impl Into<String>, actual: usize, max: usize) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {unit}");
        Self { kind: ErrorKind::TooMany, field: field.into(), value: Some(actual.into()), detail }
    }

    /// The message of the cause: the error without its field.
    #[must_use]
    pub fn body(&self) -> String {
        let mut out = self.kind.words().to_owned();
        match &self.value {
            None => {}
            Some(Value::String(text)) => {
                out.push_str(": ");
                out.push_str(&quoted(text));
            }
            Some(value) => {
                out.push_str(": ");
                out.push_str(&value.to_string());
            }
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// Joins several errors to one text, in the form of k8s.io/apimachinery's `Aggregate`: a single one stays as it is, and
/// duplicates are left out.
#[must_use]
pub fn aggregate(errors: impl IntoIterator<Item = String>) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in errors {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match texts.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}
