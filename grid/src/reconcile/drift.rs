//! Whether a child is still as its manifest wants it, by the rules of server-side apply.
//!
//! What the API server merges (structs, most maps, lists whose items have keys) may hold more than the manifest: those
//! parts belong to others. What it replaces as a whole (lists without keys, some maps and structs) belongs to the grid as a
//! whole: it must hold what the manifest states, in this order, and nothing besides.

use serde_json::{Map, Value};

use super::manifest::APPLIED;

#[cfg(test)]
mod tests;

/// Lists that are merged item by item: name of the field, keys of the items, what a key is when it is left out. A field of
/// two types has two rows.
const KEYED: [(&str, &[(&str, &str)]); 16] = [
    ("claims", &[("name", "")]),
    ("containers", &[("name", "")]),
    ("env", &[("name", "")]),
    ("ephemeralContainers", &[("name", "")]),
    ("hostAliases", &[("ip", "")]),
    ("imagePullSecrets", &[("name", "")]),
    ("initContainers", &[("name", "")]),
    ("ownerReferences", &[("uid", "")]),
    ("ports", &[("containerPort", ""), ("protocol", "TCP")]),
    ("ports", &[("port", ""), ("protocol", "TCP")]),
    ("resourceClaims", &[("name", "")]),
    ("schedulingGates", &[("name", "")]),
    ("topologySpreadConstraints", &[("topologyKey", ""), ("whenUnsatisfiable", "")]),
    ("volumeDevices", &[("devicePath", "")]),
    ("volumeMounts", &[("mountPath", "")]),
    ("volumes", &[("name", "")]),
];

/// Structs and maps that are replaced as a whole, and in them all that they hold, as in lists without keys.
const WHOLE: [&str; 12] = [
    "configMapKeyRef",
    "dataSource",
    "fieldRef",
    "fileKeyRef",
    "labelSelector",
    "nodePublishSecretRef",
    "nodeSelector",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "resourceFieldRef",
    "secretKeyRef",
    "secretRef",
    "selector",
];

/// Maps of texts, in which an empty text says something.
const TEXTS: [&str; 2] = ["nodeSelector", "matchLabels"];

/// What the API server adds to parts that are replaced as a whole: field and JSON text.
const DEFAULTS: [(&str, &str); 8] = [
    ("apiVersion", r#""v1""#),
    ("divisor", r#""0""#),
    ("expirationSeconds", "3600"),
    ("kind", r#""PersistentVolumeClaim""#),
    ("maxExpirationSeconds", "86400"),
    ("metadata", r#"{"creationTimestamp":null}"#),
    ("status", r#"{"phase":"Pending"}"#),
    ("volumeMode", r#""Filesystem""#),
];

/// Whether a child is as its manifest wants it: applying it would change nothing. A value that the API server writes in
/// another way, such as `1000m`, counts as a difference; applying it then is idle and harmless.
#[must_use]
pub fn is_applied(live: &Value, manifest: &Value) -> bool {
    live["metadata"]["annotations"][APPLIED] == manifest["metadata"]["annotations"][APPLIED]
        && ["metadata", "spec"].iter().all(|part| holds(part, &live[*part], &manifest[*part], Extra::Foreign))
}

/// What stands beside that which a manifest states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extra {
    /// Belongs to others.
    Foreign,
    /// Is a default of the API server, or a difference.
    Default,
    /// Is a difference.
    Difference,
}

/// Whether a field holds what is wanted of it. What is empty or zero may also be missing.
fn holds(field: &str, live: &Value, wanted: &Value, around: Extra) -> bool {
    match wanted {
        Value::Object(members) => {
            let Some(found) = live.as_object() else { return live.is_null() && members.is_empty() };
            let inside = beside(field, members, around);
            members.iter().all(|(name, value)| holds(name, &live[name], value, inside))
                && (inside == Extra::Foreign || found.iter().all(|one| is_meant(one, members, inside)))
        }
        Value::Array(items) => {
            let list = live.as_array().map_or(&[][..], Vec::as_slice);
            match keys(field, items).filter(|_| around == Extra::Foreign) {
                Some(keys) => holds_keyed(list, items, keys),
                None => {
                    let mut pairs = list.iter().zip(items);
                    list.len() == items.len()
                        && pairs.all(|(live, item)| holds("", live, item, Extra::Default))
                }
            }
        }
        Value::Null => true,
        Value::Bool(false) => live.is_null() || live == wanted,
        Value::Number(number) if number.as_i64() == Some(0) => live.is_null() || live == wanted,
        Value::String(text) if text.is_empty() => live.is_null() || live == wanted,
        _ => live == wanted,
    }
}

/// What members mean that an object has and its manifest does not state.
fn beside(field: &str, members: &Map<String, Value>, around: Extra) -> Extra {
    let is_selector_of_service = field == "selector" && members.values().all(Value::is_string);
    if TEXTS.contains(&field) || is_selector_of_service {
        return Extra::Difference;
    }
    if WHOLE.contains(&field) { Extra::Default } else { around }
}

/// Whether a member is stated, or may be there all the same.
fn is_meant(member: (&String, &Value), stated: &Map<String, Value>, extra: Extra) -> bool {
    let (name, value) = member;
    if stated.contains_key(name) {
        return true;
    }
    let is_default = || {
        let mut known = DEFAULTS.iter().filter(|(field, _)| field == name);
        is_empty(value)
            || known.any(|(_, text)| serde_json::from_str(text).is_ok_and(|default: Value| *value == default))
    };
    extra == Extra::Default && is_default()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

type Keys = [(&'static str, &'static str)];

/// The keys of the items of a list; none when it is replaced as a whole.
fn keys(field: &str, items: &[Value]) -> Option<&'static Keys> {
    let mut rows = KEYED.iter().filter(|(name, _)| *name == field).map(|(_, keys)| *keys);
    let has_key =
        |keys: &&Keys| keys.first().is_some_and(|(key, _)| items.iter().all(|item| !item[*key].is_null()));
    rows.find(has_key)
}

/// Whether each item is there, in this order. Others may have items before, between and behind them.
fn holds_keyed(list: &[Value], items: &[Value], keys: &Keys) -> bool {
    let key = |item: &Value| -> Vec<String> {
        let part = |(name, default): &(&str, &str)| match &item[*name] {
            Value::Null => Value::from(*default).to_string(),
            value => value.to_string(),
        };
        keys.iter().map(part).collect()
    };
    let mut rest = list.iter();
    items.iter().all(|item| {
        let wanted = key(item);
        let found = rest.find(|live| key(live) == wanted);
        found.is_some_and(|live| holds("", live, item, Extra::Foreign))
    })
}
