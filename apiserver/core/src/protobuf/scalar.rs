//! Values that are one scalar in JSON, some of which are messages in protobuf.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Number, Value};

use super::Malformed;
use super::reader::{Payload, Reader};
use crate::schema::format;
use crate::schema::types::StringKind;

/// Integers up to this magnitude are exact in 64-bit floating point.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// 32-bit integers are sent sign-extended to 64 bits; the upper bits are dropped, as Go does.
pub(super) fn integer(bits: u8, value: u64) -> Value {
    if bits == 32 { (value as i32).into() } else { (value as i64).into() }
}

/// A floating point number; integers are written without a fraction, as in Go's JSON.
pub(super) fn number(payload: Payload<'_>) -> Result<Value, Malformed> {
    let Payload::Fixed64(bits) = payload else { return Err(Malformed::OtherForm) };
    let value = f64::from_bits(bits);
    if value.fract() == 0.0 && value.abs() <= EXACT_MAX {
        return Ok((value as i64).into());
    }
    Number::from_f64(value).map(Value::Number).ok_or(Malformed::Range)
}

/// A string; null for a time that is not set.
pub(super) fn string(kind: StringKind, payload: Payload<'_>) -> Result<Value, Malformed> {
    Ok(match kind {
        StringKind::Plain => payload.text()?.into(),
        StringKind::Bytes => STANDARD.encode(payload.bytes()?).into(),
        StringKind::Time => time(payload.bytes()?)?.map_or(Value::Null, |t| format::seconds(t).into()),
        StringKind::MicroTime => time(payload.bytes()?)?.map_or(Value::Null, |t| format::micros(t).into()),
    })
}

/// A message of seconds and nanoseconds since 1970; an empty one is Go's zero time.
fn time(message: &[u8]) -> Result<Option<Timestamp>, Malformed> {
    if message.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut fields = Reader::new(message);
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => seconds = payload.varint()? as i64,
            2 => nanos = payload.varint()? as i32,
            _ => {}
        }
    }
    let time = Timestamp::new(seconds, nanos).map_err(|_| Malformed::Range)?;
    Ok(Some(time))
}

/// A message with one string in field 1.
pub(super) fn quantity(message: &[u8]) -> Result<Value, Malformed> {
    let mut text = "";
    let mut fields = Reader::new(message);
    while let Some((number, payload)) = fields.next()? {
        if number == 1 {
            text = payload.text()?;
        }
    }
    Ok(if text.is_empty() { "0".into() } else { text.into() })
}

/// A message of the selected type (0 for the number, 1 for the text), the number and the text.
pub(super) fn int_or_string(message: &[u8]) -> Result<Value, Malformed> {
    let (mut is_text, mut value, mut text) = (false, 0, "");
    let mut fields = Reader::new(message);
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => is_text = payload.varint()? != 0,
            2 => value = payload.varint()?,
            3 => text = payload.text()?,
            _ => {}
        }
    }
    Ok(if is_text { text.into() } else { integer(32, value) })
}

/// A message with JSON text in field 1; null when it is missing.
pub(super) fn json_text(message: &[u8]) -> Result<Value, Malformed> {
    let mut text: &[u8] = &[];
    let mut fields = Reader::new(message);
    while let Some((number, payload)) = fields.next()? {
        if number == 1 {
            text = payload.bytes()?;
        }
    }
    if text.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(text).map_err(|error| Malformed::Json(error.to_string()))
}
