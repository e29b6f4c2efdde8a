//! `cloudcore --config` with the file that KubeEdge cloudcore prints, and with the file that cloudcore itself prints,
//! as processes.

use std::process::Command;

use serde_json::{Value, json};
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::kubeedge::{KubeEdgeNode, Pace};
use tombolo_tests::world::{Api, DEADLINE, Transport, World, binary};

fn kubeedge() -> Value {
    serde_saphyr::from_str(include_str!("../../cloud/src/config/kubeedge/kubeedge-default.yaml")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_joins_a_cloudcore_with_the_file_of_kubeedge() {
    cluster_or_skip!("an_edge_joins_a_cloudcore_with_the_file_of_kubeedge");
    let mut world = World::start_with(Api::Real, Transport::WebSocket, kubeedge()).await.unwrap();
    world.start_edge("edge-1").await.unwrap();
    let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    wait_for("the node to be Ready", DEADLINE, async || {
        match world.kubectl(&["get", "node", "edge-1", "-o", path]) {
            Ok(status) if status == "True" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let mut kubeedge = KubeEdgeNode::join(&world, "edge-2").await.unwrap();
    kubeedge.connect().await.unwrap();
    let node = kubeedge.register().await.unwrap();
    assert_eq!(node["metadata"]["name"], "edge-2", "a KubeEdge edge is served as well");
    let log = world.cloud_log();
    for name in ["modules.cloudStream", "modules.iptablesManager", "kubeAPIConfig.qps"] {
        let lines = log.lines().filter(|line| line.contains("setting ignored") && line.contains(name));
        assert_eq!(lines.count(), 1, "{name} is listed once: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disabled_edge_controller_sends_nothing_and_refuses_reports() {
    let mut settings = kubeedge();
    settings["modules"]["edgeController"]["enable"] = json!(false);
    let mut world = World::start_with(Api::Embedded, Transport::WebSocket, settings).await.unwrap();
    world.start_edge("edge-1").await.unwrap();
    wait_for("the edge to receive a rejection of its reports", DEADLINE, async || {
        let log = world.edge_log("edge-1");
        if log.contains("edgeController.enable") { Ok(()) } else { Err(log) }
    })
    .await;
    let nodes = world.kubectl(&["get", "nodes", "-o", "name"]).unwrap();
    assert_eq!(nodes, "", "no node was registered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keepalive_interval_of_the_file_holds() {
    let mut settings = kubeedge();
    // Less than the 15 s between two keepalives; with KubeEdge's 30 s the session would continue.
    settings["modules"]["cloudHub"]["keepaliveInterval"] = json!(3);
    let world = World::start_with(Api::Embedded, Transport::WebSocket, settings).await.unwrap();
    let mut node = KubeEdgeNode::join(&world, "edge-1").await.unwrap();
    node.pace = Pace::KUBEEDGE;
    node.connect().await.unwrap();
    wait_for("a silent session to be ended", DEADLINE, async || {
        let log = world.cloud_log();
        if log.contains("session ended") { Ok(()) } else { Err(log) }
    })
    .await;
}

#[test]
fn the_printed_configurations_are_configurations() {
    for flag in ["--defaultconfig", "--minconfig"] {
        let output = Command::new(binary("cloudcore").unwrap()).arg(flag).output().unwrap();
        assert!(output.status.success(), "{flag}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(tombolo_cloud::Config::parse(&text).unwrap(), tombolo_cloud::Config::default(), "{flag}");
    }
}
