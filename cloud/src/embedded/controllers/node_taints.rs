//! Nodes whose conditions say that no new pod should go there have the taints that keep the scheduler away.

use serde_json::{Value, json};

use super::Context;
use super::feed::Feed;
use crate::embedded::admission::taints::{NO_SCHEDULE, NOT_READY};
use crate::embedded::objects::{Edit, core, items, list_member, member, text, timestamp};

/// Taints by condition and its status (Kubernetes: taint nodes by condition).
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", "node.kubernetes.io/unreachable"),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];

/// Taint of a Node with `spec.unschedulable`.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Taints Nodes until the server stops.
pub(super) async fn run(context: &Context) {
    let mut nodes = Feed::new(&context.objects, core("nodes"));
    while let Some(key) = nodes.next().await {
        let update =
            context.objects.update(&key, |node| if settle(&mut node.value) { Edit::Put } else { Edit::Keep });
        if let Err(error) = update.await {
            tracing::warn!(%key, %error, "the taints of a node were not written");
        }
    }
}

/// Brings the taints of a Node into line with its conditions; whether they changed. A Node without the condition
/// `Ready` keeps the taint that it was created with.
fn settle(node: &mut Value) -> bool {
    let conditions = items(node, "/status/conditions");
    if !conditions.iter().any(|condition| text(condition, "/type") == "Ready") {
        return false;
    }
    let says = |kind: &str, status: &str| {
        conditions.iter().any(|own| text(own, "/type") == kind && text(own, "/status") == status)
    };
    let mut wanted: Vec<&str> = BY_CONDITION
        .iter()
        .filter(|(kind, status, _)| says(kind, status))
        .map(|(_, _, taint)| *taint)
        .collect();
    if node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        wanted.push(UNSCHEDULABLE);
    }
    let is_ours = |taint: &Value| {
        let key = text(taint, "/key");
        let known = key == UNSCHEDULABLE || BY_CONDITION.iter().any(|(_, _, taint)| *taint == key);
        known && text(taint, "/effect") == NO_SCHEDULE
    };
    let present: Vec<&str> = items(node, "/spec/taints")
        .iter()
        .filter(|taint| is_ours(taint))
        .map(|taint| text(taint, "/key"))
        .collect();
    let missing: Vec<&str> = wanted.iter().copied().filter(|key| !present.contains(key)).collect();
    let stale = present.iter().any(|key| !wanted.contains(key));
    if missing.is_empty() && !stale {
        return false;
    }
    let added = timestamp(jiff::Timestamp::now());
    let new: Vec<Value> =
        missing.iter().map(|key| json!({"key": key, "effect": NO_SCHEDULE, "timeAdded": added})).collect();
    let spec = member(node, "spec");
    let taints = list_member(spec, "taints");
    taints.retain(|taint| !is_ours(taint) || wanted.contains(&text(taint, "/key")));
    taints.extend(new);
    if taints.is_empty() {
        spec.remove("taints");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(node: &Value) -> Vec<&str> {
        items(node, "/spec/taints").iter().map(|taint| text(taint, "/key")).collect()
    }

    #[test]
    fn taints_follow_conditions() {
        let mut node = json!({
            "spec": {"taints": [{"key": NOT_READY, "effect": NO_SCHEDULE}, {"key": "own", "effect": NO_SCHEDULE}]},
        });
        assert!(!settle(&mut node), "it has not said anything yet");
        node["status"] = json!({"conditions": [{"type": "Ready", "status": "False"}]});
        assert!(!settle(&mut node));
        node["status"] = json!({"conditions": [
            {"type": "Ready", "status": "Unknown"}, {"type": "DiskPressure", "status": "True"},
        ]});
        assert!(settle(&mut node) && !settle(&mut node));
        let (unreachable, disk) = ("node.kubernetes.io/unreachable", "node.kubernetes.io/disk-pressure");
        assert_eq!(keys(&node), ["own", unreachable, disk]);
        node["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        node["spec"]["unschedulable"] = json!(true);
        assert!(settle(&mut node));
        assert_eq!(keys(&node), ["own", UNSCHEDULABLE]);
    }

    #[test]
    fn an_eviction_taint_is_left_to_others() {
        let mut node = json!({
            "spec": {"taints": [{"key": NOT_READY, "effect": "NoExecute"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        assert!(!settle(&mut node));
    }
}
