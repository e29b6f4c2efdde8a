use super::super::{ApiActor, ModelApi, ModelConfig};
use super::*;

const POD: &str = "/api/v1/namespaces/default/pods/p";

fn actor() -> (ModelApi, ApiActor) {
    let api = ModelApi::new(ModelConfig::default());
    api.controllers().create_namespace("default").expect("exists");
    let admin = api.actor("admin");
    (api, admin)
}

fn pod(node: &str) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c"}]}});
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

fn code(outcome: Result<Value, ApiStatus>) -> u16 {
    outcome.map_or_else(|refused| refused.code, |_| 200)
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_a_node_waits_for_its_kubelet() {
    let (api, admin) = actor();
    admin.create(&pod("n")).expect("created");
    let deleted = admin.delete(POD, &Value::Null).expect("deleted");
    let metadata = &deleted["metadata"];
    assert_eq!(metadata["deletionTimestamp"], "2026-01-01T00:00:30Z");
    assert_eq!((&metadata["deletionGracePeriodSeconds"], &metadata["generation"]), (&json!(30), &json!(2)));
    let before = api.revision();
    let longer = admin.delete(POD, &json!({"gracePeriodSeconds": 60})).expect("again");
    assert_eq!(
        (longer["metadata"]["deletionGracePeriodSeconds"].as_u64(), api.revision()),
        (Some(30), before)
    );
    let shorter = admin.delete(POD, &json!({"gracePeriodSeconds": 5})).expect("again");
    assert_eq!(shorter["metadata"]["deletionTimestamp"], "2026-01-01T00:00:05Z");
    let other = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}});
    assert_eq!(code(admin.delete(POD, &other)), 409);
    let own = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": deleted["metadata"]["uid"]}});
    let last = admin.delete(POD, &own).expect("removed");
    assert_eq!(last["kind"], "Pod", "the answer is the pod");
    assert_eq!(code(admin.get(POD)), 404);
    assert_eq!(code(admin.delete(POD, &Value::Null)), 404);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_no_kubelet_runs_goes_at_once() {
    let (_, admin) = actor();
    admin.create(&pod("")).expect("created");
    admin.delete(POD, &Value::Null).expect("deleted");
    assert_eq!(code(admin.get(POD)), 404);
    admin.create(&pod("n")).expect("created");
    admin.patch(&format!("{POD}/status"), &json!({"status": {"phase": "Succeeded"}})).expect("patched");
    admin.delete(POD, &Value::Null).expect("deleted");
    assert_eq!(code(admin.get(POD)), 404, "it has ended");
}

#[tokio::test(start_paused = true)]
async fn finalizers_keep_an_object_until_the_last_is_gone() {
    let (api, admin) = actor();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "m", "namespace": "default", "finalizers": ["a/b", "c/d"]}});
    admin.create(&map).expect("created");
    let path = "/api/v1/namespaces/default/configmaps/m";
    let deleted = admin.delete(path, &Value::Null).expect("marked");
    assert!(object::is_being_deleted(&deleted) && deleted["kind"] == "ConfigMap");
    let less = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    assert_eq!(code(admin.patch(path, &less(json!(["a/b", "c/d", "e/f"])))), 422);
    admin.patch(path, &less(json!(["c/d"]))).expect("one less");
    let before = api.revision();
    admin.patch(path, &less(json!([]))).expect("the last");
    assert_eq!(code(admin.get(path)), 404);
    assert_eq!(api.revision(), before + 1, "one write removes it");
    let plain =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"}});
    admin.create(&plain).expect("created");
    let status = admin.delete(path, &json!({"propagationPolicy": "Background"})).expect("deleted");
    assert_eq!((&status["kind"], &status["status"]), (&json!("Status"), &json!("Success")));
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_by_what_it_selects() {
    let (_, admin) = actor();
    for (name, zone) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let metadata = json!({"name": name, "namespace": "default", "labels": {"zone": zone}});
        admin.create(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})).expect("created");
    }
    let all = "/api/v1/namespaces/default/secrets";
    admin.delete(&format!("{all}?labelSelector=zone%3Dx"), &Value::Null).expect("deleted");
    let left = admin.get(all).expect("a list");
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(left["items"][0]["metadata"]["name"], "b");
}
