//! The Table form: columns and cells of each built-in kind, as in `kubectl get`.

mod access;
mod autoscaling;
mod duration;
mod network;
mod nodes;
mod pods;
mod storage;
mod workloads;

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::{Value, json};

pub(crate) use self::duration::{age, human};
use crate::value::{at, items, text};

/// One column of the Table form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// OpenAPI type: `string`, `integer`, `number`, `boolean` or `date`.
    pub r#type: String,
    /// OpenAPI format; `name` marks the column that identifies the object.
    pub format: String,
    /// 0 for columns that are always shown, greater for those of wide views.
    pub priority: i32,
    /// Meaning of the column; may be empty.
    pub description: Cow<'static, str>,
}

/// Recorded from kube-apiserver by `cargo xtask facts`.
const TABLE: &str = include_str!("../../data/columns.txt");

/// The columns of a built-in kind; name and creation time when the table has none.
pub(crate) fn columns(group: &str, kind: &str) -> Vec<Column> {
    let group = if group.is_empty() { "-" } else { group };
    let special = TABLE.lines().find_map(|line| {
        let mut words = line.splitn(3, ' ');
        (words.next() == Some(group) && words.next() == Some(kind)).then(|| words.next()).flatten()
    });
    let plain = "Name|string|name|0;Created At|date||0";
    special.unwrap_or(plain).split(';').filter_map(column).collect()
}

fn column(text: &'static str) -> Option<Column> {
    let mut parts = text.split('|');
    let (name, ty, format) = (parts.next()?, parts.next()?, parts.next()?);
    let priority = parts.next()?.parse().ok()?;
    Some(Column {
        name: name.to_owned(),
        r#type: ty.to_owned(),
        format: format.to_owned(),
        priority,
        description: parts.next().map(description).unwrap_or_default(),
    })
}

/// The description with a number in the table.
fn description(number: &str) -> Cow<'static, str> {
    let json = TABLE.lines().find_map(|line| {
        let (own, json) = line.strip_prefix("text ")?.split_once(' ')?;
        (own == number).then_some(json)
    });
    // Borrowed from the binary where the JSON text has no escapes.
    let plain =
        json.and_then(|json| json.strip_prefix('"')?.strip_suffix('"')).filter(|text| !text.contains('\\'));
    match (plain, json) {
        (Some(plain), _) => Cow::Borrowed(plain),
        (None, Some(json)) => Cow::Owned(serde_json::from_str(json).unwrap_or_default()),
        (None, None) => Cow::Borrowed(""),
    }
}

/// The descriptions of the first and last columns of most kinds: the name and the age.
pub(crate) fn common_descriptions() -> (Cow<'static, str>, Cow<'static, str>) {
    let mut columns = columns("", "ServiceAccount").into_iter().map(|column| column.description);
    let name = columns.next().unwrap_or_default();
    (name, columns.next_back().unwrap_or_default())
}

/// The cells of one object of a built-in kind.
pub(crate) fn cells(group: &str, kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    match (group, kind) {
        ("", "Pod") => pods::pod(object, now),
        ("", "Node") => nodes::node(object, now),
        ("", "ConfigMap") => {
            named(object, now, [json!(entries(object, "data") + entries(object, "binaryData"))])
        }
        ("", "Secret") => {
            named(object, now, [json!(text(object, &["type"])), json!(entries(object, "data"))])
        }
        ("", "Namespace") => named(object, now, [json!(text(object, &["status", "phase"]))]),
        ("", "Event") | ("events.k8s.io", "Event") => nodes::event(object, now),
        ("", "Service") => network::service(object, now),
        ("", "Endpoints") => network::endpoints(object, now),
        ("", "ComponentStatus") => nodes::component_status(object),
        ("discovery.k8s.io", "EndpointSlice") => network::endpoint_slice(object, now),
        ("networking.k8s.io", _) => network::networking(kind, object, now),
        ("", "PersistentVolume" | "PersistentVolumeClaim") | ("storage.k8s.io", _) => {
            storage::storage(kind, object, now)
        }
        ("", "ReplicationController" | "PodTemplate" | "ResourceQuota")
        | ("apps" | "batch" | "policy", _) => workloads::workload(kind, object, now),
        ("autoscaling", _) => autoscaling::autoscaling(kind, object, now),
        ("", "LimitRange") => dated(object),
        ("", _) => named(object, now, []),
        ("coordination.k8s.io", "Lease") => {
            named(object, now, [json!(text(object, &["spec", "holderIdentity"]))])
        }
        _ => access::other(group, kind, object, now),
    }
}

/// Name, the given cells, age.
fn named<const N: usize>(object: &Value, now: Timestamp, cells: [Value; N]) -> Vec<Value> {
    let mut row = vec![name(object)];
    row.extend(cells);
    row.push(json!(created(object, now)));
    row
}

/// Name and creation time, which every object has.
fn dated(object: &Value) -> Vec<Value> {
    vec![name(object), at(object, &["metadata", "creationTimestamp"]).clone()]
}

fn name(object: &Value) -> Value {
    json!(text(object, &["metadata", "name"]))
}

fn created(object: &Value, now: Timestamp) -> String {
    age(text(object, &["metadata", "creationTimestamp"]), now)
}

fn entries(object: &Value, field: &str) -> usize {
    object[field].as_object().map_or(0, serde_json::Map::len)
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

/// Joins up to `max` items and states how many more there are.
fn shortened(list: &[String], max: usize) -> String {
    match list.len() {
        0 => "<unset>".to_owned(),
        n if n > max => format!("{} + {} more...", list[..max].join(","), n - max),
        _ => list.join(","),
    }
}

/// `key=value` pairs as the printers join them.
fn labels(map: &Value) -> String {
    let pairs: Vec<String> = map
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    match pairs.is_empty() {
        true => "<none>".to_owned(),
        false => pairs.join(","),
    }
}

/// A label selector in its text form; empty when it selects everything or is absent.
pub(crate) fn selector(selector: &Value) -> String {
    let mut terms: Vec<(String, String)> = Vec::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        terms.push((key.clone(), format!("{key}={}", value.as_str().unwrap_or_default())));
    }
    for expression in items(selector, &["matchExpressions"]) {
        let key = text(expression, &["key"]);
        let mut values: Vec<&str> = items(expression, &["values"]).iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        let term = match text(expression, &["operator"]) {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        };
        terms.push((key.to_owned(), term));
    }
    terms.sort();
    terms.into_iter().map(|(_, term)| term).collect::<Vec<_>>().join(",")
}

/// A selector as the printers show it: `<none>` when it selects everything or is absent.
fn shown_selector(value: &Value) -> String {
    or_none(&selector(value)).to_owned()
}

/// Names and images of a pod template's containers.
fn containers(pod_spec: &Value) -> (String, String) {
    let list = |key: &str| -> String {
        let all: Vec<&str> = items(pod_spec, &["containers"]).iter().map(|c| text(c, &[key])).collect();
        all.join(",")
    };
    (list("name"), list("image"))
}
