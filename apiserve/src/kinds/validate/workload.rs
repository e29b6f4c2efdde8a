//! Validation of the kinds that make pods.

use serde_json::Value;

use super::super::value::{at, int, items, text};
use super::{FieldError, IMMUTABLE, meta, names, pod, same};

/// Checks a kind of apps, batch, or a replication controller.
pub(super) fn create(kind: &str, object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    match kind {
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => {
            non_negative(spec, &["replicas", "minReadySeconds", "revisionHistoryLimit"], "spec", errors);
            selector(spec, kind, errors);
            let claims = items(spec, &["volumeClaimTemplates"]).iter();
            let claims: Vec<&str> = claims.map(|claim| text(claim, &["metadata", "name"])).collect();
            pod::template_with_claims(&spec["template"], "spec.template", &claims, errors);
            always(spec, errors);
            if kind == "Deployment" {
                deployment(spec, errors);
            }
        }
        "ReplicationController" => {
            non_negative(spec, &["replicas", "minReadySeconds"], "spec", errors);
            if spec["selector"].as_object().is_none_or(serde_json::Map::is_empty) {
                errors.push(FieldError::required("spec.selector", ""));
            }
            match spec["template"].is_object() {
                true => pod::template(&spec["template"], "spec.template", errors),
                false => errors.push(FieldError::required("spec.template", "")),
            }
        }
        "Job" => job(spec, "spec", errors),
        "CronJob" => cron_job(object, errors),
        "ControllerRevision" if int(object, &["revision"]) < 0 => {
            let text = "must be greater than or equal to 0";
            errors.push(FieldError::invalid("revision", object["revision"].clone(), text));
        }
        _ => {}
    }
}

/// Reports counts below zero.
pub(super) fn non_negative(of: &Value, fields: &[&str], path: &str, errors: &mut Vec<FieldError>) {
    for field in fields {
        if int(of, &[field]) < 0 {
            let text = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(format!("{path}.{field}"), of[*field].clone(), text));
        }
    }
}

fn selector(spec: &Value, kind: &str, errors: &mut Vec<FieldError>) {
    let selector = &spec["selector"];
    if !selector.is_object() {
        errors.push(FieldError::required("spec.selector", ""));
    }
    label_selector(selector, "spec.selector", errors);
    let empty = |key: &str| match &selector[key] {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    };
    if selector.is_object() && empty("matchLabels") && empty("matchExpressions") {
        let what = match kind {
            "DaemonSet" => "daemonset",
            "StatefulSet" => "statefulset",
            "ReplicaSet" => "replicaset",
            _ => "deployment",
        };
        let text = format!("empty selector is invalid for {what}");
        errors.push(FieldError::invalid("spec.selector", selector.clone(), text));
        return;
    }
    let labels = at(spec, &["template", "metadata", "labels"]);
    // Without a selector nothing is selected.
    if !selector.is_object() || !matches(selector, labels) {
        let shown = if labels.is_null() { Value::Null } else { labels.clone() };
        let text = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", shown, text));
    }
}

/// Checks the form of a label selector.
pub(super) fn label_selector(selector: &Value, path: &str, errors: &mut Vec<FieldError>) {
    meta::labels(&selector["matchLabels"], &format!("{path}.matchLabels"), errors);
    for (index, expression) in items(selector, &["matchExpressions"]).iter().enumerate() {
        let at = format!("{path}.matchExpressions[{index}]");
        let none = items(expression, &["values"]).is_empty();
        match text(expression, &["operator"]) {
            "In" | "NotIn" if none => {
                let text = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(format!("{at}.values"), text));
            }
            "Exists" | "DoesNotExist" if !none => {
                let text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(format!("{at}.values"), text));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let text = "not a valid selector operator";
                errors.push(FieldError::invalid(format!("{at}.operator"), other, text));
            }
        }
        let key = text(expression, &["key"]);
        for problem in names::qualified_name(key) {
            errors.push(FieldError::invalid(format!("{at}.key"), key, problem));
        }
    }
}

