//! Conversion between the served and the stored version of objects.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use tombolo_proto::object::Resource;

/// Fields of core/v1 Event (left) and events.k8s.io/v1 Event (right) that differ only in name.
const EVENT_FIELDS: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Rewrites `object` from one version to another of the same kind.
pub(crate) fn convert(object: &mut Value, from: &Resource, to: &Resource) {
    if from == to {
        return;
    }
    let Value::Object(map) = object else { return };
    let api_version = match &*to.group {
        "" => to.version.to_string(),
        group => format!("{group}/{}", to.version),
    };
    map.insert("apiVersion".into(), api_version.into());
    match (&*from.name, &*from.group, &*to.group) {
        ("events", "", _) => rename(map, |names| names),
        ("events", "events.k8s.io", _) => {
            rename(map, |(core, events)| (events, core));
            // The core type writes these even when they are empty.
            for (key, value) in
                [("source", json!({})), ("reportingComponent", json!("")), ("reportingInstance", json!(""))]
            {
                map.entry(key).or_insert(value);
            }
            for key in ["firstTimestamp", "lastTimestamp"] {
                map.entry(key).or_insert(Value::Null);
            }
        }
        ("horizontalpodautoscalers", ..) => {
            autoscaler(map, &to.version);
            autoscaler_status(map, &to.version);
        }
        _ => {}
    }
}

/// The stored name of a field that a selector names.
pub(crate) fn stored_field<'a>(field: &'a str, served: &Resource, stored: &Resource) -> Cow<'a, str> {
    if (&*served.name, &*served.group, &*stored.group) != ("events", "events.k8s.io", "") {
        return Cow::Borrowed(field);
    }
    let (first, rest) = field.split_at(field.find('.').unwrap_or(field.len()));
    match EVENT_FIELDS.iter().find(|(_, own)| *own == first) {
        Some((core, _)) => Cow::Owned(format!("{core}{rest}")),
        None => Cow::Borrowed(field),
    }
}

type FieldNamePair = (&'static str, &'static str);

fn rename(map: &mut Map<String, Value>, direction: impl Fn(FieldNamePair) -> FieldNamePair) {
    for names in EVENT_FIELDS {
        let (from, to) = direction(*names);
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}

/// autoscaling/v1 knows one metric, the CPU utilization; v2 has a list. v1 does not show other metrics.
fn autoscaler(map: &mut Map<String, Value>, to: &str) {
    let spec = crate::value::object_at(map, "spec");
    let is_cpu = |metric: &Value| metric["resource"]["name"] == "cpu";
    if to == "v2" {
        if let Some(target) = spec.remove("targetCPUUtilizationPercentage") {
            let target = json!({"type": "Utilization", "averageUtilization": target});
            spec.insert(
                "metrics".into(),
                json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]),
            );
        }
    } else if let Some(Value::Array(metrics)) = spec.remove("metrics") {
        let target = metrics.iter().find(|metric| is_cpu(metric));
        let target = target.map(|metric| metric["resource"]["target"]["averageUtilization"].clone());
        if let Some(target) = target.filter(Value::is_number) {
            spec.insert("targetCPUUtilizationPercentage".into(), target);
        }
        spec.remove("behavior");
    }
}

/// Each version writes different fields of the observed state even when they are empty.
fn autoscaler_status(map: &mut Map<String, Value>, to: &str) {
    let Some(Value::Object(status)) = map.get_mut("status") else { return };
    if to == "v2" {
        status.entry("currentMetrics").or_insert(Value::Null);
        if status.get("currentReplicas") == Some(&json!(0)) {
            status.remove("currentReplicas");
        }
    } else {
        status.remove("currentMetrics");
        status.entry("currentReplicas").or_insert(json!(0));
    }
}
