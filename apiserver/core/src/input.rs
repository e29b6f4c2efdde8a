//! Request bodies: media types, and parsing JSON or YAML within limits.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use crate::backend::PatchType;
use crate::schema::decode::Strict;
use crate::status::{ApiError, Details};

#[cfg(test)]
mod tests;
mod yaml;

/// Maximum nesting depth of YAML; serde_json has the same limit for JSON.
const DEPTH_MAX: usize = 128;

/// Media type of a body without its parameters, lower-case; empty when none is given.
#[must_use]
pub fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The kind of patch that a media type announces. Objects of `custom` kinds have no strategic merge.
///
/// # Errors
/// 415 for any other.
pub fn patch_type(content_type: &str, custom: bool) -> Result<PatchType, ApiError> {
    let all = [PatchType::Json, PatchType::Merge, PatchType::Strategic, PatchType::Apply];
    let mut known = all.into_iter().filter(|patch| !custom || *patch != PatchType::Strategic);
    known.clone().find(|patch| patch.media_type() == content_type).ok_or_else(|| match custom {
        true => unknown_format(&known.by_ref().map(PatchType::media_type).collect::<Vec<_>>()),
        // For built-in kinds, kube-apiserver already checks the media type in its routes.
        false => ApiError::unsupported_media_type("415: Unsupported Media Type".to_owned())
            .with_details(Details::default()),
    })
}

/// Media types of text bodies.
pub(crate) const TEXT: [&str; 2] = ["application/json", "application/yaml"];

/// 415 with the media types that are accepted.
pub(crate) fn unknown_format(accepted: &[&str]) -> ApiError {
    ApiError::unsupported_media_type(format!(
        "the body of the request was in an unknown format - accepted media types include: {}",
        accepted.join(", ")
    ))
}

/// Checks that a body is JSON or YAML, for a kind that `also` has another form.
///
/// # Errors
/// 415, which names the other form too.
pub(crate) fn check_text(content_type: &str, also: &str) -> Result<(), ApiError> {
    is_yaml(content_type).map(drop).map_err(|_| unknown_format(&[TEXT[0], TEXT[1], also]))
}

/// Whether a body of this media type is YAML.
///
/// # Errors
/// 415 for media types that are neither JSON nor YAML; no media type at all means JSON.
pub fn is_yaml(content_type: &str) -> Result<bool, ApiError> {
    match content_type {
        "" | "application/json" => Ok(false),
        "application/yaml" | "application/apply-patch+yaml" => Ok(true),
        _ => Err(unknown_format(&TEXT)),
    }
}

/// Parses a JSON or YAML body.
///
/// # Errors
/// 415 for other media types, 400 when the text is malformed or nests too deep.
pub fn parse(content_type: &str, body: &[u8]) -> Result<Value, ApiError> {
    if is_yaml(content_type)? {
        return parse_yaml(body).map(|(value, _)| value);
    }
    serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(format!("couldn't get version/kind; json parse error: {error}"))
    })
}

/// Parses YAML (which includes JSON). Aliases are resolved within a budget. Duplicate keys are left to field
/// validation; the last one wins.
///
/// # Errors
/// 400 when the text is malformed, nests too deep or expands too far.
pub fn parse_yaml(body: &[u8]) -> Result<(Value, Strict), ApiError> {
    let refuse = |why: String| ApiError::bad_request(format!("error converting YAML to JSON: {why}"));
    // JSON is far more frequent and far cheaper to parse; line numbers are needed only for duplicate keys.
    let starts_like_json = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    if starts_like_json
        && let Ok((value, duplicates)) = crate::schema::decode::parse_untyped(body)
        && duplicates.is_empty()
    {
        return Ok((value, duplicates));
    }
    let text = std::str::from_utf8(body).map_err(|error| refuse(error.to_string()))?;
    let (value, twice) = yaml::parse(text).map_err(refuse)?;
    Ok((value, Strict::of_keys(twice)))
}
