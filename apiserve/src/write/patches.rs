//! What patches and server-side applies make of an object.

use http::StatusCode;
use serde_json::Value;

use crate::backend::{PatchType, WriteRequest};
use crate::input;
use crate::kinds::KindInfo;
use crate::patch;
use crate::schema::decode::{self, DecodeError, Strict};
use crate::schema::gofmt;
use crate::schema::types::json_type;
use crate::status::{ApiError, Cause, Details};

use super::{Context, fields, meta};

/// What a patch makes of an object of a kind.
pub(super) fn patched(
    context: &mut Context<'_>,
    kind: &KindInfo,
    patch: PatchType,
    request: &WriteRequest,
    live: &Value,
) -> Result<Value, ApiError> {
    let (patched, strict) = change(kind, patch, &request.body, live)?;
    decode_patched(context, kind, patch, patched, strict)
}

/// The patched object as it comes, and what strict field validation finds in the patch itself.
fn change(kind: &KindInfo, patch: PatchType, body: &[u8], live: &Value) -> Result<(Value, Strict), ApiError> {
    let unreadable = |error: String| ApiError::bad_request(format!("error decoding patch: {error}"));
    if patch == PatchType::Json {
        let strict = decode::operations(body).map_err(unreadable)?;
        return Ok((patch::json_patch(live, body).map_err(|error| refused_patch(&error))?, strict));
    }
    let (mut document, strict) = decode::parse_untyped(body).map_err(unreadable)?;
    let outcome = match patch {
        PatchType::Merge => patch::merge_patch(live, &document),
        _ => {
            decode::settle_numbers(&mut document);
            patch::strategic_merge_patch(kind.schema(), live, &document)
        }
    };
    Ok((outcome.map_err(|error| refused_patch(&error))?, strict))
}

fn refused_patch(error: &patch::PatchError) -> ApiError {
    let message = error.to_string();
    match error.code() {
        // Without a reason, as kube-apiserver answers what its merge does not foresee.
        500 => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message),
        422 => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
            .with_details(Details::default()),
        413 => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message),
        _ => ApiError::bad_request(message),
    }
}

/// The outcome of a patch as an object of the kind.
fn decode_patched(
    context: &mut Context<'_>,
    kind: &KindInfo,
    patch: PatchType,
    patched: Value,
    strict: Strict,
) -> Result<Value, ApiError> {
    let shown = match patch {
        PatchType::Strategic => {
            gofmt::value(&serde_json::from_slice(&context.request.body).unwrap_or_default())
        }
        _ => patched.to_string(),
    };
    let invalid = |message: &str| {
        let message = format!("Invalid value: {shown:?}: {message}");
        ApiError::invalid("", "", "", vec![Cause::new("FieldValueInvalid", "patch", &message)])
    };
    let decoded = kind.decode_value(patched).map_err(|error| match error {
        DecodeError::WrongType { problem, .. } => invalid(&problem),
        DecodeError::OtherKind { found, .. } if kind.custom => super::other_kind(kind, &found, &context.name),
        error => invalid(&error.to_string()),
    })?;
    context.judge_strictness(&strict.then(decoded.strict), invalid)?;
    Ok(decoded.object)
}

/// A server-side apply: what is applied, and what it makes of the object.
pub(super) fn apply(
    context: &mut Context<'_>,
    kind: &KindInfo,
    live: Option<&Value>,
) -> Result<(Value, Value), ApiError> {
    let (applied, keys) = input::parse_yaml(&context.request.body)?;
    let applied = match applied {
        Value::Null => Value::Object(serde_json::Map::new()),
        Value::Object(_) => applied,
        other => {
            return Err(ApiError::bad_request(format!(
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into \
                 Go value of type map[string]interface {{}}",
                json_type(&other)
            )));
        }
    };
    if meta::get(&applied, "managedFields").is_some() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let merged = fields::apply(context, kind, live, &applied)?;
    context.judge_strictness(&keys, |_| {
        let found = keys.yaml_message();
        ApiError::bad_request(format!("error strict decoding YAML: error converting YAML to JSON: {found}"))
    })?;
    Ok((applied, merged))
}

/// The outcome of a server-side apply, whose fields were checked when it was merged.
pub(super) fn decode_merged(kind: &KindInfo, merged: Value) -> Result<Value, ApiError> {
    Ok(kind.decode_value(merged).map_err(|error| super::unreadable(&error))?.object)
}
