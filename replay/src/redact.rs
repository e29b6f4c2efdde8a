//! Removes secrets from what is recorded.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::frame::{Frame, body_json};

/// Annotation in which `kubectl apply` stores the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Replaces tokens and the values of Secrets by what `mask` returns for them. Equal values should get equal masks, so
/// that a change stays visible.
pub fn redact(frame: &mut Frame, mask: &dyn Fn(&str) -> String) {
    let is_secret = frame.key().is_some_and(|key| key.kind == "secret");
    if let Some(Value::String(token)) = frame.as_json_mut().pointer_mut("/request/caller_token")
        && !is_masked(token)
    {
        *token = mask(token);
    }
    let is_call = frame.is_tombolo() && frame.group() == "api";
    let Some(content) = frame.as_json_mut().get_mut("content") else { return };
    let of_secrets = content["Key"].as_str().is_some_and(|key| key.contains("/secrets/"));
    if is_secret {
        secret(content, mask);
        if let Some(body) = content.get_mut("body") {
            secret(body, mask);
        }
        if let Some(object) = content.get_mut("Object") {
            secret(object, mask);
        }
    }
    for body in ["RespBody", "ReqBody", "Option"] {
        let Some(Value::String(text)) = content.get_mut(body) else { continue };
        let Some(mut inner) = body_json(text) else { continue };
        if of_secrets {
            patch(&mut inner, mask);
        }
        walk(&mut inner, mask);
        *text = STANDARD.encode(inner.to_string());
    }
    if let Some(Value::String(body)) = content.get_mut("body").filter(|_| is_call)
        && !is_masked(body)
    {
        // Bytes that are not JSON can contain a Secret that cannot be found: none of them are kept.
        *body = STANDARD.encode(mask(body));
    }
    walk(content, mask);
}

/// Redacts the patch of a Secret in the options of a MetaServer request
/// (docs/reference/kubeedge.md#application-records).
fn patch(options: &mut Value, mask: &dyn Fn(&str) -> String) {
    let Some(Value::String(text)) = options.get_mut("Data") else { return };
    match body_json(text) {
        Some(mut inner @ Value::Object(_)) => {
            secret(&mut inner, mask);
            *text = STANDARD.encode(inner.to_string());
        }
        // A list of patch operations: none of their values is kept.
        _ if !is_masked(text) => *text = STANDARD.encode(mask(text)),
        _ => {}
    }
}

/// The same for an object of the Kubernetes API.
pub fn redact_object(object: &mut Value, mask: &dyn Fn(&str) -> String) {
    walk(object, mask);
}

fn walk(value: &mut Value, mask: &dyn Fn(&str) -> String) {
    match value.get("kind").and_then(Value::as_str) {
        Some("Secret") => secret(value, mask),
        Some("SecretList") => {
            let items = value.get_mut("items").and_then(Value::as_array_mut);
            items.into_iter().flatten().for_each(|item| secret(item, mask));
        }
        _ => {}
    }
    match value {
        Value::Object(members) => {
            for (name, value) in members.iter_mut() {
                match value {
                    Value::String(text) if is_token(name) && !text.is_empty() && !is_masked(text) => {
                        *text = mask(text);
                    }
                    value => walk(value, mask),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| walk(item, mask)),
        // Documents within texts, such as patches.
        Value::String(text) if text.starts_with('{') => {
            if let Ok(mut inner) = serde_json::from_str::<Value>(text) {
                let before = inner.clone();
                walk(&mut inner, mask);
                if inner != before {
                    *text = inner.to_string();
                }
            }
        }
        _ => {}
    }
}

fn is_token(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(name.as_str(), "token" | "authorization" | "bearertoken" | "password")
}

/// Whether a text was already masked: as a whole, or as a value of a Secret.
fn is_masked(text: &str) -> bool {
    text.starts_with("redacted-") || STANDARD.decode(text).is_ok_and(|bytes| bytes.starts_with(b"redacted-"))
}

fn secret(object: &mut Value, mask: &dyn Fn(&str) -> String) {
    // A JSON patch: a list of operations.
    for operation in object.as_array_mut().into_iter().flatten() {
        if let Some(value) = operation.get_mut("value").filter(|value| !value.as_str().is_some_and(is_masked))
        {
            *value = STANDARD.encode(mask(&value.to_string())).into();
        }
    }
    for (member, encoded) in [("data", true), ("stringData", false)] {
        let Some(values) = object.get_mut(member).and_then(Value::as_object_mut) else { continue };
        for value in values.values_mut() {
            if let Some(text) = value.as_str().filter(|text| !is_masked(text)) {
                let masked = mask(text);
                *value = if encoded { STANDARD.encode(masked).into() } else { masked.into() };
            }
        }
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redacted(content: &Value, resource: &str) -> String {
        let route = json!({"operation": "update", "resource": resource});
        let mut frame = Frame::new(json!({"header": {"msg_id": "a"}, "route": route, "content": content}));
        redact(&mut frame, &|text| format!("redacted-{}", text.len()));
        frame.as_json().to_string()
    }

    #[test]
    fn no_secret_remains_after_redaction() {
        let applied = json!({LAST_APPLIED: "{\"data\":{\"p\":\"aHVudGVyMg==\"}}"});
        let secret = json!({"kind": "Secret", "data": {"password": "aHVudGVyMg=="}, "stringData": {"q": "hunter2"},
            "metadata": {"annotations": applied}});
        let list = json!({"kind": "SecretList", "items": [{"data": {"p": "aHVudGVyMg=="}}]});
        let token = json!({"kind": "TokenRequest", "status": {"token": "hunter2"}});
        let bare = json!({"data": {"p": "aHVudGVyMg=="}});
        for (content, resource) in [
            (&secret, "n/secret/s"),
            (&bare, "n/secret/s"),
            (&json!({"Object": secret, "Err": null}), "n/secret/s"),
            (&token, "n/serviceaccounttoken/s"),
            (&json!({"RespBody": STANDARD.encode(list.to_string())}), "ignore/Application/ignore"),
            (&json!({"ReqBody": STANDARD.encode(secret.to_string())}), "null"),
            (&json!(token.to_string()), "n/podpatch/p"),
            (&json!({"data": "redacted-", "token": "hunter2"}), "n/secret/s"),
        ] {
            let text = redacted(content, resource);
            assert!(!text.contains("aHVudGVyMg") && !text.contains("hunter2"), "{text}");
            assert!(!text.contains("stringData\":null") && !text.contains("data\":null"), "{text}");
            let inner = content.get("RespBody").or_else(|| content.get("ReqBody"));
            if inner.is_none() {
                assert!(
                    text.contains("redacted-") || text.contains(&STANDARD.encode("redacted-12")),
                    "{text}"
                );
            }
        }
        for content in [json!("OK"), json!(null), json!([1]), json!({"Object": "x", "Err": null})] {
            assert!(redacted(&content, "n/secret/s").contains(&content.to_string()));
        }
        let map = redacted(&json!({"kind": "ConfigMap", "data": {"a": "b"}}), "n/configmap/c");
        assert!(map.contains("{\"a\":\"b\"}") && !map.contains("redacted"), "{map}");
    }
}
