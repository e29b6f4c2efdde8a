//! The row of a pod: its status column condenses phase, conditions and container states to one term.

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{age, created, name, or_none};
use crate::value::{at, int, items, text};

/// Name, ready, status, restarts, age, IP, node, nominated node, readiness gates.
pub(super) fn pod(pod: &Value, now: Timestamp) -> Vec<Value> {
    let sidecars = sidecars(pod);
    let total = items(pod, &["spec", "containers"]).len() + sidecars.len();
    let mut summary = Summary { reason: base_reason(pod), ..Summary::default() };
    let initializing = summary.init_containers(pod, &sidecars);
    if !initializing || has_condition(pod, "Initialized") {
        summary.containers(pod);
    }
    let reason = match at(pod, &["metadata", "deletionTimestamp"]) {
        Value::Null => summary.reason,
        _ if text(pod, &["status", "reason"]) == "NodeLost" => "Unknown".to_owned(),
        _ if matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed") => summary.reason,
        _ => "Terminating".to_owned(),
    };
    let restarts = match (summary.restarts, summary.last_restart.as_str()) {
        (0, _) | (_, "") => summary.restarts.to_string(),
        (count, last) => format!("{count} ({} ago)", age(last, now)),
    };
    let ip = items(pod, &["status", "podIPs"]).first().map_or("", |ip| text(ip, &["ip"]));
    vec![
        name(pod),
        json!(format!("{}/{total}", summary.ready)),
        json!(reason),
        json!(restarts),
        json!(created(pod, now)),
        json!(or_none(ip)),
        json!(or_none(text(pod, &["spec", "nodeName"]))),
        json!(or_none(text(pod, &["status", "nominatedNodeName"]))),
        json!(readiness_gates(pod)),
    ]
}

#[derive(Default)]
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    last_restart: String,
    sidecar_restarts: i64,
    last_sidecar_restart: String,
}

impl Summary {
    /// Visits the init containers; true when one of them has not finished.
    fn init_containers(&mut self, pod: &Value, sidecars: &HashSet<&str>) -> bool {
        let count = items(pod, &["spec", "initContainers"]).len();
        for (index, status) in items(pod, &["status", "initContainerStatuses"]).iter().enumerate() {
            let sidecar = sidecars.contains(text(status, &["name"]));
            self.restarts += int(status, &["restartCount"]);
            later(&mut self.last_restart, status);
            if sidecar {
                self.sidecar_restarts += int(status, &["restartCount"]);
                later(&mut self.last_sidecar_restart, status);
            }
            let terminated = at(status, &["state", "terminated"]);
            let waiting = text(status, &["state", "waiting", "reason"]);
            if terminated.is_object() && int(terminated, &["exitCode"]) == 0 {
                continue;
            }
            if sidecar && status["started"] == true {
                self.ready += usize::from(status["ready"] == true);
                continue;
            }
            self.reason = if terminated.is_object() {
                format!("Init:{}", exit_reason(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{index}/{count}")
            };
            return true;
        }
        false
    }

    fn containers(&mut self, pod: &Value) {
        self.restarts = self.sidecar_restarts;
        self.last_restart = std::mem::take(&mut self.last_sidecar_restart);
        let mut running = false;
        let mut error = String::new();
        for status in items(pod, &["status", "containerStatuses"]).iter().rev() {
            self.restarts += int(status, &["restartCount"]);
            later(&mut self.last_restart, status);
            let waiting = text(status, &["state", "waiting", "reason"]);
            let terminated = at(status, &["state", "terminated"]);
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if terminated.is_object() {
                self.reason = exit_reason(terminated);
                if int(terminated, &["exitCode"]) != 0 {
                    error.clone_from(&self.reason);
                }
            } else if status["ready"] == true && at(status, &["state", "running"]).is_object() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if running && has_condition(pod, "Ready") {
                "Running".clone_into(&mut self.reason);
            } else if !error.is_empty() {
                self.reason = error;
            } else if running {
                "NotReady".clone_into(&mut self.reason);
            }
        }
    }
}

fn base_reason(pod: &Value) -> String {
    let gated = |condition: &&Value| {
        text(condition, &["type"]) == "PodScheduled" && text(condition, &["reason"]) == "SchedulingGated"
    };
    if items(pod, &["status", "conditions"]).iter().any(|condition| gated(&condition)) {
        return "SchedulingGated".to_owned();
    }
    let reason = text(pod, &["status", "reason"]);
    if reason.is_empty() { text(pod, &["status", "phase"]).to_owned() } else { reason.to_owned() }
}

fn exit_reason(terminated: &Value) -> String {
    let reason = text(terminated, &["reason"]);
    let signal = int(terminated, &["signal"]);
    if !reason.is_empty() {
        reason.to_owned()
    } else if signal != 0 {
        format!("Signal:{signal}")
    } else {
        format!("ExitCode:{}", int(terminated, &["exitCode"]))
    }
}

/// Keeps the latest finish time of a container. RFC 3339 in UTC sorts as text.
fn later(last: &mut String, status: &Value) {
    let finished = text(status, &["lastState", "terminated", "finishedAt"]);
    if finished > last.as_str() {
        finished.clone_into(last);
    }
}

fn sidecars(pod: &Value) -> HashSet<&str> {
    let init = items(pod, &["spec", "initContainers"]).iter();
    init.filter(|container| text(container, &["restartPolicy"]) == "Always")
        .map(|container| text(container, &["name"]))
        .collect()
}

fn has_condition(pod: &Value, ty: &str) -> bool {
    items(pod, &["status", "conditions"])
        .iter()
        .any(|condition| text(condition, &["type"]) == ty && text(condition, &["status"]) == "True")
}

fn readiness_gates(pod: &Value) -> String {
    let gates = items(pod, &["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates.iter().filter(|gate| has_condition(pod, text(gate, &["conditionType"]))).count();
    format!("{open}/{}", gates.len())
}
