//! Fields that the server writes into a status.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::qos::qos_class;
use tombolo_apicore::schema::format;
use tombolo_apicore::value::object_at;
use tombolo_apicore::value::{items, items_mut, text};

/// The status of a new object, if it has one.
pub(crate) fn initial(
    group_kind: (&str, &str),
    object: &Map<String, Value>,
    now: Timestamp,
) -> Option<Value> {
    match group_kind {
        ("", "Pod") => Some(pod_status(object, now)),
        ("", "Namespace") => Some(json!({"phase": "Active"})),
        ("", "PersistentVolume") => {
            Some(json!({"phase": "Pending", "lastPhaseTransitionTime": format::seconds(now)}))
        }
        ("", "PersistentVolumeClaim") => Some(json!({"phase": "Pending"})),
        // An APIService that this server serves itself is available at once.
        ("apiregistration.k8s.io", _) => {
            let local = object.get("spec").is_none_or(|spec| spec["service"].is_null());
            local.then(|| {
                json!({"conditions": [{
                    "type": "Available",
                    "status": "True",
                    "reason": "Local",
                    "message": "Local APIServices are always available",
                    "lastTransitionTime": format::seconds(now),
                }]})
            })
        }
        ("apiextensions.k8s.io", _) => {
            let versions = object.get("spec").map_or(&[][..], |spec| items(spec, &["versions"]));
            let stored = versions.iter().find(|version| version["storage"] == true);
            let status = |version: &Value| json!({"storedVersions": [text(version, &["name"])]});
            Some(stored.map_or_else(|| json!({}), status))
        }
        _ => None,
    }
}

/// A new pod is pending. If it has scheduling gates, a condition says so.
fn pod_status(pod: &Map<String, Value>, now: Timestamp) -> Value {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(spec)});
    if !items(spec, &["schedulingGates"]).is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null,
            "lastTransitionTime": format::seconds(now),
        }]);
    }
    status
}

/// Completes a status that a client writes (the status strategies of kube-apiserver).
pub(super) fn settle(
    group_kind: (&str, &str),
    subresource: &str,
    new: &mut Value,
    old: &Value,
    now: Timestamp,
) {
    match group_kind {
        ("", "Pod") => pod(new, old),
        ("", "PersistentVolume") => volume(new, old, now),
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            if subresource == "status" {
                keep_decisions(new, old);
            }
            stamp_conditions(new, old, now);
        }
        _ => {}
    }
}

/// Keeps fields that old kubelets do not know and so leave out of the status.
fn pod(new: &mut Value, old: &Value) {
    let Some(map) = new.as_object_mut() else { return };
    let status = object_at(map, "status");
    pod_addresses(status);
    for field in ["qosClass", "observedGeneration"] {
        let before = &old["status"][field];
        let absent = status.get(field).is_none_or(|value| value.is_null() || value == "" || value == 0);
        if absent && !before.is_null() {
            status.insert(field.to_owned(), before.clone());
        }
    }
    let before = items(old, &["status", "conditions"]);
    let mut used = vec![false; before.len()];
    for condition in items_mut(new, &["status", "conditions"]) {
        let same = |(at, other): &(usize, &Value)| !used[*at] && other["type"] == condition["type"];
        let Some((at, other)) = before.iter().enumerate().find(same) else { continue };
        used[at] = true;
        let absent = condition["observedGeneration"].as_i64().unwrap_or(0) == 0;
        if absent && !other["observedGeneration"].is_null() {
            condition["observedGeneration"] = other["observedGeneration"].clone();
        }
    }
}

/// Keeps the single address and the first one of the list equal. If they differ, the older field wins
/// (pkg/apis/core/v1/conversion.go).
fn pod_addresses(status: &mut Map<String, Value>) {
    let one = status.get("podIP").filter(|address| *address != "").cloned().unwrap_or_default();
    let first = status.get("podIPs").map(|list| list[0]["ip"].clone()).unwrap_or_default();
    if one.is_null() && !first.is_null() {
        status.insert("podIP".into(), first);
    } else if !one.is_null() && one != first {
        status.insert("podIPs".into(), json!([{ "ip": one }]));
    }
}

/// Sets the time of a volume's last phase change.
fn volume(new: &mut Value, old: &Value, now: Timestamp) {
    const WHEN: &str = "lastPhaseTransitionTime";
    let (before, changed) = (&old["status"][WHEN], old["status"]["phase"] != new["status"]["phase"]);
    let (absent, kept) = (new["status"][WHEN].is_null(), new["status"][WHEN] == *before);
    let Some(map) = new.as_object_mut() else { return };
    match changed {
        false if absent && !before.is_null() => {
            object_at(map, "status").insert(WHEN.to_owned(), before.clone());
        }
        true if absent || kept => {
            object_at(map, "status").insert(WHEN.to_owned(), format::seconds(now).into());
        }
        _ => {}
    }
}

/// Keeps conditions that approve or deny: only the approval subresource changes them. If one is added or removed,
/// validation decides.
fn keep_decisions(new: &mut Value, old: &Value) {
    for decision in ["Approved", "Denied"] {
        let of = |condition: &&Value| condition["type"] == decision;
        let before: Vec<&Value> = items(old, &["status", "conditions"]).iter().filter(of).collect();
        if items(new, &["status", "conditions"]).iter().filter(of).count() != before.len() {
            continue;
        }
        let after = items_mut(new, &["status", "conditions"]).iter_mut();
        for (condition, before) in after.filter(|condition| condition["type"] == decision).zip(before) {
            condition.clone_from(before);
        }
    }
}

/// Sets missing times of conditions.
fn stamp_conditions(new: &mut Value, old: &Value, now: Timestamp) {
    let now = Value::from(format::seconds(now));
    for condition in items_mut(new, &["status", "conditions"]) {
        if condition["lastUpdateTime"].is_null() {
            condition["lastUpdateTime"] = now.clone();
        }
        if condition["lastTransitionTime"].is_null() {
            let same = |other: &&Value| {
                other["type"] == condition["type"]
                    && other["status"] == condition["status"]
                    && !other["lastTransitionTime"].is_null()
            };
            let before = items(old, &["status", "conditions"]).iter().find(same);
            condition["lastTransitionTime"] =
                before.map_or(&now, |other| &other["lastTransitionTime"]).clone();
        }
    }
}
