//! MetaServer records: a client's request is JSON, encoded as base64, inside JSON
//! (docs/reference/kubeedge.md#application-records).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::frame::body_json;
use crate::identifiers::Identifiers;

/// Members that hold the request.
pub(crate) const ASKED: [&str; 2] = ["Option", "ReqBody"];

/// Replaces recorded identifiers in a record's request by those of the run.
pub(crate) fn translate(identifiers: &Identifiers, record: &mut Value) {
    for member in ASKED {
        let Some(text) = record.get(member).and_then(Value::as_str) else { continue };
        let (Some(recorded), Some(mut asked)) = (body_json(text), opened(member, text)) else { continue };
        identifiers.translate_content(&mut asked);
        let asked = closed(asked);
        if asked != recorded {
            record[member] = STANDARD.encode(asked.to_string()).into();
        }
    }
}

/// The decoded content of a member. Versions of lists are left out: they count only in the recorded cluster, and a list
/// request without a version returns the newest list.
pub(crate) fn opened(member: &str, text: &str) -> Option<Value> {
    let mut asked = body_json(text)?;
    if member == "Option"
        && let Some(options) = asked.as_object_mut()
    {
        let version = options.get("resourceVersion").and_then(Value::as_str).unwrap_or_default();
        if !matches!(version, "" | "0") {
            options.remove("resourceVersion");
            options.remove("resourceVersionMatch");
        }
        if let Some(patch) = options.get("Data").and_then(Value::as_str).and_then(body_json) {
            options.insert("Data".to_owned(), patch);
        }
    }
    Some(asked)
}

/// Encodes the request as it is sent.
fn closed(mut asked: Value) -> Value {
    if let Some(patch) = asked.get_mut("Data").filter(|patch| !patch.is_string()) {
        *patch = STANDARD.encode(patch.to_string()).into();
    }
    asked
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identifiers::Sort;

    #[test]
    fn application_requests_use_the_names_of_the_run() {
        let mut identifiers = Identifiers::default();
        identifiers.pair(Sort::Uid, "", "r1", "l1").expect("new");
        identifiers.pair(Sort::Version, "r1", "5", "70").expect("new");
        let encode = |value: &Value| STANDARD.encode(value.to_string());
        let body = |uid: &str, version: &str| json!({"metadata": {"uid": uid, "resourceVersion": version}});
        let patch = |body: &Value| encode(&json!({"Name": "a", "Data": encode(body)}));
        let list = json!({"watch": true, "resourceVersion": "7", "resourceVersionMatch": "NotOlderThan"});
        for (member, recorded, wanted) in [
            ("ReqBody", encode(&body("r1", "5")), encode(&body("l1", "70"))),
            ("Option", patch(&body("r1", "5")), patch(&body("l1", "70"))),
            ("Option", encode(&list), encode(&json!({"watch": true}))),
            ("Option", encode(&json!({"b": 1, "a": 2})), encode(&json!({"b": 1, "a": 2}))),
            ("ReqBody", "no base64".to_owned(), "no base64".to_owned()),
        ] {
            let mut record = json!({member: recorded});
            translate(&identifiers, &mut record);
            assert_eq!(record[member], wanted);
        }
    }
}
