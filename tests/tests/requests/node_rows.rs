//! Rows about the node itself.

use serde_json::{Value, json};

use super::Stage;
use super::peer::Form;

fn path(kind: &str, name: &str) -> String {
    format!("null/{kind}/{name}")
}

pub(crate) async fn node_insert(stage: &Stage) {
    let (peer, own) = (&stage.peer, path("node", &stage.name));
    let node = json!({"metadata": {"name": "another name", "labels": {
        "kubernetes.io/hostname": stage.name, "node-role.kubernetes.io/edge": "", "shop": "7",
        "node-restriction.kubernetes.io/team": "a", "node-role.kubernetes.io/control-plane": ""}},
        "status": {"capacity": {"cpu": "1"}}});
    let created = peer.ask("insert", &own, node.clone()).await;
    let object = created.wrapped(&own);
    assert_eq!(object["metadata"]["name"], *stage.name);
    let live = stage.live("node", &stage.name);
    assert_eq!(live["metadata"]["uid"], object["metadata"]["uid"]);
    let labels = &live["metadata"]["labels"];
    assert_eq!((&labels["node-role.kubernetes.io/edge"], &labels["shop"]), (&json!(""), &json!("7")));
    for refused in ["node-restriction.kubernetes.io/team", "node-role.kubernetes.io/control-plane"] {
        assert_eq!(labels[refused], Value::Null, "{labels}");
    }

    let again = peer.ask("insert", &own, node.clone()).await;
    assert_eq!((again.refused(Form::Change).0, again.reason()), (409, "AlreadyExists"));
    let other = peer.ask("insert", &path("node", "somebody-else"), node).await;
    assert_eq!(other.refused(Form::Change).0, 403);
    assert_eq!(stage.live("node", "somebody-else"), Value::Null);
    for content in [json!("no node"), json!([]), Value::Null] {
        let malformed = peer.ask("insert", &own, content).await;
        assert_eq!((malformed.refused(Form::Change).0, malformed.reason()), (400, "BadRequest"));
    }
}

/// A query of older edges.
pub(crate) async fn node_query(stage: &Stage) {
    let (peer, own) = (&stage.peer, format!("default/node/{}", stage.name));
    let found = peer.ask("query", &own, Value::Null).await;
    assert_eq!(found.object(&own, "Node")["metadata"]["name"], *stage.name);
    let (_, unknown) = peer.ask("query", "default/node/nobody", Value::Null).await.refused(Form::Sentence);
    assert!(unknown.contains("nobody"), "{unknown}");
    let (_, all) = peer.ask("query", "default/node", Value::Null).await.refused(Form::Sentence);
    assert!(all.contains("names no object"), "{all}");
}

pub(crate) async fn node_update(stage: &Stage) {
    let (peer, own) = (&stage.peer, path("node", &stage.name));
    let update = json!({"metadata": {"labels": {"shop": "8"}, "annotations": {"floor": "2"}}});
    let updated = peer.ask("update", &own, update.clone()).await;
    updated.done(&own);
    let live = stage.live("node", &stage.name);
    assert!(updated.is_of_version(&live), "{updated:?}");
    assert_eq!(
        (&live["metadata"]["labels"]["shop"], &live["metadata"]["annotations"]["floor"]),
        (&json!("8"), &json!("2"))
    );
    for other in [&*stage.neighbour, "nobody"] {
        peer.ask("update", &path("node", other), update.clone()).await.refused(Form::Sentence);
    }
    assert_eq!(stage.live("node", &stage.neighbour)["metadata"]["labels"]["shop"], Value::Null);
    peer.ask("update", &own, json!("no node")).await.refused(Form::Sentence);
}

/// A registration of older edges.
pub(crate) async fn nodestatus_insert(stage: &Stage) {
    let (peer, node) = (&stage.peer, json!({"metadata": {"labels": {"shop": "9"}}}));
    let existing = peer.ask("insert", &format!("default/nodestatus/{}", stage.name), node.clone()).await;
    existing.done(&format!("default/node/{}", stage.name));
    assert_eq!(
        stage.live("node", &stage.name)["metadata"]["labels"]["shop"],
        "8",
        "the node existed: nothing is done"
    );
    let other = peer.ask("insert", "default/nodestatus/somebody-else", node).await;
    other.refused(Form::Sentence);
    assert_eq!(stage.live("node", "somebody-else"), Value::Null);
    peer.ask("insert", "default/nodestatus/somebody-else", json!("no node")).await.refused(Form::Sentence);
}

