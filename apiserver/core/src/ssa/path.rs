//! One step of a field path.

use std::fmt;

use serde_json::Value;

/// One step: a field, an item of an associative list by its keys, an item of a set, or an index.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Element {
    Field(String),
    /// The keys as a JSON object, sorted.
    Keys(String),
    /// The item as JSON.
    Item(String),
    Index(i64),
}

impl Element {
    pub(super) fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    /// The form of FieldsV1: `f:name`, `k:{…}`, `v:…`, `i:0`.
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Keys(json) => format!("k:{json}"),
            Self::Item(json) => format!("v:{json}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    /// Parses the form of FieldsV1; `None` when it is invalid.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let (tag, rest) = text.split_once(':')?;
        // JSON is parsed and written again, so that two spellings of one item are equal.
        let json = || serde_json::from_str::<Value>(rest).ok();
        Some(match tag {
            "f" => Self::Field(rest.to_owned()),
            "k" => Self::Keys(json().filter(Value::is_object)?.to_string()),
            "v" => Self::Item(json()?.to_string()),
            "i" => Self::Index(rest.parse().ok()?),
            _ => return None,
        })
    }
}

/// The form of messages: `.spec`, `[name="a"]`, `[="x"]`, `[0]`.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Item(json) => write!(f, "[={json}]"),
            Self::Index(index) => write!(f, "[{index}]"),
            Self::Keys(json) => {
                let keys: serde_json::Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
                let pairs: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                write!(f, "[{}]", pairs.join(","))
            }
        }
    }
}

/// The form of an object in messages: `namespace/name; group/version, Kind=Kind`.
pub(super) fn describe(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let of = group_version_kind(&text(&object["apiVersion"]), &text(&object["kind"]));
    format!("{}/{}; {of}", text(&metadata["namespace"]), text(&metadata["name"]))
}

/// The form of a type in messages: `group/version, Kind=Kind`, with an empty group for the core group.
pub(super) fn group_version_kind(api_version: &str, kind: &str) -> String {
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!("{slash}{api_version}, Kind={kind}")
}
