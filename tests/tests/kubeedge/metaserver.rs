//! Requests of a KubeEdge edge's local API to its cloud (docs/reference/kubeedge.md#metaserver).

use std::time::Duration;

use serde_json::{Value, json};
use tombolo_tests::kubeedge::{KubeEdgeNode, application, application_result};
use tombolo_tests::world::World;
use tombolo_tests::world::objects::Objects;

pub(crate) async fn ask(
    node: &KubeEdgeNode,
    verb: &str,
    key: &str,
    option: Value,
    body: Option<Value>,
) -> Value {
    let record = application(&node.name, verb, key, &option, body.as_ref());
    let reply = node.ask_as("metaserver", "dynamiccontroller", "null", "null", record.clone()).await.unwrap();
    let route = &reply["route"];
    assert_eq!(
        (&route["source"], &route["group"], &route["operation"], &route["resource"]),
        (
            &json!("dynamiccontroller"),
            &json!("resource"),
            &json!("applicationResponse"),
            &json!("ignore/Application/ignore")
        )
    );
    assert_eq!((&reply["content"]["ID"], &reply["content"]["Key"]), (&record["ID"], &record["Key"]));
    reply["content"].clone()
}

pub(crate) async fn requests_are_calls_of_the_node(node: &KubeEdgeNode) {
    let none = || json!({});
    let own = ask(node, "get", "/core/v1/nodes/null/kubeedge-1", none(), None).await;
    assert_eq!(own["Status"], "Approved", "{own}");
    assert_eq!(application_result(&own).unwrap()["metadata"]["name"], "kubeedge-1");
    let version = ask(node, "get", "/version", none(), None).await;
    assert!(application_result(&version).unwrap()["major"].is_string());
    let groups = ask(node, "get", "/apis", none(), None).await;
    assert_eq!(application_result(&groups).unwrap()["kind"], "APIGroupList");
    let services = ask(node, "list", "/core/v1/services/null/null", json!({"limit": 500}), None).await;
    let services = application_result(&services).unwrap();
    let names = |item: &Value| item["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let services: Vec<String> = services["items"].as_array().unwrap().iter().map(names).collect();
    assert!(services.contains(&"kubernetes".to_owned()), "{services:?}");
    let mine = json!({"fieldSelector": "spec.nodeName=kubeedge-1"});
    let pods = ask(node, "list", "/core/v1/pods/null/null", mine, None).await;
    assert_eq!(application_result(&pods).unwrap()["kind"], "PodList", "{pods}");

    let config =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mw"}, "data": {"a": "1"}});
    let patch =
        json!({"Name": "x", "PatchType": "application/merge-patch+json", "Data": "e30=", "Options": {}});
    for (verb, key, option, body, code) in [
        ("create", "/core/v1/configmaps/default/null", none(), Some(config), 403),
        ("patch", "/core/v1/nodes/null/another", patch, None, 404),
        ("get", "/core/v1/secrets/default/another", none(), None, 403),
        ("list", "/nothing.example/v1/things/null/null", none(), None, 0),
        ("get", "/core/v1/nodes/null/null", none(), None, 400),
        ("update", "/core/v1/nodes/null/kubeedge-1", none(), None, 400),
        ("exec", "/core/v1/pods/default/x", none(), None, 400),
        ("watch", "/nothing.example/v1/things/null/null", none(), None, 0),
        ("watch", "/core/v1/secrets/null/null", none(), None, 403),
    ] {
        let refused = ask(node, verb, key, option, body).await;
        assert_eq!(refused["Status"], "Rejected", "{verb} {key}: {refused}");
        let status = &refused["Error"]["ErrStatus"];
        // The real API denies access without revealing that an object does not exist; the embedded one says that it
        // does not exist.
        assert!(code == 0 || status["code"] == code, "{verb} {key}: {status}");
        assert!(status["reason"].is_string() && status["message"].is_string(), "{verb} {key}: {status}");
    }
}

pub(crate) async fn watches_deliver_and_outlive_connections(
    world: &mut World,
    node: &mut KubeEdgeNode,
    objects: &Objects,
) {
    let list = || json!({"watch": true, "sendInitialEvents": true, "resourceVersionMatch": "NotOlderThan"});
    let slices = "/discovery.k8s.io/v1/endpointslices/null/null";
    let pods = "/core/v1/pods/shops/null";
    let selected = || json!({"watch": true, "fieldSelector": "spec.nodeName=kubeedge-1"});
    for (key, option) in [(slices, list()), ("/core/v1/services/null/null", list()), (pods, selected())] {
        let opened = ask(node, "watch", key, option, None).await;
        assert_eq!((&opened["Status"], &opened["RespBody"]), (&json!("Approved"), &Value::Null), "{opened}");
    }
    node.until("the services", |store| store.has("default/service/kubernetes")).await;
    let pushed = node.look(|store| {
        store.delivered.iter().rfind(|pushed| pushed.resource == "default/service/kubernetes").cloned()
    });
    let pushed = pushed.unwrap();
    assert_eq!(
        (&*pushed.operation, &pushed.message["route"]["source"]),
        ("insert", &json!("dynamiccontroller"))
    );
    if world.plane.is_some() {
        node.until("its own endpoint of the API server", |store| {
            let row = store.row("default/endpointslice/kubernetes");
            row.is_some_and(|row| row["endpoints"][0]["addresses"][0] == "127.0.0.1")
        })
        .await;
    }
    objects.accepted_pod("watched", "kubeedge-1", &[], &[]).await;
    node.until("the pod, both pushed and watched", |store| store.has("shops/pod/watched")).await;
    let opened = ask(node, "watch", "/core/v1/services/null/null", list(), None).await;
    assert_eq!(opened["Status"], "Approved", "the same watch a second time");

    node.disconnect();
    let service = json!({"metadata": {"name": "shop"}, "spec": {"ports": [{"port": 80}]}});
    objects.create_service(&service).await.unwrap();
    world.kill_cloud();
    world.start_cloud().await.unwrap();
    node.connect().await.unwrap();
    node.until("the changes that the watch missed", |store| store.has("shops/service/shop")).await;
    objects.remove_pod("watched").await.unwrap();
    node.until("the deletion of the pod", |store| !store.has("shops/pod/watched")).await;

    let none =
        node.ask_as("metaserver", "dynamiccontroller", "null", "watchapp/sync", json!({})).await.unwrap();
    assert_eq!((&none["content"], &none["route"]["resource"]), (&json!({}), &json!("watchapp/sync")));
    let unknown = application(&node.name, "watch", "/nothing.example/v1/things/null/null", &list(), None);
    let id = unknown["ID"].as_str().unwrap().to_owned();
    let sync = json!({id.clone(): unknown});
    let failed = node.ask_as("metaserver", "dynamiccontroller", "null", "watchapp/sync", sync).await.unwrap();
    assert_eq!(failed["content"][&id]["Status"], "Rejected", "{failed}");
    node.until_within(Duration::from_secs(5), "the services to be kept", |store| {
        store.has("default/service/kubernetes")
    })
    .await;
}
