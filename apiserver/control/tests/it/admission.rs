//! Quotas, limit ranges and default classes of namespaces, without kube-controller-manager.

use serde_json::{Value, json};
use tombolo_testkit::wait_for;

use crate::harness::{Api, DEADLINE, Server};

const NAMESPACE: &str = "/api/v1/namespaces/default";

#[tokio::test(flavor = "multi_thread")]
async fn quota_refuses_excess_and_releases_usage() {
    let server = Server::start().await;
    let api = server.api().await;
    let maps = format!("{NAMESPACE}/configmaps");
    let quota =
        json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "3", "requests.cpu": "1"}}});
    api.create(&format!("{NAMESPACE}/resourcequotas"), &quota).await;
    // One exists from the start: that with the certificate authority.
    wait_for_use(&api, json!({"count/configmaps": "1", "requests.cpu": "0"})).await;

    let map = |name: &str| json!({"metadata": {"name": name}});
    api.create(&maps, &map("a")).await;
    let (code, _) = api.post(&format!("{maps}?dryRun=All"), &map("tried")).await;
    assert_eq!(code, 201);
    api.create(&maps, &map("b")).await;
    let (code, refusal) = api.post(&maps, &map("c")).await;
    let expected = "configmaps \"c\" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: \
                    count/configmaps=3, limited: count/configmaps=3";
    assert_eq!(
        (code, refusal["reason"].as_str(), refusal["message"].as_str()),
        (403, Some("Forbidden"), Some(expected))
    );

    api.delete(&format!("{maps}/a"), Value::Null).await;
    wait_for_use(&api, json!({"count/configmaps": "2", "requests.cpu": "0"})).await;
    api.create(&maps, &map("c")).await;

    let (code, refusal) = api.post(&format!("{NAMESPACE}/pods"), &pod("p", &json!({}))).await;
    let why = "pods \"p\" is forbidden: failed quota: q: must specify requests.cpu for: main";
    assert_eq!((code, refusal["message"].as_str()), (403, Some(why)));
    let small = json!({"requests": {"cpu": "600m"}});
    api.create(&format!("{NAMESPACE}/pods"), &pod("p", &small)).await;
    let (code, refusal) = api.post(&format!("{NAMESPACE}/pods"), &pod("second", &small)).await;
    assert_eq!(code, 403, "{refusal}");
    wait_for_use(&api, json!({"count/configmaps": "3", "requests.cpu": "600m"})).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_range_and_a_default_class_complete_what_is_created() {
    let server = Server::start().await;
    let api = server.api().await;
    api.wait_code(&format!("{NAMESPACE}/serviceaccounts/default"), 200).await;
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "500m"}}]}});
    api.create(&format!("{NAMESPACE}/limitranges"), &range).await;
    let stored = api.create(&format!("{NAMESPACE}/pods"), &pod("p", &json!({}))).await;
    let resources = json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "500m"}});
    assert_eq!(stored["spec"]["containers"][0]["resources"], resources, "{stored}");
    assert_eq!(stored["status"]["qosClass"], "Burstable");
    let (code, refusal) =
        api.post(&format!("{NAMESPACE}/pods"), &pod("q", &json!({"limits": {"cpu": "2"}}))).await;
    let why = "pods \"q\" is forbidden: maximum cpu usage per Container is 1, but limit is 2";
    assert_eq!((code, refusal["message"].as_str()), (403, Some(why)));

    let class = json!({"metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "example.com/disk"});
    api.create("/apis/storage.k8s.io/v1/storageclasses", &class).await;
    let claim = json!({"metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = api.create(&format!("{NAMESPACE}/persistentvolumeclaims"), &claim).await;
    assert_eq!(claim["spec"]["storageClassName"], "fast");
    server.stop().await;
}

fn pod(name: &str, resources: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [
        {"name": "main", "image": "image", "resources": resources}]}})
}

async fn wait_for_use(api: &Api, used: Value) {
    wait_for(&format!("the quota's use to be {used}"), DEADLINE, || async {
        let (_, quota) = api.get(&format!("{NAMESPACE}/resourcequotas/q")).await;
        if quota["status"]["used"] == used { Ok(()) } else { Err(quota["status"].to_string()) }
    })
    .await;
}
