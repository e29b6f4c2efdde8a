//! Records of MetaServer, the edge's local API.

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::Digest as _;

/// A record of MetaServer (docs/reference/kubeedge.md#application-records).
#[must_use]
pub fn application(node: &str, verb: &str, key: &str, option: &Value, body: Option<&Value>) -> Value {
    let base64 = |value: &Value| STANDARD.encode(value.to_string());
    let identity = format!("{node}{key}{verb}{option}{}", body.map(Value::to_string).unwrap_or_default());
    json!({
        "ID": hex::encode(sha2::Sha256::digest(identity)), "Key": key, "Verb": verb, "Nodename": node,
        "Option": base64(option), "ReqBody": body.map(base64), "Subresource": "", "RespBody": null,
        "Status": "InApplying", "Reason": "", "Error": {"ErrStatus": {"metadata": {}}},
        "Timestamp": "0001-01-01T00:00:00Z"
    })
}

/// The result in a record.
///
/// # Errors
/// When there is none.
pub fn application_result(record: &Value) -> Result<Value> {
    let body = record["RespBody"].as_str().with_context(|| format!("no result: {record}"))?;
    Ok(serde_json::from_slice(&STANDARD.decode(body)?)?)
}
