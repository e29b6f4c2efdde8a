//! Protobuf request bodies, which Go clients send for objects of built-in kinds.
//!
//! Such a body consists of four magic bytes and an envelope (`runtime.Unknown` of k8s.io/apimachinery) that holds the
//! version, the kind and the object's own message. It is converted to JSON on arrival, so that all other code reads one
//! form. Field numbers come from the table of facts; custom kinds have none and are refused, as in kube-apiserver.
//! Answers are JSON, which every client that sends protobuf accepts.

mod object;
mod reader;
mod scalar;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use serde_json::Value;

use self::object::object;
use self::reader::Reader;
use crate::kinds::{KindInfo, Kinds, type_name};
use crate::schema::Schema;
use crate::schema::decode::DecodeError;
use crate::status::ApiError;
use crate::value::to_bytes;

/// Media type of protobuf bodies.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Media type of a converted body.
const JSON: &str = "application/json";

/// The first bytes of every protobuf body.
const MAGIC: &[u8] = b"k8s\0";

/// Why bytes are not a valid message of the type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// The body or its envelope is empty.
    #[error("empty {0}")]
    Empty(&'static str),
    /// The magic bytes are missing.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Magic,
    /// The object's message is compressed or otherwise encoded, which no client does.
    #[error("unknown content encoding {0:?}")]
    Encoding(String),
    /// A length or number extends beyond the end.
    #[error("unexpected end of the message")]
    Truncated,
    /// A number has more than 64 bits.
    #[error("integer overflow")]
    Overflow,
    /// An invalid field number.
    #[error("illegal field number {0}")]
    Number(u64),
    /// A wire type that no field of Kubernetes uses.
    #[error("illegal wire type {0}")]
    WireType(u8),
    /// The wire type of a value does not match its field.
    #[error("wrong wire type")]
    OtherForm,
    /// Text that is not valid in JSON.
    #[error("text that is not UTF-8")]
    Utf8,
    /// A number or time that is not representable in JSON.
    #[error("a value out of range")]
    Range,
    /// Embedded JSON text is invalid.
    #[error("{0}")]
    Json(String),
    /// Messages are nested too deeply.
    #[error("messages nest deeper than {0} levels")]
    TooDeep(usize),
    /// The object would take too much memory.
    #[error("the message has more parts than are read here: send fewer fields and items")]
    TooLarge,
    /// The type has no protobuf form.
    #[error("a value without protobuf form")]
    Formless,
    /// A field of the message is malformed.
    #[error("field {path}: {problem}")]
    Field {
        /// JSON path of the field.
        path: String,
        /// The error; never itself a `Field`.
        problem: Box<Self>,
    },
}

impl Malformed {
    /// The same error, seen from the enclosing struct.
    fn below(self, name: &str) -> Self {
        match self {
            Self::Field { path, problem } => Self::Field { path: format!("{name}.{path}"), problem },
            problem => Self::Field { path: name.to_owned(), problem: Box::new(problem) },
        }
    }
}

/// The envelope of a body.
#[derive(Debug, Default, PartialEq, Eq)]
struct Envelope<'a> {
    api_version: &'a str,
    kind: &'a str,
    raw: &'a [u8],
    encoding: &'a str,
}

/// The expected content of a request body.
#[derive(Debug, Clone, Copy)]
pub enum Expected<'a> {
    /// An object of the kind, or of the kind that a subresource takes. The subresource is empty for the object itself.
    Object(&'a KindInfo, &'a str),
    /// `DeleteOptions`, which exist in every group version.
    DeleteOptions,
}

/// A body with its media type.
#[derive(Debug, Clone)]
pub struct Typed {
    /// Media type without parameters.
    pub media_type: String,
    /// The body itself.
    pub bytes: Bytes,
}

/// As [`to_json`], for bodies that must be objects or options: patches have media types of their own.
///
/// # Errors
/// As [`to_json`], and 415 for unknown media types.
pub(crate) fn object_to_json(body: Typed, expected: Expected<'_>, kinds: &Kinds) -> Result<Typed, ApiError> {
    let is_text = body.media_type != MEDIA_TYPE && !body.bytes.is_empty();
    if is_text && ExpectedMessage::of(expected, kinds).is_some() {
        crate::input::check_text(&body.media_type, MEDIA_TYPE)?;
    }
    to_json(body, expected, kinds)
}

