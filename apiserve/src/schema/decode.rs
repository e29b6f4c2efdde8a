//! Decoding request bodies: duplicate fields, unknown fields and wrong types, worded as kube-apiserver words them.

mod parse;
mod walk;

use serde_json::Value;

use super::types::Place;
use super::{DEPTH_MAX, Schema};

/// How many unknown and duplicate fields are reported; kube-apiserver stops at the same number.
pub(crate) const STRICT_ERRORS_MAX: usize = 100;

/// A decoded object.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The object; fields that its type does not have are removed.
    pub object: Value,
    /// What strict field validation refuses and lax one warns about, for example `unknown field "spec.foo"`.
    pub strict: Vec<String>,
}

/// Why a body is not an object of the kind (400 BadRequest).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not JSON, or nested too deeply.
    #[error("couldn't get version/kind; json parse error: {0}")]
    Syntax(String),
    /// JSON, but not an object.
    #[error(
        "couldn't get version/kind; json parse error: json: cannot unmarshal {0} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
    )]
    NotAnObject(&'static str),
    /// The body says that it is of another version.
    #[error("the API version in the data ({found}) does not match the expected API version ({expected})")]
    OtherVersion {
        /// `apiVersion` of the body.
        found: String,
        /// `apiVersion` that the path asks for.
        expected: String,
    },
    /// The body says that it is of another kind.
    #[error("{found} in version \"{version}\" cannot be handled as a {expected}: unknown conversion")]
    OtherKind {
        /// `kind` of the body.
        found: String,
        /// Version of both.
        version: String,
        /// `kind` that the path asks for.
        expected: String,
    },
    /// A field has a value of a wrong type.
    #[error("{kind} in version \"{version}\" cannot be handled as a {kind}: {problem}")]
    WrongType {
        /// Kind of the object.
        kind: String,
        /// Version of the object.
        version: String,
        /// Which field, what was found and what is expected.
        problem: String,
    },
}

/// What a body should be.
pub(crate) struct Target<'a> {
    pub(crate) api_version: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) schema: &'a Schema,
}

/// The text of the refusal under strict field validation.
#[must_use]
pub fn strict_message(strict: &[String]) -> String {
    format!("strict decoding error: {}", strict.join(", "))
}

/// Parses JSON and remembers fields that come twice (the last one wins).
pub(crate) fn parse_json(body: &[u8]) -> Result<(Value, Vec<String>), DecodeError> {
    parse::parse(body).map_err(DecodeError::Syntax)
}

/// Decodes a parsed body.
pub(crate) fn decode(
    target: &Target<'_>,
    mut object: Value,
    mut strict: Vec<String>,
) -> Result<Decoded, DecodeError> {
    if depth_over(&object, DEPTH_MAX) {
        return Err(DecodeError::Syntax(format!("exceeded max depth of {DEPTH_MAX}")));
    }
    identify(target, &mut object)?;
    let mut walk = walk::Walk::new(&mut strict);
    walk.value(Place(Some(target.schema.cursor())), &mut object).map_err(|problem| {
        DecodeError::WrongType { kind: target.kind.to_owned(), version: target.version.to_owned(), problem }
    })?;
    // A field that is not known is reported as that alone, however often it comes.
    let unknown: Vec<String> =
        strict.iter().filter_map(|e| e.strip_prefix("unknown ")).map(str::to_owned).collect();
    strict.retain(|error| {
        error.strip_prefix("duplicate ").is_none_or(|field| !unknown.iter().any(|known| known == field))
    });
    strict.truncate(STRICT_ERRORS_MAX);
    Ok(Decoded { object, strict })
}

/// Whether a value nests deeper than `max`.
pub(crate) fn depth_over(value: &Value, max: usize) -> bool {
    match value {
        Value::Array(items) => max == 0 || items.iter().any(|item| depth_over(item, max - 1)),
        Value::Object(map) => max == 0 || map.values().any(|item| depth_over(item, max - 1)),
        _ => false,
    }
}

fn identify(target: &Target<'_>, object: &mut Value) -> Result<(), DecodeError> {
    let kind = super::types::json_type(object);
    let Value::Object(map) = object else { return Err(DecodeError::NotAnObject(kind)) };
    let said = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (found_version, found_kind) = (said("apiVersion"), said("kind"));
    if !found_version.is_empty() && found_version != target.api_version {
        return Err(DecodeError::OtherVersion {
            found: found_version,
            expected: target.api_version.to_owned(),
        });
    }
    if !found_kind.is_empty() && found_kind != target.kind {
        return Err(DecodeError::OtherKind {
            found: found_kind,
            version: target.version.to_owned(),
            expected: target.kind.to_owned(),
        });
    }
    map.insert("apiVersion".into(), target.api_version.into());
    map.insert("kind".into(), target.kind.into());
    Ok(())
}
