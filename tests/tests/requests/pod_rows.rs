//! Rows about pods.

use serde_json::{Value, json};
use tombolo_tests::kubeedge::Delivery;

use super::Stage;
use super::peer::{Form, Peer};

fn running() -> Value {
    json!({"phase": "Running", "hostIP": "192.0.2.2"})
}

fn uid(stage: &Stage, pod: &str) -> Value {
    stage.live("pod", pod)["metadata"]["uid"].clone()
}

pub(crate) async fn podpatch(stage: &Stage) {
    let (peer, own) = (&stage.peer, stage.path("podpatch", "mine"));
    let uid = uid(stage, "mine");
    let patch = Value::from(json!({"metadata": {"uid": uid}, "status": running()}).to_string());
    let patched = peer.ask("patch", &own, patch.clone()).await;
    let object = patched.wrapped_with_version(&own);
    assert!(object["spec"]["containers"].is_array(), "not the whole pod: {object}");
    assert_eq!(stage.live("pod", "mine")["status"]["phase"], "Running");
    for other in ["theirs", "nobody"] {
        let refused =
            peer.ask("patch", &stage.path("podpatch", other), patch.clone()).await.refused(Form::Change);
        assert!([403, 404, 409].contains(&refused.0), "{other}: {refused:?}");
    }
    assert_ne!(stage.live("pod", "theirs")["status"]["phase"], "Running");
    let of_another = json!({"metadata": {"uid": "another"}, "status": running()}).to_string();
    let conflict = peer.ask("patch", &own, of_another.into()).await;
    // kube-apiserver reports it as an invalid change of the UID.
    assert!([409, 422].contains(&conflict.refused(Form::Change).0), "{conflict:?}");
    for content in [json!("no patch"), Value::Null] {
        assert_eq!(peer.ask("patch", &own, content).await.refused(Form::Change).0, 400);
    }
}

/// Reports of older edges.
pub(crate) async fn podstatus(stage: &Stage) {
    let (peer, own) = (&stage.peer, stage.path("podstatus", "mine"));
    let report =
        |name: &str| json!({"UID": "", "Name": name, "Status": {"phase": "Running", "message": name}});
    peer.ask("update", &own, report("mine")).await.done(&own);
    let live = stage.live("pod", "mine");
    assert_eq!(live["status"]["message"], "mine");
    assert!(live["status"]["startTime"].is_string(), "{live}");
    let all = format!("{}/podstatus", stage.namespace);
    peer.ask("update", &all, json!([report("mine-claims")])).await.done(&all);
    assert_eq!(stage.live("pod", "mine-claims")["status"]["message"], "mine-claims");

    // A pod that is deleted, or on another node, has no status to report: the edge is ordered to delete it.
    for other in ["theirs", "nobody"] {
        let resource = stage.path("podstatus", other);
        peer.ask("update", &resource, report(other)).await.done(&resource);
        deletion_is_resent(peer, &stage.path("pod", other)).await;
    }
    assert_ne!(stage.live("pod", "theirs")["status"]["message"], "theirs");
    for content in [json!("no report"), json!({"Name": "mine"}), json!([{"Name": "../x", "Status": {}}])] {
        let resource = if content.is_array() { &all } else { &own };
        peer.ask("update", resource, content).await.refused(Form::Sentence);
    }
}

async fn deletion_is_resent(peer: &Peer, path: &str) {
    let Peer::KubeEdge(node) = peer else { return };
    let again = |pushed: &Delivery| pushed.operation == "delete" && pushed.resource == path;
    node.until("the deletion of a pod that it should not have", |store| store.delivered.iter().any(again))
        .await;
}

/// A query of older edges.
pub(crate) async fn podlist(stage: &Stage) {
    let resource = format!("{}/podlist", stage.namespace);
    let list = stage.peer.ask("query", &resource, Value::Null).await;
    assert_eq!((&*list.operation, &*list.resource), ("response", &*resource), "{list:?}");
    let pods = list.content.as_array().unwrap();
    let mut names: Vec<_> = pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["mine", "mine-claims"], "only its own pods");
    assert!(pods.iter().all(|pod| pod["kind"] == "Pod" && pod["apiVersion"] == "v1"), "{list:?}");
    stage.peer.ask("update", &resource, Value::Null).await.refused(Form::Sentence);
}

/// The mirror pod of a static pod.
pub(crate) async fn pod_insert(stage: &Stage) {
    let peer = &stage.peer;
    let node = stage.live("node", &stage.name);
    let mirror = |name: &str, node_name: &str| {
        json!({"metadata": {"name": name, "namespace": stage.namespace,
                "annotations": {"kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": stage.name,
                    "uid": node["metadata"]["uid"], "controller": true}]},
            "spec": {"nodeName": node_name, "containers": [{"name": "shop", "image": "registry.example/shop:1"}]}})
    };
    let own = stage.path("pod", "mirror");
    let created = peer.ask("insert", &own, mirror("mirror", &stage.name)).await;
    assert_eq!(created.wrapped_with_version(&own)["metadata"]["uid"], uid(stage, "mirror"));
    let again = peer.ask("insert", &own, mirror("mirror", &stage.name)).await;
    assert_eq!((again.refused(Form::Change).0, again.reason()), (409, "AlreadyExists"));
    let theirs = stage.path("pod", "their-mirror");
    let elsewhere = peer.ask("insert", &theirs, mirror("their-mirror", &stage.neighbour)).await;
    assert_eq!(elsewhere.refused(Form::Change).0, 403);
    assert_eq!(stage.live("pod", "their-mirror"), Value::Null);
    let nowhere = peer.ask("insert", "no-such-namespace/pod/x", mirror("x", &stage.name)).await;
    nowhere.refused(Form::Change);
    for content in [json!("no pod"), Value::Null] {
        assert_eq!(peer.ask("insert", &own, content).await.refused(Form::Change).0, 400);
    }
}

pub(crate) async fn pod_delete(stage: &Stage) {
    let (peer, own) = (&stage.peer, stage.path("pod", "mine"));
    let options = |uid: &Value| json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    let theirs = peer.ask("delete", &stage.path("pod", "theirs"), options(&uid(stage, "theirs"))).await;
    theirs.refused(Form::Sentence);
    assert!(stage.live("pod", "theirs").is_object());
    peer.ask("delete", &own, json!([])).await.refused(Form::Sentence);
    assert!(stage.live("pod", "mine").is_object());
    // The edge is not responsible for another incarnation than the one that it named.
    peer.ask("delete", &own, options(&json!("another"))).await.done(&own);
    assert!(stage.live("pod", "mine").is_object());
    let mine = uid(stage, "mine");
    for _ in 0..2 {
        peer.ask("delete", &own, options(&mine)).await.done(&own);
        assert_eq!(stage.live("pod", "mine"), Value::Null);
    }
    // As older edges request it: only the UID.
    let mirror = stage.path("pod", "mirror");
    peer.ask("delete", &mirror, uid(stage, "mirror")).await.done(&mirror);
    assert_eq!(stage.live("pod", "mirror"), Value::Null);
}
