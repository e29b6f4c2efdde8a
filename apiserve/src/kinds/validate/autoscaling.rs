//! Validation of HorizontalPodAutoscalers: bounds, the target, and metrics that a controller can read.

use serde_json::Value;

use super::super::value::{items, text};
use super::FieldError;

/// What each type of metric is described by.
const METRICS: [(&str, &str); 5] = [
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
    ("External", "external"),
];

/// Checks a spec (pkg/apis/autoscaling/validation).
pub(super) fn check(spec: &Value, errors: &mut Vec<FieldError>) {
    let lowest = spec["minReplicas"].as_i64();
    if let Some(lowest) = lowest.filter(|lowest| *lowest < 1) {
        errors.push(FieldError::invalid("spec.minReplicas", lowest, "must be greater than or equal to 1"));
    }
    let highest = spec["maxReplicas"].as_i64().unwrap_or_default();
    match highest {
        0 => errors.push(FieldError::required("spec.maxReplicas", "must be set and greater than 0")),
        ..0 => {
            errors.push(FieldError::invalid(
                "spec.maxReplicas",
                highest,
                "must be greater than or equal to 1",
            ));
        }
        _ => {}
    }
    if lowest.is_some_and(|lowest| highest < lowest) {
        let text = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid("spec.maxReplicas", highest, text));
    }
    reference(&spec["scaleTargetRef"], "spec.scaleTargetRef", errors);
    for (index, one) in items(spec, &["metrics"]).iter().enumerate() {
        metric(one, &format!("spec.metrics[{index}]"), errors);
    }
}

fn reference(reference: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for field in ["kind", "name"] {
        if text(reference, &[field]).is_empty() {
            errors.push(FieldError::required(format!("{path}.{field}"), ""));
        }
    }
}

fn metric(metric: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let kind = text(metric, &["type"]);
    if kind.is_empty() {
        errors.push(FieldError::required(format!("{path}.type"), "must specify a metric source type"));
        return;
    }
    let Some((_, field)) = METRICS.iter().find(|(known, _)| *known == kind) else {
        let known: Vec<&str> = METRICS.iter().map(|(known, _)| *known).collect();
        errors.push(FieldError::not_supported(format!("{path}.type"), kind, &known));
        return;
    };
    if !metric[*field].is_object() {
        let text = "must populate information for the given metric source";
        errors.push(FieldError::required(format!("{path}.{field}"), text));
    }
}