/// Converts a protobuf body to JSON; bodies of other media types stay as they are.
///
/// # Errors
/// 415 when the kind has no protobuf form, 400 when the body is malformed or of another kind.
pub fn to_json(body: Typed, expected: Expected<'_>, kinds: &Kinds) -> Result<Typed, ApiError> {
    let no_options = body.bytes.is_empty() && matches!(expected, Expected::DeleteOptions);
    if body.media_type != MEDIA_TYPE || no_options {
        return Ok(body);
    }
    let value = parse(&body.bytes, expected, kinds)?;
    Ok(Typed { media_type: JSON.to_owned(), bytes: to_bytes(&value) })
}

/// Reads a whole protobuf body.
fn parse(body: &[u8], expected: Expected<'_>, kinds: &Kinds) -> Result<Value, ApiError> {
    let target = ExpectedMessage::of(expected, kinds)
        .ok_or_else(|| crate::input::unknown_format(&crate::input::TEXT))?;
    let envelope = open(body).map_err(|problem| {
        let kind = &target.kind;
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {problem}"
        ))
    })?;
    target.check(&envelope)?;
    let refuse = |problem: Malformed| {
        let kind = &target.kind;
        let version = &target.version;
        ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: proto: {problem}"
        ))
    };
    let mut map = object(&target.schema, envelope.raw).map_err(refuse)?;
    let api_version =
        if envelope.api_version.is_empty() { target.api_version() } else { envelope.api_version.to_owned() };
    map.insert("apiVersion".to_owned(), api_version.into());
    map.insert("kind".to_owned(), target.kind.as_str().into());
    Ok(Value::Object(map))
}

/// Extracts the envelope of a body.
fn open(body: &[u8]) -> Result<Envelope<'_>, Malformed> {
    if body.is_empty() {
        return Err(Malformed::Empty("data"));
    }
    let message = body.strip_prefix(MAGIC).ok_or(Malformed::Magic)?;
    if message.is_empty() {
        return Err(Malformed::Empty("body"));
    }
    let envelope = envelope(message)?;
    match envelope.encoding {
        "" => Ok(envelope),
        encoding => Err(Malformed::Encoding(encoding.to_owned())),
    }
}

fn envelope(message: &[u8]) -> Result<Envelope<'_>, Malformed> {
    let mut envelope = Envelope::default();
    let mut fields = Reader::new(message);
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => {
                let mut types = Reader::new(payload.bytes()?);
                while let Some((number, payload)) = types.next()? {
                    match number {
                        1 => envelope.api_version = payload.text()?,
                        2 => envelope.kind = payload.text()?,
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = payload.bytes()?,
            3 => envelope.encoding = payload.text()?,
            _ => {}
        }
    }
    Ok(envelope)
}

/// The type that a body must have.
struct ExpectedMessage {
    group: String,
    version: String,
    kind: String,
    schema: Schema,
    /// Whether any version is accepted.
    everywhere: bool,
}

impl ExpectedMessage {
    /// `None` when the type has no protobuf form.
    fn of(expected: Expected<'_>, kinds: &Kinds) -> Option<Self> {
        let (kind, subresource) = match expected {
            Expected::Object(kind, subresource) => (kind, subresource),
            Expected::DeleteOptions => {
                let schema = kinds.builtin_type("meta.v1.DeleteOptions")?;
                let (group, version) = (String::new(), "v1".to_owned());
                return Some(Self { group, version, kind: "DeleteOptions".into(), schema, everywhere: true });
            }
        };
        let below = kind.subresources.iter().find(|known| &*known.name == subresource);
        let (group, version, name) = match below {
            Some(below) => (&below.group, &below.version, &below.kind),
            None => (&kind.resource.group, &kind.resource.version, &kind.kind),
        };
        let schema = match kinds.by_kind(group, version, name) {
            Some(known) if known.custom => return None,
            Some(known) => known.schema().clone(),
            None => kinds.builtin_type(&type_name(group, version, name))?,
        };
        Some(Self {
            group: group.to_string(),
            version: version.to_string(),
            kind: name.to_string(),
            schema,
            everywhere: false,
        })
    }

    fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Refuses a body of another version or kind, with the same message as for JSON.
    fn check(&self, envelope: &Envelope<'_>) -> Result<(), ApiError> {
        let expected = self.api_version();
        let (api_version, kind) = (envelope.api_version, envelope.kind);
        let refusal = if !self.everywhere && !api_version.is_empty() && api_version != expected {
            DecodeError::OtherVersion { found: api_version.to_owned(), expected }
        } else if !kind.is_empty() && kind != self.kind {
            DecodeError::OtherKind {
                found: kind.to_owned(),
                version: self.version.clone(),
                expected: self.kind.clone(),
            }
        } else {
            return Ok(());
        };
        Err(ApiError::bad_request(refusal.to_string()))
    }
}
