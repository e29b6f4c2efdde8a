//! Decodes request bodies: duplicate fields, unknown fields and wrong types, with the messages of kube-apiserver.

mod parse;
mod strict;
mod walk;

use serde_json::{Map, Number, Value};

use self::parse::Expected;
pub(crate) use self::strict::STRICT_ERRORS_MAX;
pub use self::strict::Strict;
use super::types::SchemaPosition;
use super::{DEPTH_MAX, Schema};

/// A decoded object.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The object, without the fields that its type does not have.
    pub object: Value,
    /// Findings that strict field validation refuses and `Warn` reports as warnings.
    pub strict: Strict,
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
    /// An object of a custom kind without `kind`; contains the object.
    #[error("Object 'Kind' is missing in '{0}'")]
    KindMissing(String),
    /// The body has another version.
    #[error("the API version in the data ({found}) does not match the expected API version ({expected})")]
    OtherVersion {
        /// `apiVersion` of the body.
        found: String,
        /// `apiVersion` that the path asks for.
        expected: String,
    },
    /// The body has another kind.
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
        /// Expected kind.
        kind: String,
        /// Expected version.
        version: String,
        /// The field, and the found and expected types.
        problem: String,
    },
}

/// The expected type of a body.
pub(crate) struct DecodeTarget<'a> {
    pub(crate) api_version: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) schema: &'a Schema,
}

impl DecodeTarget<'_> {
    fn position(&self) -> SchemaPosition<'_> {
        SchemaPosition(Some(self.schema.cursor()))
    }

    /// Every type of a custom resource has checks; built-in types have none.
    fn is_custom(&self) -> bool {
        self.position().node().checks.is_some()
    }
}

/// Parses and decodes a JSON body. Findings are in document order for built-in types; for custom resources all
/// duplicates come first, then the unknown fields by name.
pub(crate) fn decode(target: &DecodeTarget<'_>, body: &[u8]) -> Result<Decoded, DecodeError> {
    let expected = if target.is_custom() { Expected::Untyped } else { Expected::Typed(target.position()) };
    if body.trim_ascii().is_empty() {
        return Err(DecodeError::Syntax("unexpected end of JSON input".to_owned()));
    }
    let (object, found) = parse::parse(body, expected).map_err(DecodeError::Syntax)?;
    let decoded = decode_value(target, object)?;
    let found = Strict::of_fields(found);
    let strict = if target.is_custom() { found.then(decoded.strict) } else { found };
    Ok(Decoded { strict, ..decoded })
}

/// Decodes an already parsed body. Unknown fields are reported by name.
pub(crate) fn decode_value(target: &DecodeTarget<'_>, mut object: Value) -> Result<Decoded, DecodeError> {
    if depth_over(&object, DEPTH_MAX) {
        return Err(DecodeError::Syntax(format!("exceeded max depth of {DEPTH_MAX}")));
    }
    if target.is_custom() {
        settle_numbers(&mut object);
    }
    identify(target, &mut object)?;
    let mut walk = walk::Walk::default();
    walk.value(target.position(), &mut object).map_err(|problem| DecodeError::WrongType {
        kind: target.kind.to_owned(),
        version: target.version.to_owned(),
        problem,
    })?;
    Ok(Decoded { object, strict: Strict::of_fields(walk.into_unknown()) })
}

/// Parses JSON of unknown type, and reports duplicate fields.
pub(crate) fn parse_untyped(body: &[u8]) -> Result<(Value, Strict), String> {
    parse::parse(body, Expected::Untyped).map(|(value, found)| (value, Strict::of_fields(found)))
}

/// Unknown and duplicate fields in the operations of a JSON patch.
pub(crate) fn operations(patch: &[u8]) -> Result<Strict, String> {
    let (_, found) = parse::parse(patch, Expected::Operations)?;
    Ok(Strict::of_fields(found.iter().map(|field| format!("json patch {field}")).collect()))
}

/// Rewrites numbers as Go writes them after reading them without a known type. A client that expects integers does not
/// accept `2.0`.
pub(crate) fn settle_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(settled) = settled(number) {
                *number = settled;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle_numbers),
        Value::Object(map) => map.values_mut().for_each(settle_numbers),
        _ => {}
    }
}

/// The replacement of a number that is not a signed 64-bit integer: a floating point number with the fewest digits that
/// identify it. Without a fraction it is an integer for the next reader.
fn settled(number: &Number) -> Option<Number> {
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && number.as_i64().is_none())?;
    let text = float.to_string();
    let integer = text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from));
    integer.ok().or_else(|| Number::from_f64(float))
}

/// Whether a value is nested deeper than `max`.
pub(crate) fn depth_over(value: &Value, max: usize) -> bool {
    match value {
        Value::Array(items) => max == 0 || items.iter().any(|item| depth_over(item, max - 1)),
        Value::Object(map) => max == 0 || map.values().any(|item| depth_over(item, max - 1)),
        _ => false,
    }
}

fn identify(target: &DecodeTarget<'_>, object: &mut Value) -> Result<(), DecodeError> {
    if object.is_null() {
        if target.is_custom() {
            return Err(DecodeError::KindMissing(object.to_string()));
        }
        // A Go struct treats null as empty.
        *object = Value::Object(Map::new());
    }
    let kind = crate::value::json_type(object);
    let Value::Object(map) = object else { return Err(DecodeError::NotAnObject(kind)) };
    for key in ["apiVersion", "kind"] {
        if let Some(other) = map.get(key).filter(|value| !value.is_string() && !value.is_null()) {
            let found = crate::value::json_type(other);
            let problem =
                format!("json: cannot unmarshal {found} into Go struct field .{key} of type string");
            return Err(DecodeError::Syntax(problem));
        }
    }
    let said = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (found_version, found_kind) = (said("apiVersion"), said("kind"));
    if target.is_custom() && found_kind.is_empty() {
        return Err(DecodeError::KindMissing(Value::from(std::mem::take(map)).to_string()));
    }
    if (target.is_custom() || !found_version.is_empty()) && found_version != target.api_version {
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