pub(crate) async fn nodestatus_update(stage: &Stage) {
    let (peer, own) = (&stage.peer, format!("default/nodestatus/{}", stage.name));
    let gpus = json!([{"name": "gpu-0", "type": "T4", "capacity": "1"}]);
    let report = json!({"UID": "", "ExtendResources": {"nvidia.com/gpu": gpus}, "Status": {"conditions": [
        {"type": "Ready", "status": "True", "lastHeartbeatTime": "2020-01-01T00:00:00Z"}]}});
    let updated = peer.ask("update", &own, report.clone()).await;
    updated.done(&format!("default/node/{}", stage.name));
    let live = stage.live("node", &stage.name);
    assert!(updated.is_of_version(&live), "{updated:?}");
    let annotation = live["metadata"]["annotations"]["nvidia.com/gpu"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(annotation).unwrap(), gpus);
    let heartbeat = &live["status"]["conditions"][0]["lastHeartbeatTime"];
    assert_ne!(*heartbeat, json!("2020-01-01T00:00:00Z"), "the report itself counts as the heartbeat");
    for other in [&*stage.neighbour, "nobody"] {
        let other = peer.ask("update", &format!("default/nodestatus/{other}"), report.clone()).await;
        other.refused(Form::Sentence);
    }
    assert_eq!(stage.live("node", &stage.neighbour)["status"]["conditions"], Value::Null);
    for content in [json!({"UID": ""}), json!("no report")] {
        peer.ask("update", &own, content).await.refused(Form::Sentence);
    }
}

pub(crate) async fn nodepatch(stage: &Stage) {
    let (peer, own) = (&stage.peer, path("nodepatch", &stage.name));
    let patch = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "EdgeReady",
        "message": "edge is posting ready status", "lastHeartbeatTime": null, "lastTransitionTime": null}],
        "capacity": {"cpu": "4"}}});
    let patch = Value::from(patch.to_string());
    let patched = peer.ask("patch", &own, patch.clone()).await;
    let object = patched.wrapped_with_version(&own);
    assert_eq!(object["status"]["capacity"]["cpu"], "4");
    assert_eq!(stage.live("node", &stage.name)["status"]["conditions"][0]["reason"], "EdgeReady");
    for other in [&*stage.neighbour, "nobody"] {
        let refused = peer.ask("patch", &path("nodepatch", other), patch.clone()).await.refused(Form::Change);
        assert!([403, 404].contains(&refused.0), "{refused:?}");
    }
    assert_eq!(stage.live("node", &stage.neighbour)["status"]["capacity"], Value::Null);
    for content in [json!("no patch"), Value::Null] {
        assert_eq!(peer.ask("patch", &own, content).await.refused(Form::Change).0, 400);
    }
}

pub(crate) async fn lease(stage: &Stage) {
    let (peer, own) = (&stage.peer, format!("kube-node-lease/lease/{}", stage.name));
    let unknown = peer.ask("query", &own, Value::Null).await;
    assert_eq!((unknown.refused(Form::Read).0, unknown.reason()), (404, "NotFound"));
    assert_eq!(unknown.content["Object"], Value::Null, "as KubeEdge has it: {unknown:?}");
    let lease = |name: &str| {
        json!({"metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}})
    };
    let created = peer.ask("insert", &own, lease(&stage.name)).await;
    let mut held = created.wrapped(&own).clone();
    assert_eq!(created.version, "", "a KubeEdge cloud sends no version here");
    let found = peer.ask("query", &own, Value::Null).await;
    assert_eq!(found.wrapped(&own)["metadata"]["uid"], held["metadata"]["uid"]);
    held["spec"]["renewTime"] = "2026-01-01T00:00:10.000000Z".into();
    let renewed = peer.ask("update", &own, held.clone()).await;
    assert_eq!(renewed.wrapped(&own)["spec"]["renewTime"], "2026-01-01T00:00:10.000000Z");
    let stale = peer.ask("update", &own, held.clone()).await;
    assert_eq!((stale.refused(Form::Change).0, stale.reason()), (409, "Conflict"), "the kubelet reads again");

    let theirs = format!("kube-node-lease/lease/{}", stage.neighbour);
    for (operation, form) in [("query", Form::Read), ("insert", Form::Change), ("update", Form::Change)] {
        let refused = peer.ask(operation, &theirs, lease(&stage.neighbour)).await.refused(form);
        assert!([403, 404].contains(&refused.0), "{operation}: {refused:?}");
    }
    for operation in ["insert", "update"] {
        assert_eq!(peer.ask(operation, &own, json!("no lease")).await.refused(Form::Change).0, 400);
    }
}
