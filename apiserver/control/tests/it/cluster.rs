//! The work of the controllers: accounts, volumes in pods, emptied namespaces, owners, definitions.

use std::pin::pin;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::{Value, json};

use crate::harness::{Api, DEADLINE, Server};

async fn namespace(api: &Api, name: &str) {
    api.create("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await;
}

fn owned(name: &str, owner: &Value, block: bool) -> Value {
    let metadata = &owner["metadata"];
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"], "blockOwnerDeletion": block});
    json!({"metadata": {"name": name, "ownerReferences": [reference]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_completed_as_the_real_server_does() {
    let server = Server::start().await;
    let api = server.api().await;
    namespace(&api, "shop").await;
    api.wait_code("/api/v1/namespaces/shop/serviceaccounts/default", 200).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = api.create("/api/v1/namespaces/shop/pods", &pod).await;
    let spec = &pod["spec"];
    assert_eq!(
        (&spec["serviceAccountName"], &spec["serviceAccount"]),
        (&json!("default"), &json!("default"))
    );
    assert_eq!((&spec["priority"], &spec["preemptionPolicy"]), (&json!(0), &json!("PreemptLowerPriority")));
    assert_eq!(spec["enableServiceLinks"], true);
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    let volume = &spec["volumes"][0];
    assert!(volume["name"].as_str().unwrap().starts_with("kube-api-access-"));
    let sources = json!([
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]);
    assert_eq!(volume["projected"], json!({"defaultMode": 420, "sources": sources}));
    assert_eq!(spec["containers"][0]["volumeMounts"][0]["name"], volume["name"]);
    let ca = api.wait_code("/api/v1/namespaces/shop/configmaps/kube-root-ca.crt", 200).await;
    assert!(ca["data"]["ca.crt"].as_str().unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
    let absent = json!({"metadata": {"name": "q"}, "spec": {"serviceAccountName": "absent", "containers": [{"name": "c", "image": "i"}]}});
    let (code, status) = api.post("/api/v1/namespaces/shop/pods", &absent).await;
    assert_eq!(code, 403);
    let expected = r#"pods "q" is forbidden: error looking up service account shop/absent: serviceaccount "absent" not found"#;
    assert_eq!(status["message"], expected);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_namespace_is_emptied_first() {
    let server = Server::start().await;
    let api = server.api().await;
    namespace(&api, "shop").await;
    let maps = "/api/v1/namespaces/shop/configmaps";
    api.create(maps, &json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}})).await;
    let (code, reply) = api.delete("/api/v1/namespaces/shop", Value::Null).await;
    assert_eq!((code, &reply["status"]["phase"]), (200, &json!("Terminating")), "{reply}");
    let (code, refused) = api.post(maps, &json!({"metadata": {"name": "new"}})).await;
    assert_eq!(code, 403, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("because it is being terminated"), "{refused}");
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    api.wait_code("/api/v1/namespaces/shop/serviceaccounts/default", 404).await;
    assert_eq!(api.get("/api/v1/namespaces/shop").await.0, 200, "the finalizer holds");
    let (code, _) = api.merge(&format!("{maps}/held"), &json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(code, 200);
    api.wait_code("/api/v1/namespaces/shop", 404).await;
    namespace(&api, "shop").await;
    api.wait_code("/api/v1/namespaces/shop/serviceaccounts/default", 200).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dependents_follow_their_owners() {
    let server = Server::start().await;
    let api = server.api().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let path = |name: &str| format!("{maps}/{name}");
    let named = |name: &str| json!({"metadata": {"name": name}});
    // In the background, over two generations.
    let owner = api.create(maps, &named("owner")).await;
    let child = api.create(maps, &owned("child", &owner, false)).await;
    api.create(maps, &owned("grandchild", &child, false)).await;
    api.delete(&path("owner"), json!({"propagationPolicy": "Background"})).await;
    api.wait_code(&path("grandchild"), 404).await;
    // In the foreground, the owner last.
    let owner = api.create(maps, &named("owner")).await;
    let mut held = owned("child", &owner, true);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.create(maps, &held).await;
    api.delete(&path("owner"), json!({"propagationPolicy": "Foreground"})).await;
    tombolo_testkit::wait_for("the child to be marked", DEADLINE, || async {
        let (_, child) = api.get(&path("child")).await;
        if child["metadata"]["deletionTimestamp"].is_string() { Ok(()) } else { Err(child.to_string()) }
    })
    .await;
    assert_eq!(api.get(&path("owner")).await.0, 200, "it waits for its child");
    api.merge(&path("child"), &json!({"metadata": {"finalizers": null}})).await;
    api.wait_code(&path("owner"), 404).await;
    // Orphans stay, without the reference.
    let owner = api.create(maps, &named("owner")).await;
    api.create(maps, &owned("child", &owner, true)).await;
    api.delete(&path("owner"), json!({"propagationPolicy": "Orphan"})).await;
    api.wait_code(&path("owner"), 404).await;
    let child = api.wait_code(&path("child"), 200).await;
    assert!(child["metadata"].get("ownerReferences").is_none(), "{child}");
    // An owner that never existed.
    let mut lost = owned("lost", &owner, false);
    lost["metadata"]["ownerReferences"][0]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    api.create(maps, &lost).await;
    api.wait_code(&path("lost"), 404).await;
    server.stop().await;
}

/// Owners that are not in the index, and invalid owners (Kubernetes: owners and dependents).
#[tokio::test(flavor = "multi_thread")]
async fn object_is_not_collected_while_its_owner_exists_or_is_unknown() {
    let server = Server::start().await;
    let api = server.api().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let (leases, roles) = (
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    );
    let owned_as = |name: &str, (api_version, kind): (&str, &str), owner: &Value| {
        let mut object = owned(name, owner, false);
        object["metadata"]["ownerReferences"][0]["apiVersion"] = api_version.into();
        object["metadata"]["ownerReferences"][0]["kind"] = kind.into();
        object
    };
    // When an object that is processed after them is gone, they have been processed.
    let collected = async |name: &str| {
        let owner = json!({"metadata": {"name": name, "uid": "00000000-0000-0000-0000-000000000000"}});
        api.create(maps, &owned(&format!("z-{name}"), &owner, false)).await;
        api.wait_code(&format!("{maps}/z-{name}"), 404).await;
    };
    let lease = api.create(leases, &json!({"metadata": {"name": "owner"}})).await;
    api.create(maps, &owned_as("of-lease", ("coordination.k8s.io/v1", "Lease"), &lease)).await;
    let map = api.create(maps, &json!({"metadata": {"name": "owner"}})).await;
    let mut role = owned_as("of-map", ("v1", "ConfigMap"), &map);
    role["rules"] = json!([]);
    api.create(roles, &role).await;
    collected("first").await;
    assert_eq!(api.get(&format!("{maps}/of-lease")).await.0, 200, "the lease is there");
    assert_eq!(api.get(&format!("{roles}/of-map")).await.0, 200, "it is in no namespace, its owner is");
    api.delete(&format!("{leases}/owner"), Value::Null).await;
    api.wait_code(&format!("{maps}/of-lease"), 404).await;
    api.delete(&format!("{maps}/owner"), Value::Null).await;
    collected("second").await;
    assert_eq!(api.get(&format!("{roles}/of-map")).await.0, 200);
    server.stop().await;
}

/// An ExternalName Service gets no address, and keeps none when its type changes.
#[tokio::test(flavor = "multi_thread")]
async fn service_loses_an_address_that_was_never_allocated_to_it() {
    let server = Server::start().await;
    let api = server.api().await;
    let services = "/api/v1/namespaces/default/services";
    let named =
        json!({"metadata": {"name": "s"}, "spec": {"type": "ExternalName", "externalName": "a.example"}});
    api.create(services, &named).await;
    let own = format!("{services}/s");
    let (code, refused) = api.merge(&own, &json!({"spec": {"clusterIP": "169.254.20.10"}})).await;
    assert_eq!(code, 422, "{refused}");
    let direct = json!({"spec": {"type": "ClusterIP", "externalName": null, "clusterIP": "169.254.20.10", "ports": [{"port": 80}]}});
    let (code, refused) = api.merge(&own, &direct).await;
    assert_eq!(code, 422, "{refused}");
    let (code, service) = api
        .merge(&own, &json!({"spec": {"type": "ClusterIP", "externalName": null, "ports": [{"port": 80}]}}))
        .await;
    assert_eq!(code, 200, "{service}");
    assert!(service["spec"]["clusterIP"].as_str().is_some_and(|ip| ip.starts_with("10.")), "{service}");
    server.stop().await;
}

fn definition() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "tills.shop.example"}, "spec": {
        "group": "shop.example", "scope": "Namespaced",
        "names": {"plural": "tills", "singular": "till", "kind": "Till", "listKind": "TillList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"drawers": {"type": "integer", "default": 1, "minimum": 1}}},
        }}}}],
    }})
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_definition_deletes_its_objects() {
    let server = Server::start().await;
    let api = server.api().await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let own = format!("{definitions}/tills.shop.example");
    let tills = "/apis/shop.example/v1/namespaces/default/tills";
    api.create(definitions, &definition()).await;
    api.wait_code("/apis/shop.example/v1", 200).await;
    tombolo_testkit::wait_for("the definition to be established", DEADLINE, || async {
        let (_, crd) = api.get(&own).await;
        let conditions = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let established = conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True");
        if established { Ok(()) } else { Err(crd["status"].to_string()) }
    })
    .await;
    let till = api.create(tills, &json!({"apiVersion": "shop.example/v1", "kind": "Till", "metadata": {"name": "t"}, "spec": {"unknown": 1}})).await;
    assert_eq!(till["spec"], json!({"drawers": 1}), "pruned and defaulted");
    let wrong = json!({"apiVersion": "shop.example/v1", "kind": "Till", "metadata": {"name": "u"}, "spec": {"drawers": 0}});
    assert_eq!(api.post(tills, &wrong).await.0, 422);
    // A change of the storage version loses no object.
    let (_, mut two) = api.get(&own).await;
    let mut second = two["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    two["spec"]["versions"][0]["storage"] = json!(false);
    two["spec"]["versions"].as_array_mut().unwrap().push(second);
    let (code, reply) = api.merge(&own, &json!({"spec": {"versions": two["spec"]["versions"]}})).await;
    assert_eq!(code, 200, "{reply}");
    let moved = api.wait_code("/apis/shop.example/v2/namespaces/default/tills/t", 200).await;
    assert_eq!(
        (&moved["apiVersion"], &moved["metadata"]["uid"]),
        (&json!("shop.example/v2"), &till["metadata"]["uid"])
    );
    assert_eq!(api.get(&format!("{tills}/t")).await.1["apiVersion"], "shop.example/v1");
    // It is still served after a restart.
    let server = Server::start_in(server.stop().await).await;
    let api = server.api().await;
    assert_eq!(api.get(&format!("{tills}/t")).await.0, 200);
    api.delete(&own, Value::Null).await;
    api.wait_code(&own, 404).await;
    api.wait_code("/apis/shop.example/v1", 404).await;
    api.create(definitions, &definition()).await;
    let list = api.wait_code(tills, 200).await;
    assert_eq!(list["items"], json!([]), "the objects went with the old definition");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_watches_through_a_restart() {
    let server = Server::start().await;
    let client = server.client().await;
    let api = server.api().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let config = watcher::Config::default().labels("watched=yes");
    let stream = watcher(kube::Api::<ConfigMap>::namespaced(client, "default"), config)
        .default_backoff()
        .applied_objects();
    let mut stream = pin!(stream);
    let labelled = |name: &str| json!({"metadata": {"name": name, "labels": {"watched": "yes"}}});
    api.create(maps, &labelled("before")).await;
    let mut next = async || loop {
        let event = tokio::time::timeout(DEADLINE, stream.next()).await.expect("an event").expect("no end");
        if let Ok(map) = event {
            return map.metadata.name.unwrap();
        }
    };
    assert_eq!(next().await, "before");
    let port = server.address.port();
    let server = Server::start_in(server.stop().await).await;
    assert_eq!(server.address.port(), port, "the port is kept");
    server.api().await.create(maps, &labelled("after")).await;
    while next().await != "after" {}
    server.stop().await;
}
