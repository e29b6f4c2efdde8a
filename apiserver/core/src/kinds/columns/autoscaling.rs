//! Rows of autoscalers and of the Scale.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{created, name, named, or_none};
use crate::value::{at, int, items, text};

/// Maximum number of metrics shown; for the others only their number is.
const METRICS_MAX: usize = 2;

const UNKNOWN: &str = "<unknown>";

pub(super) fn autoscaling(kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    if kind == "Scale" { scale(object, now) } else { autoscaler(object, now) }
}

fn scale(object: &Value, now: Timestamp) -> Vec<Value> {
    let count = |part: &str| json!(int(object, &[part, "replicas"]));
    vec![name(object), count("spec"), count("status"), json!(created(object, now))]
}

fn autoscaler(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let target = &spec["scaleTargetRef"];
    let reference = format!("{}/{}", text(target, &["kind"]), text(target, &["name"]));
    let minimum = spec["minReplicas"].as_i64().map_or_else(|| "<unset>".to_owned(), |n| n.to_string());
    named(
        object,
        now,
        [
            json!(reference),
            json!(or_none(&metrics(object))),
            json!(minimum),
            json!(int(spec, &["maxReplicas"])),
            json!(int(object, &["status", "currentReplicas"])),
        ],
    )
}

/// Every metric as `current/target`.
fn metrics(object: &Value) -> String {
    if let Some(target) = object["spec"]["targetCPUUtilizationPercentage"].as_i64() {
        let current = object["status"]["currentCPUUtilizationPercentage"].as_i64();
        let current = current.map_or_else(|| UNKNOWN.to_owned(), |n| format!("{n}%"));
        return format!("cpu: {current}/{target}%");
    }
    let specs = items(object, &["spec", "metrics"]);
    let statuses = items(object, &["status", "currentMetrics"]);
    let shown = specs.iter().take(METRICS_MAX).enumerate();
    let list: Vec<String> = shown.map(|(index, spec)| metric(spec, statuses.get(index))).collect();
    match specs.len().saturating_sub(METRICS_MAX) {
        0 => list.join(", "),
        more => format!("{} + {more} more...", list.join(", ")),
    }
}

fn metric(spec: &Value, status: Option<&Value>) -> String {
    let source = match text(spec, &["type"]) {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let target = &spec[source]["target"];
    let current = status.map_or(&Value::Null, |status| at(status, &[source, "current"]));
    let quantity = |metric: &Value, field: &str| metric[field].as_str().unwrap_or(UNKNOWN).to_owned();
    let average = target["averageValue"].is_string() || source == "pods";
    let both = |field: &str| format!("{}/{}", quantity(current, field), quantity(target, field));
    if matches!(source, "resource" | "containerResource") {
        let shown = if average { both("averageValue") } else { utilization(current, target) };
        return format!("{}: {shown}", text(&spec[source], &["name"]));
    }
    match (source, average) {
        ("pods", _) => both("averageValue"),
        (_, true) => format!("{} (avg)", both("averageValue")),
        (_, false) => both("value"),
    }
}

fn utilization(current: &Value, target: &Value) -> String {
    let percent = |metric: &Value| metric["averageUtilization"].as_i64().map(|n| format!("{n}%"));
    let (current, target) = (percent(current), percent(target));
    format!("{}/{}", current.as_deref().unwrap_or(UNKNOWN), target.as_deref().unwrap_or("<auto>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_shown_with_its_target() {
        let shown = |metrics: Value, status: Value| {
            super::metrics(&json!({"spec": {"metrics": metrics}, "status": {"currentMetrics": status}}))
        };
        let resource =
            |target: Value| json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        let external = |target: Value| json!({"type": "External", "external": {"target": target}});
        let pods = json!({"type": "Pods", "pods": {"target": {"averageValue": "1k"}}});
        for (metric, wanted) in [
            (resource(json!({"averageUtilization": 50})), "cpu: <unknown>/50%"),
            (resource(json!({"averageValue": "100Mi"})), "cpu: <unknown>/100Mi"),
            (resource(json!({})), "cpu: <unknown>/<auto>"),
            (external(json!({"averageValue": "30"})), "<unknown>/30 (avg)"),
            (external(json!({"value": "2k"})), "<unknown>/2k"),
            (pods.clone(), "<unknown>/1k"),
            (json!({"type": "Q"}), "<unknown type>"),
        ] {
            assert_eq!(shown(json!([metric]), Value::Null), wanted);
        }
        let status = json!([{"resource": {"current": {"averageUtilization": 7}}}, {"pods": {"current": {"averageValue": "9"}}}]);
        let three = json!([resource(json!({"averageUtilization": 50})), pods, pods]);
        assert_eq!(shown(three, status), "cpu: 7%/50%, 9/1k + 1 more...");
    }
}
