//! What an answer decides, apart from its texts.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

/// Code, reason, and the fields that are wrong.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// 0 if there is no answer.
    pub(crate) code: u16,
    pub(crate) reason: String,
    pub(crate) fields: BTreeSet<String>,
}

impl Verdict {
    pub(crate) fn of(code: u16, body: &Value) -> Self {
        let status = body["kind"] == "Status";
        let reason = body["reason"].as_str().filter(|_| status).unwrap_or_default().to_owned();
        let causes = body["details"]["causes"].as_array().filter(|_| status).into_iter().flatten();
        let fields = causes.filter_map(|cause| cause["field"].as_str().map(str::to_owned)).collect();
        Self { code, reason, fields }
    }
}

/// As lists of differences have it: `422 Invalid spec.a spec.b`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        let words = [&self.reason].into_iter().chain(&self.fields);
        words.filter(|word| !word.is_empty()).try_for_each(|word| write!(f, " {word}"))
    }
}

#[test]
fn a_verdict_has_no_texts() {
    let body = serde_json::json!({
        "kind": "Status", "reason": "Invalid", "message": "m",
        "details": {"causes": [{"field": "spec.b", "message": "x"}, {"field": "spec.a"}, {"field": "spec.a"}]},
    });
    assert_eq!(Verdict::of(422, &body).to_string(), "422 Invalid spec.a spec.b");
    let other = serde_json::json!({"kind": "Event", "reason": "Invalid"});
    assert_eq!(Verdict::of(201, &other).to_string(), "201");
}
