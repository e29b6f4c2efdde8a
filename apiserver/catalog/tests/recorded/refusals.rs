//! Compares refusals, field by field, with those of the real server.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{causes, kind_of, with_definition};
use tombolo_apicore::kinds::{KindInfo, Kinds};
use tombolo_apicore::value::{items, text};

const REFUSALS: &str = include_str!("../../../fixtures/refusals.jsonl");

/// Refusals with a different message: the part of the real message that identifies them, and the reason.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("must validate one and only one schema", "a validator of ours names the object, not only the root"),
    ("Checked value must be of type integer", "the real server reports a wrong number twice"),
    ("error parsing regexp", "the text comes from another regular expression library"),
    ("\"Name\":\"v1\"", "the value is printed with the names of Go fields"),
];

/// Answers like the write path: code, message and causes.
fn answer(kinds: &Kinds, refusal: &Value) -> (u64, String, Value) {
    let body: Value = match &refusal["body"] {
        Value::String(raw) => serde_json::from_str(raw).unwrap(),
        body => body.clone(),
    };
    let kind = kind_of(kinds, &body);
    let raw = refusal["body"].as_str().map_or_else(|| body.to_string(), str::to_owned);
    let decoded = match kind.decode(raw.as_bytes()) {
        Ok(decoded) => decoded,
        Err(error) => return (400, error.to_string(), Value::Null),
    };
    if !decoded.strict.is_empty() {
        let version = &kind.resource.version;
        let text = decoded.strict.message();
        let message =
            format!("{} in version \"{version}\" cannot be handled as a {}: {text}", kind.kind, kind.kind);
        return (400, message, Value::Null);
    }
    validated(kind, decoded.object)
}

fn validated(kind: &KindInfo, mut object: Value) -> (u64, String, Value) {
    if kind.namespaced && text(&object, &["metadata", "namespace"]).is_empty() {
        object["metadata"]["namespace"] = "default".into();
    }
    kind.default(&mut object);
    kind.prepare_create(&mut object, Timestamp::UNIX_EPOCH);
    let errors = kind.validate_create(&object);
    if errors.is_empty() {
        return (201, "accepted".to_owned(), Value::Null);
    }
    (422, "invalid".to_owned(), causes(&errors))
}

fn sorted(causes: &Value) -> Vec<String> {
    let mut texts: Vec<String> = items(causes, &[]).iter().map(Value::to_string).collect();
    texts.sort();
    texts.dedup();
    texts
}

#[test]
fn refusals_are_worded_as_those_of_the_real_server() {
    let kinds = with_definition();
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in REFUSALS.lines() {
        let refusal: Value = serde_json::from_str(line).unwrap();
        let real = text(&refusal, &["message"]);
        count += 1;
        let (code, message, causes) = answer(&kinds, &refusal);
        if json!(code) != refusal["code"] {
            wrong.push(format!("code {code}, real {}: {real}\n   ours: {message}", refusal["code"]));
            continue;
        }
        if OTHER_WORDS.iter().any(|(part, _)| real.contains(part)) {
            continue;
        }
        if code == 400 && message != real {
            wrong.push(format!("ours {message}\n   real {real}"));
        }
        if code == 422 && sorted(&causes) != sorted(&refusal["causes"]) {
            wrong.push(format!("ours {causes}\n   real {}", refusal["causes"]));
        }
    }
    assert!(count >= 60, "{count} recorded refusals");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
