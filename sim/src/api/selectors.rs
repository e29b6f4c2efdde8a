//! Label and field selectors.

use serde_json::Value;

use super::kinds::KindKey;
use super::status::ApiStatus;

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelTerm {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

/// A field, whether it must be equal, and the value.
type FieldTerm = (String, bool, String);

/// What a list or watch selects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ObjectFilter {
    labels: Vec<LabelTerm>,
    fields: Vec<FieldTerm>,
}

impl ObjectFilter {
    /// Reads both selectors.
    ///
    /// # Errors
    /// 400 for a selector that cannot be read, or a field that the kind does not support.
    pub(super) fn parse(key: &KindKey, labels: &str, fields: &str) -> Result<Self, ApiStatus> {
        let labels = label_terms(labels)
            .map_err(|why| ApiStatus::bad_request(&format!("unable to parse requirement: {why}")))?;
        let fields = field_terms(fields)
            .ok_or_else(|| ApiStatus::bad_request("invalid selector: a requirement has no operator"))?;
        let unknown = fields.iter().find(|(field, ..)| !is_supported(key, field));
        if let Some((field, ..)) = unknown {
            return Err(ApiStatus::bad_request(&format!("field label not supported: {field}")));
        }
        Ok(Self { labels, fields })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let label = |key: &str| labels.get(key).and_then(Value::as_str);
        let by_labels = self.labels.iter().all(|term| match term {
            LabelTerm::In(key, values) => {
                label(key).is_some_and(|value| values.iter().any(|one| one == value))
            }
            LabelTerm::NotIn(key, values) => {
                label(key).is_none_or(|value| values.iter().all(|one| one != value))
            }
            LabelTerm::Exists(key) => labels.get(key).is_some(),
            LabelTerm::Absent(key) => labels.get(key).is_none(),
        });
        by_labels
            && self.fields.iter().all(|(field, equal, value)| (field_of(object, field) == *value) == *equal)
    }
}

/// The value that a field selector demands of a field.
pub(super) fn fixed_field(selector: &str, field: &str) -> Option<String> {
    let terms = field_terms(selector)?;
    terms.into_iter().find(|(name, equal, _)| name == field && *equal).map(|(.., value)| value)
}

fn label_terms(text: &str) -> Result<Vec<LabelTerm>, String> {
    let mut terms = Vec::new();
    for part in split_outside_parentheses(text) {
        let part = part.trim();
        if part.is_empty() {
            continue;
        }
        terms.push(label_term(part).ok_or_else(|| part.to_owned())?);
    }
    Ok(terms)
}

fn label_term(part: &str) -> Option<LabelTerm> {
    let key = |text: &str| {
        let text = text.trim();
        let valid = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b));
        (valid && !text.is_empty()).then(|| text.to_owned())
    };
    if let Some(absent) = part.strip_prefix('!') {
        return Some(LabelTerm::Absent(key(absent)?));
    }
    if let Some((head, values)) = part.split_once('(') {
        let values = values.strip_suffix(')')?.split(',').map(|value| value.trim().to_owned()).collect();
        let (name, operator) = head.trim().rsplit_once(char::is_whitespace)?;
        return match operator {
            "in" => Some(LabelTerm::In(key(name)?, values)),
            "notin" => Some(LabelTerm::NotIn(key(name)?, values)),
            _ => None,
        };
    }
    let value = |text: &str| vec![text.trim().to_owned()];
    if let Some((name, not)) = part.split_once("!=") {
        return Some(LabelTerm::NotIn(key(name)?, value(not)));
    }
    if let Some((name, is)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Some(LabelTerm::In(key(name)?, value(is)));
    }
    Some(LabelTerm::Exists(key(part)?))
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_u32);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// The terms of a field selector; none when one has no operator. A backslash escapes the next character of a value.
fn field_terms(text: &str) -> Option<Vec<FieldTerm>> {
    let mut terms = Vec::new();
    for part in split_unescaped(text) {
        if part.is_empty() {
            continue;
        }
        let (field, equal, value) = if let Some((field, value)) = part.split_once("!=") {
            (field, false, value)
        } else {
            let (field, value) = part.split_once("==").or_else(|| part.split_once('='))?;
            (field, true, value)
        };
        terms.push((field.to_owned(), equal, unescaped(value)));
    }
    Some(terms)
}

