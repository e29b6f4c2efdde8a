//! The `metadata.resourceVersion` that the body of a write names: clients know local revisions, the cloud its own.

use bytes::Bytes;
use serde_json::Value;
use serde_json::json;

/// Where a JSON patch (RFC 6902) speaks of it.
const POINTER: &str = "/metadata/resourceVersion";

/// Where the options of a deletion name it.
const PRECONDITION: &str = "/preconditions/resourceVersion";

/// The revision that a write is based on; none when it names none, or is no JSON.
pub(super) fn named(body: &[u8]) -> Option<String> {
    let text = match serde_json::from_slice::<Value>(body).ok()? {
        Value::Array(operations) => {
            let mut speaking = operations.iter().filter(|operation| operation["path"] == POINTER);
            speaking.next()?["value"].as_str()?.to_owned()
        }
        object => {
            let place = object.pointer(POINTER).or_else(|| object.pointer(PRECONDITION));
            place?.as_str()?.to_owned()
        }
    };
    // Zero says that any version will do.
    (!matches!(text.as_str(), "" | "0")).then_some(text)
}

/// The body with another revision where it names one.
///
/// # Errors
/// When the body is no JSON.
pub(super) fn replaced(body: &[u8], revision: &str) -> Result<Bytes, String> {
    let mut value: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    match &mut value {
        Value::Array(operations) => {
            let speaking = operations.iter_mut().filter(|operation| operation["path"] == POINTER);
            speaking.for_each(|operation| operation["value"] = json!(revision));
        }
        object => {
            for pointer in [POINTER, PRECONDITION] {
                if let Some(place) = object.pointer_mut(pointer) {
                    *place = json!(revision);
                }
            }
        }
    }
    Ok(value.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_write_can_name_a_revision() {
        for (body, expected) in [
            (r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#, Some("7")),
            (r#"{"kind":"DeleteOptions","preconditions":{"resourceVersion":"7"}}"#, Some("7")),
            (r#"[{"op":"test","path":"/metadata/resourceVersion","value":"7"}]"#, Some("7")),
            (r#"{"metadata":{"resourceVersion":""}}"#, None),
            (r#"{"metadata":{"resourceVersion":"0"}}"#, None),
            (r#"{"metadata":{}}"#, None),
            (r#"[{"op":"add","path":"/metadata/labels/a","value":"b"}]"#, None),
            ("metadata:\n  resourceVersion: x", None),
            ("", None),
        ] {
            assert_eq!(named(body.as_bytes()).as_deref(), expected, "{body}");
            if expected.is_some() {
                let other = replaced(body.as_bytes(), "99").expect(body);
                assert_eq!(named(&other).as_deref(), Some("99"), "{body}");
            }
        }
        assert!(replaced(b"no json", "1").is_err());
    }
}
