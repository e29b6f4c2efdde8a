//! Messages of older edges that newer ones do not send (docs/reference/kubeedge.md#older-edges), and small requests of
//! every edge.

use serde_json::{Value, json};
use tombolo_tests::kubeedge::{Delivery, KubeEdgeNode};
use tombolo_tests::world::objects::Objects;

/// Pods, as older edges report and query them.
pub(crate) async fn pods_are_reported_in_their_own_way(
    node: &KubeEdgeNode,
    objects: &Objects,
    namespace: &str,
) {
    let path = |kind: &str, name: &str| format!("{namespace}/{kind}/{name}");
    let gone = json!({"UID": "u", "Name": "gone", "Status": {"phase": "Running"}});
    let told = node.ask("update", &path("podstatus", "gone"), gone).await.unwrap();
    assert_eq!(told["content"], "OK", "{told}");
    let deleted = path("pod", "gone");
    node.until("the deletion of a pod that is gone", |store| {
        let again = |pushed: &Delivery| pushed.operation == "delete" && pushed.resource == deleted;
        store.delivered.iter().any(again)
    })
    .await;
    objects.accepted_pod("older", &node.name, &[], &[]).await;
    let older = path("pod", "older");
    node.until("the pod", |store| store.has(&older)).await;
    let report = json!([{"UID": "", "Name": "older", "Status": {"phase": "Running"}}]);
    let told = node.ask("update", &format!("{namespace}/podstatus"), report).await.unwrap();
    assert_eq!(told["content"], "OK", "{told}");
    let status = objects.pods().get("older").await.unwrap().status.unwrap();
    assert!(status.phase.unwrap() == "Running" && status.start_time.is_some());
    let list = node.ask("query", &format!("{namespace}/podlist"), Value::Null).await.unwrap();
    assert_eq!(list["content"][0]["metadata"]["name"], "older", "{list}");
    objects.remove_pod("older").await.unwrap();
    node.until("the deletion of the pod", |store| !store.has(&older)).await;
}

/// The node, as older edges report and query it.
pub(crate) async fn nodes_are_reported_in_their_own_way(node: &KubeEdgeNode, objects: &Objects) {
    let (name, gpu) = (&node.name, json!([{"name": "gpu-0", "type": "T4", "capacity": "1"}]));
    let report = json!({"UID": "", "ExtendResources": {"nvidia.com/gpu": gpu}, "Status": {"conditions": [
        {"type": "Ready", "status": "True", "lastHeartbeatTime": "2020-01-01T00:00:00Z"}]}});
    let told = node.ask("update", &format!("default/nodestatus/{name}"), report).await.unwrap();
    let resource = json!(format!("default/node/{name}"));
    assert_eq!((&told["content"], &told["route"]["resource"]), (&json!("OK"), &resource));
    let found = objects.nodes().get(name).await.unwrap();
    let annotations = found.metadata.annotations.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&annotations["nvidia.com/gpu"]).unwrap(), gpu);
    let own = node.ask("query", &format!("default/node/{name}"), Value::Null).await.unwrap();
    assert_eq!(own["content"]["metadata"]["name"], **name, "{own}");
    let again = json!({"metadata": {}});
    let inserted = node.ask("insert", &format!("default/nodestatus/{name}"), again).await.unwrap();
    assert_eq!(inserted["content"], "OK", "the node exists already: {inserted}");
}

/// Requests for documents that are not objects.
pub(crate) async fn small_questions_are_answered(node: &KubeEdgeNode) {
    let authority = node.ask("query", "k8s/ca.crt", Value::Null).await.unwrap();
    assert_eq!(authority["route"]["source"], "cloudhub", "{authority}");
    assert!(
        authority["content"].as_str().is_some_and(|pem| pem.contains("BEGIN CERTIFICATE")),
        "{authority}"
    );
    let report = json!("{\"event_type\":\"group_membership_event\"}");
    let confirmed = node.ask_as("twin", "resource", "get", "membership/detail", report).await.unwrap();
    assert_eq!((&confirmed["route"]["group"], &confirmed["content"]), (&json!("twin"), &json!("OK")));
    let nothing = node.ask("publish", "default/pod/web", Value::Null).await.unwrap();
    assert_eq!(nothing["route"]["operation"], "error");
}
