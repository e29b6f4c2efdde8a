//! Rows of the kinds that create pods, and of budgets and quotas.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{age, containers, created, dated, human, labels, name, named, selector, shown_selector};
use crate::value::{at, int, items, text};

/// Rows of the groups apps, batch and policy, and of three kinds of the core group.
pub(super) fn workload(kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let status = |field: &str| json!(int(object, &["status", field]));
    let row = match kind {
        "Deployment" => {
            named(object, now, [ready(object), status("updatedReplicas"), status("availableReplicas")])
        }
        "ReplicaSet" | "ReplicationController" => {
            named(object, now, [json!(int(spec, &["replicas"])), status("replicas"), status("readyReplicas")])
        }
        "StatefulSet" => named(object, now, [ready(object)]),
        "DaemonSet" => named(
            object,
            now,
            [
                status("desiredNumberScheduled"),
                status("currentNumberScheduled"),
                status("numberReady"),
                status("updatedNumberScheduled"),
                status("numberAvailable"),
                json!(labels(at(spec, &["template", "spec", "nodeSelector"]))),
            ],
        ),
        "Job" => named(
            object,
            now,
            [json!(job_status(object)), json!(completions(object)), json!(job_duration(object, now))],
        ),
        "CronJob" => return cron_job(object, now),
        "PodTemplate" => {
            let (names, images) = containers(at(object, &["template", "spec"]));
            let labels = labels(at(object, &["template", "metadata", "labels"]));
            return vec![name(object), json!(names), json!(images), json!(labels)];
        }
        "ResourceQuota" => return quota(object, now),
        "PodDisruptionBudget" => {
            let cells =
                [limit(&spec["minAvailable"]), limit(&spec["maxUnavailable"]), status("disruptionsAllowed")];
            return named(object, now, cells);
        }
        "ControllerRevision" => {
            return named(object, now, [json!(controller(object)), json!(int(object, &["revision"]))]);
        }
        _ => return dated(object),
    };
    with_containers(kind, row, spec)
}

fn ready(object: &Value) -> Value {
    json!(format!("{}/{}", int(object, &["status", "readyReplicas"]), int(object, &["spec", "replicas"])))
}

/// Appends the columns of wide views.
fn with_containers(kind: &str, mut row: Vec<Value>, spec: &Value) -> Vec<Value> {
    let (names, images) = containers(at(spec, &["template", "spec"]));
    row.extend([json!(names), json!(images)]);
    match kind {
        "StatefulSet" => {}
        "ReplicationController" => row.push(json!(labels(&spec["selector"]))),
        "Deployment" => row.push(json!(selector(&spec["selector"]))),
        _ => row.push(json!(shown_selector(&spec["selector"]))),
    }
    row
}

fn has_condition(object: &Value, ty: &str) -> bool {
    items(object, &["status", "conditions"])
        .iter()
        .any(|condition| text(condition, &["type"]) == ty && text(condition, &["status"]) == "True")
}

fn job_status(job: &Value) -> &'static str {
    if has_condition(job, "Complete") {
        "Complete"
    } else if has_condition(job, "Failed") {
        "Failed"
    } else if !at(job, &["metadata", "deletionTimestamp"]).is_null() {
        "Terminating"
    } else if has_condition(job, "Suspended") {
        "Suspended"
    } else if has_condition(job, "FailureTarget") {
        "FailureTarget"
    } else if has_condition(job, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(job: &Value) -> String {
    let succeeded = int(job, &["status", "succeeded"]);
    match (at(job, &["spec", "completions"]).as_i64(), int(job, &["spec", "parallelism"])) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        _ => format!("{succeeded}/1"),
    }
}

fn job_duration(job: &Value, now: Timestamp) -> String {
    let time = |field: &str| text(job, &["status", field]).parse::<Timestamp>().ok();
    match time("startTime") {
        None => String::new(),
        Some(start) => {
            let end = time("completionTime").unwrap_or(now);
            human(end.as_second().saturating_sub(start.as_second()))
        }
    }
}

fn cron_job(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let last = match text(object, &["status", "lastScheduleTime"]) {
        "" => "<none>".to_owned(),
        time => age(time, now),
    };
    let suspend = match spec["suspend"].as_bool() {
        None => "<unset>",
        Some(true) => "True",
        Some(false) => "False",
    };
    let row = named(
        object,
        now,
        [
            json!(text(spec, &["schedule"])),
            json!(spec["timeZone"].as_str().unwrap_or("<none>")),
            json!(suspend),
            json!(items(object, &["status", "active"]).len()),
            json!(last),
        ],
    );
    with_containers("CronJob", row, at(spec, &["jobTemplate", "spec"]))
}

fn quota(object: &Value, now: Timestamp) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, hard) in at(object, &["status", "hard"]).as_object().into_iter().flatten() {
        let used = object["status"]["used"][resource].as_str().unwrap_or("0");
        let line = format!("{resource}: {used}/{}", hard.as_str().unwrap_or("0"));
        match resource.starts_with("limits.") {
            true => limits.push(line),
            false => requests.push(line),
        }
    }
    vec![name(object), json!(requests.join(", ")), json!(limits.join(", ")), json!(created(object, now))]
}

fn limit(value: &Value) -> Value {
    match value {
        Value::Null => json!("N/A"),
        Value::String(text) => json!(text),
        other => json!(other.to_string()),
    }
}

fn controller(object: &Value) -> String {
    let owners = items(object, &["metadata", "ownerReferences"]);
    let Some(owner) = owners.iter().find(|owner| owner["controller"] == true) else {
        return "<none>".to_owned();
    };
    let kind = text(owner, &["kind"]).to_lowercase();
    match text(owner, &["apiVersion"]).split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", text(owner, &["name"])),
        None => format!("{kind}/{}", text(owner, &["name"])),
    }
}