/// Whether a label selector selects labels.
fn matches(selector: &Value, labels: &Value) -> bool {
    let exact = selector["matchLabels"].as_object().into_iter().flatten();
    let by_label = exact.into_iter().all(|(key, value)| labels.get(key) == Some(value));
    let by_expression = items(selector, &["matchExpressions"]).iter().all(|expression| {
        let found = labels.get(text(expression, &["key"]));
        let listed = found.is_some_and(|value| items(expression, &["values"]).contains(value));
        match text(expression, &["operator"]) {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => found.is_some(),
            _ => found.is_none(),
        }
    });
    by_label && by_expression
}

fn always(spec: &Value, errors: &mut Vec<FieldError>) {
    let policy = text(spec, &["template", "spec", "restartPolicy"]);
    if matches!(policy, "OnFailure" | "Never") {
        errors.push(FieldError::not_supported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
}

fn deployment(spec: &Value, errors: &mut Vec<FieldError>) {
    let strategy = &spec["strategy"];
    match text(strategy, &["type"]) {
        "Recreate" if strategy["rollingUpdate"].is_object() => {
            let text = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden("spec.strategy.rollingUpdate", text));
        }
        "Recreate" => {}
        "RollingUpdate" => {
            let zero = |field: &str| {
                let value = at(strategy, &["rollingUpdate", field]);
                value.as_i64() == Some(0) || value == "0%"
            };
            if zero("maxUnavailable") && zero("maxSurge") {
                let value = at(strategy, &["rollingUpdate", "maxUnavailable"]).clone();
                let text = "may not be 0 when `maxSurge` is 0";
                let at = "spec.strategy.rollingUpdate.maxUnavailable";
                errors.push(FieldError::invalid(at, value, text));
            }
        }
        other => {
            errors.push(FieldError::not_supported(
                "spec.strategy.type",
                other,
                &["Recreate", "RollingUpdate"],
            ));
        }
    }
    let deadline = spec["progressDeadlineSeconds"].as_i64();
    if deadline.is_some_and(|deadline| deadline <= int(spec, &["minReadySeconds"])) {
        let text = "must be greater than minReadySeconds";
        let value = spec["progressDeadlineSeconds"].clone();
        errors.push(FieldError::invalid("spec.progressDeadlineSeconds", value, text));
    }
}

/// Pods of a Job with indexes that run side by side, at most.
const INDEXED_PARALLELISM_MAX: i64 = 100_000;

fn job(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let counts =
        ["parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"];
    non_negative(spec, &counts, path, errors);
    pod::template(&spec["template"], &format!("{path}.template"), errors);
    let policy = text(spec, &["template", "spec", "restartPolicy"]);
    if !matches!(policy, "OnFailure" | "Never") {
        let at = format!("{path}.template.spec.restartPolicy");
        match policy {
            "" | "Always" => errors.push(FieldError {
                detail: "valid values: \"OnFailure\", \"Never\"".to_owned(),
                ..FieldError::required(at, "")
            }),
            other => errors.push(FieldError::not_supported(at, other, &["OnFailure", "Never"])),
        }
    }
    if spec["completionMode"] == "Indexed" && !spec["completions"].is_number() {
        let text = "when completion mode is Indexed";
        errors.push(FieldError::required(format!("{path}.completions"), text));
    }
    if spec["completionMode"] == "Indexed" && int(spec, &["parallelism"]) > INDEXED_PARALLELISM_MAX {
        let text = format!(
            "must be less than or equal to {INDEXED_PARALLELISM_MAX} when completion mode is Indexed"
        );
        errors.push(FieldError::invalid(format!("{path}.parallelism"), spec["parallelism"].clone(), text));
    }
}

fn cron_job(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let schedule = text(spec, &["schedule"]);
    if schedule.is_empty() {
        errors.push(FieldError::required("spec.schedule", ""));
    } else if !schedule.starts_with('@') && schedule.split_whitespace().count() != 5 {
        let found = schedule.split_whitespace().count();
        let text = format!("expected exactly 5 fields, found {found}: [{schedule}]");
        errors.push(FieldError::invalid("spec.schedule", schedule, text));
    }
    if let Some(zone) = spec["timeZone"].as_str()
        && let Some(problem) = time_zone_problem(zone)
    {
        errors.push(FieldError::invalid("spec.timeZone", zone, problem));
    }
    let policy = text(spec, &["concurrencyPolicy"]);
    if !matches!(policy, "Allow" | "Forbid" | "Replace") {
        let words = ["Allow", "Forbid", "Replace"];
        errors.push(FieldError::not_supported("spec.concurrencyPolicy", policy, &words));
    }
    non_negative(
        spec,
        &["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"],
        "spec",
        errors,
    );
    // Names of jobs get a suffix of eleven characters and must stay labels.
    if text(object, &["metadata", "name"]).len() > 52 {
        let name = text(object, &["metadata", "name"]);
        errors.push(FieldError::invalid("metadata.name", name, "must be no more than 52 characters"));
    }
    job(at(spec, &["jobTemplate", "spec"]), "spec.jobTemplate.spec", errors);
}

/// What is wrong with the name of a time zone. A machine that has no time zones cannot tell those that exist.
fn time_zone_problem(zone: &str) -> Option<String> {
    if zone.is_empty() {
        return Some("timeZone must be nil or non-empty string".to_owned());
    }
    if zone.eq_ignore_ascii_case("Local") {
        let text = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        return Some(text.to_owned());
    }
    let known = jiff::tz::db();
    (!known.is_definitively_empty() && known.get(zone).is_err()).then(|| format!("unknown time zone {zone}"))
}

const STATEFUL_SET: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

/// Checks what an update changes.
pub(super) fn update(kind: &str, new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    match kind {
        "Deployment" | "ReplicaSet" | "DaemonSet" => same(new, old, &["spec", "selector"], errors),
        "StatefulSet" => stateful_set(new, old, errors),
        "Job" => job_update(new, old, errors),
        "ControllerRevision" => same(new, old, &["data"], errors),
        _ => {}
    }
}

fn stateful_set(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let free = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let fixed = |spec: &Value| {
        let mut spec = spec.clone();
        if let Value::Object(map) = &mut spec {
            map.retain(|key, _| !free.contains(&key.as_str()));
        }
        spec
    };
    if fixed(&new["spec"]) != fixed(&old["spec"]) {
        errors.push(FieldError::forbidden("spec", STATEFUL_SET));
    }
}

fn job_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let indexed = old["spec"]["completionMode"] == "Indexed";
    if !indexed {
        same(new, old, &["spec", "completions"], errors);
    }
    same(new, old, &["spec", "selector"], errors);
    // While a job is suspended its controller may still place the pods.
    if old["spec"]["suspend"] != true && new["spec"]["template"] != old["spec"]["template"] {
        let value = new["spec"]["template"].clone();
        errors.push(FieldError::invalid("spec.template", value, IMMUTABLE));
    }
    same(new, old, &["spec", "completionMode"], errors);
    same(new, old, &["spec", "podFailurePolicy"], errors);
    same(new, old, &["spec", "backoffLimitPerIndex"], errors);
}

#[cfg(test)]
mod tests {
    use super::time_zone_problem;

    #[test]
    fn time_zones_are_those_that_exist() {
        assert!(time_zone_problem("").is_some() && time_zone_problem("local").is_some());
        if !jiff::tz::db().is_definitively_empty() {
            assert_eq!(time_zone_problem("Europe/Berlin"), None);
            assert_eq!(time_zone_problem("bad-time-zone").unwrap(), "unknown time zone bad-time-zone");
        }
    }
}
