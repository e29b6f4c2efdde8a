//! Defaults of the kinds that create pods.

use serde_json::{Map, Value, json};

use super::{pod, storage};
use tombolo_apicore::value::object_at;
use tombolo_apicore::value::{items_mut, or_default, or_insert};

/// Annotation in which DaemonSets of apps/v1 store the generation of their template.
pub(crate) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Defaults of a kind of the groups apps, batch and autoscaling.
pub(super) fn default(group_kind: (&str, &str), map: &mut Map<String, Value>) {
    match group_kind {
        ("apps", "Deployment") => deployment(object_at(map, "spec")),
        ("apps", "ReplicaSet") => {
            let spec = object_at(map, "spec");
            or_insert(spec, "replicas", 1);
            pod::template(object_at(spec, "template"));
        }
        ("apps", "StatefulSet") => stateful_set(object_at(map, "spec")),
        ("apps", "DaemonSet") => {
            daemon_set(object_at(map, "spec"));
            // The generation of the template was a field in older API versions.
            or_insert(object_at(object_at(map, "metadata"), "annotations"), TEMPLATE_GENERATION, "0");
        }
        ("batch", "Job") => {
            job(object_at(map, "spec"));
            labels_from_template(map);
        }
        ("batch", "CronJob") => cron_job(object_at(map, "spec")),
        ("autoscaling", "HorizontalPodAutoscaler") => {
            let first_version = map.get("apiVersion").is_some_and(|version| version == "autoscaling/v1");
            autoscaler(object_at(map, "spec"), first_version);
        }
        _ => {}
    }
}

/// The selector and the labels of a replication controller default to the labels of its template.
pub(super) fn replication_controller(map: &mut Map<String, Value>) {
    let spec = object_at(map, "spec");
    let labels = spec
        .get("template")
        .map(|template| template["metadata"]["labels"].clone())
        .filter(|labels| labels.as_object().is_some_and(|labels| !labels.is_empty()));
    or_insert(spec, "replicas", 1);
    if let Some(labels) = labels {
        if spec.get("selector").and_then(Value::as_object).is_none_or(Map::is_empty) {
            spec.insert("selector".into(), labels.clone());
        }
        let metadata = object_at(map, "metadata");
        if metadata.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty) {
            metadata.insert("labels".into(), labels);
        }
    }
    let spec = object_at(map, "spec");
    if spec.get("template").is_some_and(Value::is_object) {
        pod::template(object_at(spec, "template"));
    }
}

/// A job without labels gets those of its template.
fn labels_from_template(map: &mut Map<String, Value>) {
    let labels = map.get("spec").map(|spec| spec["template"]["metadata"]["labels"].clone());
    let metadata = object_at(map, "metadata");
    if let Some(labels) = labels.filter(Value::is_object)
        && metadata.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty)
    {
        metadata.insert("labels".into(), labels);
    }
}

fn deployment(spec: &mut Map<String, Value>) {
    or_insert(spec, "replicas", 1);
    or_insert(spec, "revisionHistoryLimit", 10);
    or_insert(spec, "progressDeadlineSeconds", 600);
    let strategy = object_at(spec, "strategy");
    or_insert(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = object_at(strategy, "rollingUpdate");
        or_default(rolling, "maxUnavailable", "25%");
        or_default(rolling, "maxSurge", "25%");
    }
    pod::template(object_at(spec, "template"));
}

fn stateful_set(spec: &mut Map<String, Value>) {
    or_insert(spec, "podManagementPolicy", "OrderedReady");
    or_insert(spec, "replicas", 1);
    or_insert(spec, "revisionHistoryLimit", 10);
    let strategy = object_at(spec, "updateStrategy");
    or_insert(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = object_at(strategy, "rollingUpdate");
        or_insert(rolling, "partition", 0);
    }
    let retention = object_at(spec, "persistentVolumeClaimRetentionPolicy");
    or_insert(retention, "whenDeleted", "Retain");
    or_insert(retention, "whenScaled", "Retain");
    pod::template(object_at(spec, "template"));
    for claim in spec.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten() {
        let Value::Object(claim) = claim else { continue };
        claim.insert("apiVersion".into(), "v1".into());
        claim.insert("kind".into(), "PersistentVolumeClaim".into());
        storage::claim(claim);
    }
}

fn daemon_set(spec: &mut Map<String, Value>) {
    or_insert(spec, "revisionHistoryLimit", 10);
    let strategy = object_at(spec, "updateStrategy");
    or_insert(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        let rolling = object_at(strategy, "rollingUpdate");
        or_default(rolling, "maxUnavailable", 1);
        or_default(rolling, "maxSurge", 0);
    }
    pod::template(object_at(spec, "template"));
}

fn job(spec: &mut Map<String, Value>) {
    if spec.get("completions").is_none_or(Value::is_null)
        && spec.get("parallelism").is_none_or(Value::is_null)
    {
        spec.insert("completions".into(), 1.into());
        spec.insert("parallelism".into(), 1.into());
    }
    or_insert(spec, "parallelism", 1);
    let indexed_limit = spec.get("backoffLimitPerIndex").is_some_and(Value::is_number);
    or_insert(spec, "backoffLimit", if indexed_limit { i64::from(i32::MAX) } else { 6 });
    or_default(spec, "completionMode", "NonIndexed");
    or_insert(spec, "suspend", false);
    or_insert(spec, "manualSelector", false);
    let failures = spec.get("podFailurePolicy").is_some_and(Value::is_object);
    or_default(spec, "podReplacementPolicy", if failures { "Failed" } else { "TerminatingOrFailed" });
    if let Some(policy) = spec.get_mut("podFailurePolicy") {
        for rule in items_mut(policy, &["rules"]) {
            for condition in items_mut(rule, &["onPodConditions"]) {
                if let Value::Object(condition) = condition {
                    or_insert(condition, "status", "True");
                }
            }
        }
    }
    pod::template(object_at(spec, "template"));
}

fn cron_job(spec: &mut Map<String, Value>) {
    or_insert(spec, "concurrencyPolicy", "Allow");
    or_insert(spec, "suspend", false);
    or_insert(spec, "successfulJobsHistoryLimit", 3);
    or_insert(spec, "failedJobsHistoryLimit", 1);
    let template = object_at(object_at(object_at(spec, "jobTemplate"), "spec"), "template");
    pod::template(template);
}

fn autoscaler(spec: &mut Map<String, Value>, first_version: bool) {
    or_insert(spec, "minReplicas", 1);
    let unset = spec.get("metrics").and_then(Value::as_array).is_none_or(Vec::is_empty);
    let old_target = spec.get("targetCPUUtilizationPercentage").is_some_and(Value::is_number);
    if first_version {
        or_insert(spec, "targetCPUUtilizationPercentage", 80);
    } else if unset && !old_target {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        spec.insert("metrics".into(), json!([metric]));
    }
    if let Some(Value::Object(behavior)) = spec.get_mut("behavior") {
        let policy = |kind: &str, value: i32| json!({"type": kind, "value": value, "periodSeconds": 15});
        let up = object_at(behavior, "scaleUp");
        or_insert(up, "stabilizationWindowSeconds", 0);
        or_default(up, "selectPolicy", "Max");
        or_insert(up, "policies", json!([policy("Pods", 4), policy("Percent", 100)]));
        let down = object_at(behavior, "scaleDown");
        or_default(down, "selectPolicy", "Max");
        or_insert(down, "policies", json!([policy("Percent", 100)]));
    }
}
