//! Reads and writes of stock clients at an edge's local API, beyond the objects that its pods refer to: with the cloud,
//! without it, after restarts without it, and when the cloud is back.

use serde_json::{Value, json};
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, DEADLINE, Transport, World, kubectl};

const NODE: &str = "edge-a";
const NAMESPACE: &str = "shop";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_quic() {
    play(Api::Embedded, Transport::Quic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_websocket() {
    cluster_or_skip!("real_websocket");
    play(Api::Real, Transport::WebSocket).await;
}

async fn play(api: Api, transport: Transport) {
    let mut world = World::start(api, transport).await.unwrap();
    let objects = Objects::in_namespace(world.client().await.unwrap(), NAMESPACE).await.unwrap();
    objects.create_service(&service("web")).await.unwrap();
    world.start_edge(NODE).await.unwrap();
    let edge = world.edge_kubeconfig(NODE).unwrap();
    let ask = |arguments: &[&str]| kubectl(&edge, arguments);

    services(&edge, &["web"]).await;
    objects.create_service(&service("db")).await.unwrap();
    services(&edge, &["db", "web"]).await;
    let one: Value =
        serde_json::from_str(&ask(&["-n", NAMESPACE, "get", "service", "web", "-o", "json"]).unwrap())
            .unwrap();
    assert_eq!(one["spec"]["ports"][0]["port"], 80);
    for (kind, name) in [("nodes", NODE), ("namespaces", NAMESPACE)] {
        wait_for(&format!("{name} among the {kind}"), DEADLINE, || async {
            let names = ask(&["get", kind, "-o", "name"]).map_err(|error| error.to_string())?;
            if names.contains(name) { Ok(()) } else { Err(names) }
        })
        .await;
    }
    // Objects that were never requested arrive when they are requested.
    wait_for("Endpoints, which are followed on demand", DEADLINE, || async {
        ask(&["get", "endpoints", "-A"]).map(drop).map_err(|error| error.to_string())
    })
    .await;
    // The rights are those of the node.
    for arguments in [
        &["-n", NAMESPACE, "get", "deployments"][..],
        &["-n", NAMESPACE, "create", "configmap", "mine"],
        &["-n", NAMESPACE, "delete", "service", "web"],
    ] {
        let refused = ask(arguments).unwrap_err().to_string();
        assert!(refused.contains("Forbidden") || refused.contains("forbidden"), "{arguments:?}: {refused}");
    }

    world.kill_cloud();
    let listed = ask(&["-n", NAMESPACE, "get", "services", "-o", "name"]).unwrap();
    assert_eq!(listed.lines().count(), 2, "{listed}");
    world.kill_edge(NODE);
    world.start_edge(NODE).await.unwrap();
    services(&edge, &["db", "web"]).await;
    assert!(ask(&["get", "endpoints", "-A"]).is_ok(), "what was followed once is available offline");
    let unknown = ask(&["-n", NAMESPACE, "get", "leases"]).unwrap_err().to_string();
    assert!(unknown.contains("never synced"), "{unknown}");

    world.start_cloud().await.unwrap();
    wait_for("a change after the cloud is back", DEADLINE, || async {
        objects.create_service(&service("late")).await.map_err(|error| error.to_string())
    })
    .await;
    services(&edge, &["db", "late", "web"]).await;
    world.check_cloud().unwrap();
    world.check_edge(NODE).unwrap();
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]}
    })
}

/// Waits until the edge lists exactly these Services in the namespace.
async fn services(edge: &std::path::Path, names: &[&str]) {
    wait_for(&format!("Services {names:?}"), DEADLINE, || async {
        let listed = kubectl(edge, &["-n", NAMESPACE, "get", "services", "-o", "name"]);
        let listed = listed.map_err(|error| error.to_string())?;
        let found: Vec<&str> = listed.lines().filter_map(|line| line.strip_prefix("service/")).collect();
        if found == names { Ok(()) } else { Err(listed) }
    })
    .await;
}
