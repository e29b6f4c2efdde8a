//! The results of patches and server-side applies.

use http::StatusCode;
use serde_json::Value;

use crate::backend::{PatchType, WriteRequest};
use crate::gofmt;
use crate::input;
use crate::kinds::KindInfo;
use crate::patch;
use crate::schema::decode::{self, DecodeError, Strict};
use crate::status::{ApiError, Cause, Details};
use crate::value::json_type;

use super::{Context, fields, meta, naming};

/// Applies a patch to an object of a kind.
pub(super) fn patched(
    context: &mut Context<'_>,
    kind: &KindInfo,
    patch: PatchType,
    request: &WriteRequest,
    live: &Value,
) -> Result<Value, ApiError> {
    let (patched, strict) = change(kind, patch, &request.body, live)?;
    // Objects that the server wrote itself may be stored without a version.
    let unversioned = is_unversioned(&patched) && !is_unversioned(live);
    if unversioned && !kind.custom && patch != PatchType::Strategic {
        return Err(internal_type(context, &patched, strict));
    }
    decode_patched(context, kind, (patch, live), patched, strict)
}

/// The patched object before decoding, and the findings of strict field validation in the patch itself.
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
        // The Status has no reason, as in kube-apiserver's answer to unexpected merge errors.
        500 => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message),
        422 => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
            .with_details(Details::default()),
        413 => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message),
        _ => ApiError::bad_request(message),
    }
}

/// Decodes the result of a patch to an object of the kind.
fn decode_patched(
    context: &mut Context<'_>,
    kind: &KindInfo,
    (patch, live): (PatchType, &Value),
    patched: Value,
    strict: Strict,
) -> Result<Value, ApiError> {
    let body = &context.request.body;
    // Computed only for errors, because it is as large as the object.
    let shown = || match patch {
        PatchType::Strategic => gofmt::value(&serde_json::from_slice(body).unwrap_or_default()),
        _ => change(kind, patch, body, live).map(|(patched, _)| patched.to_string()).unwrap_or_default(),
    };
    let invalid = |message: &str| invalid_patch(&shown(), message);
    let decoded = kind.decode_value(patched).map_err(|error| match error {
        DecodeError::WrongType { problem, .. } => invalid(&problem),
        DecodeError::OtherVersion { found, .. } if kind.custom => {
            other_version(kind, &found, &context.name).unwrap_or_else(|problem| invalid(&problem))
        }
        DecodeError::OtherKind { found, .. } if kind.custom => super::other_kind(kind, &found, &context.name),
        error => invalid(&error.to_string()),
    })?;
    context.judge_strictness(&strict.then(decoded.strict), invalid)?;
    Ok(decoded.object)
}

/// Whether an object has no version; it may have a kind.
fn is_unversioned(object: &Value) -> bool {
    object.is_object() && (object["apiVersion"].is_null() || object["apiVersion"] == "")
}

/// The refusal of a patch that removes the version of a built-in object. kube-apiserver's decoder treats the result as
/// one of its internal types, whose fields have other names.
fn internal_type(context: &mut Context<'_>, patched: &Value, strict: Strict) -> ApiError {
    let members = patched.as_object().into_iter().flatten();
    let unknown = members.filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind"));
    let unknown = unknown.map(|(name, _)| format!("unknown field {name:?}")).collect();
    let refuse = |message: &str| invalid_patch(&patched.to_string(), message);
    let judged = context.judge_strictness(&strict.then(Strict::of_fields(unknown)), refuse);
    judged.err().unwrap_or_else(|| naming::nameless(&context.name))
}

/// 422 for an invalid result of a patch.
fn invalid_patch(shown: &str, message: &str) -> ApiError {
    let message = format!("Invalid value: {shown:?}: {message}");
    ApiError::invalid("", "", "", vec![Cause::new("FieldValueInvalid", "patch", &message)])
}

/// The refusal of a patch that changes the version of a custom object, or the error when that is not a valid version.
fn other_version(kind: &KindInfo, version: &str, name: &str) -> Result<ApiError, String> {
    let parts: Vec<&str> = version.split('/').collect();
    let group = match parts.as_slice() {
        [""] => {
            let message = "Object 'apiVersion' is missing in 'object has no apiVersion field'";
            return Ok(ApiError::internal(message));
        }
        [_] => "",
        [group, _] => group,
        _ => return Err(format!("unexpected GroupVersion string: {version}")),
    };
    let message = format!("Invalid value: {version:?}: must be {}", kind.api_version());
    let cause = Cause::new("FieldValueInvalid", "apiVersion", &message);
    Ok(ApiError::invalid(group, &kind.kind, name, vec![cause]))
}

/// A server-side apply: the applied configuration, and the resulting object.
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

/// Decodes the result of a server-side apply, whose fields were already checked by the merge.
pub(super) fn decode_merged(kind: &KindInfo, merged: Value) -> Result<Value, ApiError> {
    Ok(kind.decode_value(merged).map_err(|error| super::unreadable(&error))?.object)
}