fn split_unescaped(text: &str) -> Vec<String> {
    let (mut parts, mut current, mut escaped) = (Vec::new(), String::new(), false);
    for letter in text.chars() {
        match letter {
            ',' if !escaped => parts.push(std::mem::take(&mut current)),
            letter => current.push(letter),
        }
        escaped = letter == '\\' && !escaped;
    }
    parts.push(current);
    parts
}

fn unescaped(value: &str) -> String {
    let (mut text, mut escaped) = (String::new(), false);
    for letter in value.chars() {
        if letter == '\\' && !escaped {
            escaped = true;
            continue;
        }
        text.push(letter);
        escaped = false;
    }
    text
}

/// Fields, besides name and namespace, that kinds support in selectors.
const FIELDS: [(&str, &[&str]); 8] = [
    (
        "pods",
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
    ),
    ("nodes", &["spec.unschedulable"]),
    ("secrets", &["type"]),
    ("services", &["spec.clusterIP", "spec.type"]),
    ("namespaces", &["status.phase"]),
    (
        "events",
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
    ),
    ("certificatesigningrequests", &["spec.signerName"]),
    ("resourceslices", &["spec.nodeName", "spec.driver"]),
];

fn is_supported(key: &KindKey, field: &str) -> bool {
    if matches!(field, "metadata.name" | "metadata.namespace") {
        return true;
    }
    let supported = FIELDS.iter().find(|(resource, _)| *resource == key.resource);
    supported.is_some_and(|(_, fields)| fields.contains(&field))
}

/// The value of a field as a text; empty when it is missing.
fn field_of(object: &Value, field: &str) -> String {
    let field = if field == "source" { "source.component" } else { field };
    let found = object.pointer(&format!("/{}", field.replace('.', "/")));
    match found {
        Some(Value::String(text)) => text.clone(),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
        // The field is a boolean that is left out when it is false.
        _ if matches!(field, "spec.unschedulable" | "spec.hostNetwork") => "false".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(labels: &str, fields: &str, object: &Value) -> bool {
        ObjectFilter::parse(&KindKey::new("", "pods"), labels, fields).expect("selectors").matches(object)
    }

    #[test]
    fn labels_are_selected_in_every_form() {
        let object = json!({"metadata": {"labels": {"a": "1", "b/c": ""}}});
        for (selector, expected) in [
            ("", true),
            ("a", true),
            ("!a", false),
            ("a=1,b/c", true),
            ("a==1", true),
            ("a!=1", false),
            ("x!=1", true),
            ("a in (0, 1)", true),
            ("a notin (0,1)", false),
            ("x notin (0,1),!y", true),
            ("b/c=", true),
            ("x=", false),
        ] {
            assert_eq!(selects(selector, "", &object), expected, "{selector}");
        }
        for bad in ["a in", "=1", "a~1", "a in (1"] {
            let refused = ObjectFilter::parse(&KindKey::new("", "pods"), bad, "").expect_err(bad);
            assert_eq!(refused.code, 400, "{bad}");
        }
    }

    #[test]
    fn fields_are_selected_and_unknown_ones_refused() {
        let object = json!({"metadata": {"name": "a,b"}, "spec": {"nodeName": "n"}, "status": {}});
        for (selector, expected) in [
            ("spec.nodeName=n", true),
            ("spec.nodeName!=", true),
            ("spec.nodeName!=n", false),
            ("status.phase=", true),
            ("metadata.name=a\\,b,spec.nodeName==n", true),
            ("spec.hostNetwork=false", true),
        ] {
            assert_eq!(selects("", selector, &object), expected, "{selector}");
        }
        for (resource, bad) in
            [("pods", "spec.containers=1"), ("configmaps", "data.a=1"), ("pods", "status.phase")]
        {
            let refused = ObjectFilter::parse(&KindKey::new("", resource), "", bad).expect_err(bad);
            assert_eq!(refused.code, 400, "{bad}");
        }
        assert_eq!(fixed_field("spec.nodeName=n", "spec.nodeName").as_deref(), Some("n"));
        assert_eq!(fixed_field("spec.nodeName!=n", "spec.nodeName"), None);
    }
}
