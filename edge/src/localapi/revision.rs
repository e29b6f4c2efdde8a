//! Translates the `metadata.resourceVersion` in the body of a write: clients use local versions, the cloud its own.

use bytes::Bytes;
use serde_json::Value;

/// Its path in a JSON patch (RFC 6902).
const POINTER: &str = "/metadata/resourceVersion";

/// Its path in the options of a deletion.
const PRECONDITION: &str = "/preconditions/resourceVersion";

/// The body of a write that names the version that it is based on.
#[derive(Debug, PartialEq)]
pub(super) struct Based {
    body: Value,
    /// The version as the client sent it.
    pub(super) revision: String,
}

impl Based {
    /// None when the body names no version or is not JSON.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let mut body: Value = serde_json::from_slice(body).ok()?;
        let revision =
            revision_fields(&mut body).into_iter().find_map(|field| field.as_str().map(str::to_owned))?;
        // Zero matches any version.
        (!matches!(revision.as_str(), "" | "0")).then_some(Self { body, revision })
    }

    /// The body with another version.
    pub(super) fn on(mut self, revision: &str) -> Bytes {
        revision_fields(&mut self.body).into_iter().for_each(|field| *field = revision.into());
        self.body.to_string().into()
    }
}

/// The places where a body names a version.
fn revision_fields(body: &mut Value) -> Vec<&mut Value> {
    if let Value::Array(operations) = body {
        let speaking = operations.iter_mut().filter(|operation| operation["path"] == POINTER);
        return speaking.filter_map(|operation| operation.get_mut("value")).collect();
    }
    let pointer = if body.pointer(POINTER).is_some() { POINTER } else { PRECONDITION };
    body.pointer_mut(pointer).into_iter().collect()
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
            let based = Based::read(body.as_bytes());
            assert_eq!(based.as_ref().map(|based| based.revision.as_str()), expected, "{body}");
            if let Some(based) = based {
                let other = Based::read(&based.on("99")).expect(body);
                assert_eq!(other.revision, "99", "{body}");
            }
        }
    }
}
