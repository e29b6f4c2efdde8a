//! Rows of nodes, events and component statuses.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{age, created, name, or_none};
use crate::value::{at, int, items, text};

/// Name, status, roles, age, version, addresses, system.
pub(super) fn node(node: &Value, now: Timestamp) -> Vec<Value> {
    let info = at(node, &["status", "nodeInfo"]);
    let known = |field: &str| match text(info, &[field]) {
        "" => "<unknown>".to_owned(),
        value => value.to_owned(),
    };
    let mut kernel = known("kernelVersion");
    if !text(info, &["architecture"]).is_empty() {
        kernel = format!("{kernel} ({})", text(info, &["architecture"]));
    }
    vec![
        name(node),
        json!(status(node)),
        json!(or_none(&roles(node))),
        json!(created(node, now)),
        json!(text(info, &["kubeletVersion"])),
        json!(address(node, "InternalIP")),
        json!(address(node, "ExternalIP")),
        json!(known("osImage")),
        json!(kernel),
        json!(known("containerRuntimeVersion")),
    ]
}

fn status(node: &Value) -> String {
    let ready =
        items(node, &["status", "conditions"]).iter().find(|condition| text(condition, &["type"]) == "Ready");
    let word = match ready {
        None => "Unknown",
        Some(condition) if text(condition, &["status"]) == "True" => "Ready",
        Some(_) => "NotReady",
    };
    match at(node, &["spec", "unschedulable"]) == &Value::Bool(true) {
        true => format!("{word},SchedulingDisabled"),
        false => word.to_owned(),
    }
}

fn roles(node: &Value) -> String {
    let mut roles = BTreeSet::new();
    for (key, value) in at(node, &["metadata", "labels"]).as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        match key.strip_prefix("node-role.kubernetes.io/") {
            Some("") => {}
            Some(role) => {
                roles.insert(role);
            }
            None if key == "kubernetes.io/role" && !value.is_empty() => {
                roles.insert(value);
            }
            None => {}
        }
    }
    roles.into_iter().collect::<Vec<_>>().join(",")
}

fn address<'a>(node: &'a Value, ty: &str) -> &'a str {
    let addresses = items(node, &["status", "addresses"]).iter();
    let mut found = addresses.filter(|address| text(address, &["type"]) == ty);
    found.next().map_or("<none>", |address| text(address, &["address"]))
}

/// Last seen, type, reason, object, subobject, source, message, first seen, count, name. Both Event kinds.
pub(super) fn event(event: &Value, now: Timestamp) -> Vec<Value> {
    let either = |core: &[&str], events: &[&str]| -> String {
        let value = text(event, core);
        if value.is_empty() { text(event, events).to_owned() } else { value.to_owned() }
    };
    let since = |time: &str| age(time, now);
    let first = match either(&["firstTimestamp"], &["deprecatedFirstTimestamp"]).as_str() {
        "" => since(text(event, &["eventTime"])),
        time => since(time),
    };
    let series = &event["series"];
    let last = match either(&["lastTimestamp"], &["deprecatedLastTimestamp"]).as_str() {
        _ if series.is_object() => since(text(series, &["lastObservedTime"])),
        "" => first.clone(),
        time => since(time),
    };
    let count = match series.is_object() {
        true => int(series, &["count"]),
        false => int(event, &["count"]).max(int(event, &["deprecatedCount"])).max(1),
    };
    let about = if event["regarding"].is_object() { &event["regarding"] } else { &event["involvedObject"] };
    let target = match (text(about, &["kind"]).to_lowercase(), text(about, &["name"])) {
        (kind, "") => kind,
        (kind, name) => format!("{kind}/{name}"),
    };
    vec![
        json!(last),
        json!(text(event, &["type"])),
        json!(text(event, &["reason"])),
        json!(target),
        json!(text(about, &["fieldPath"])),
        json!(event_source(event)),
        json!(either(&["message"], &["note"]).trim()),
        json!(first),
        json!(count),
        name(event),
    ]
}

fn event_source(event: &Value) -> String {
    let source =
        if event["deprecatedSource"].is_object() { &event["deprecatedSource"] } else { &event["source"] };
    let first = |paths: [&'static str; 2], own: &str| -> String {
        let candidates = [text(source, &[own]), text(event, &[paths[0]]), text(event, &[paths[1]])];
        candidates.into_iter().find(|text| !text.is_empty()).unwrap_or_default().to_owned()
    };
    let component = first(["reportingComponent", "reportingController"], "component");
    let instance = first(["reportingInstance", "reportingInstance"], "host");
    match instance.is_empty() {
        true => component,
        false => format!("{component}, {instance}"),
    }
}

/// Name, status, message, error.
pub(super) fn component_status(object: &Value) -> Vec<Value> {
    let healthy = items(object, &["conditions"]).iter().find(|c| text(c, &["type"]) == "Healthy");
    let word = match healthy {
        None => "Unknown",
        Some(condition) if text(condition, &["status"]) == "True" => "Healthy",
        Some(_) => "Unhealthy",
    };
    let part = |field: &str| healthy.map_or("", |condition| text(condition, &[field]));
    vec![name(object), json!(word), json!(part("message")), json!(part("error"))]
}
