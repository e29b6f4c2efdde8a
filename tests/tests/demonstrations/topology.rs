//! Demonstration A: a Service that stays inside its unit.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use tombolo_testkit::cluster_or_skip;
use tombolo_tests::network::Switch;
use tombolo_tests::world::Api;

use crate::TURN;
use crate::site::{SERVICE, Site, switch_or_skip};

/// Waits until requests from each node are answered only by these nodes.
async fn answered(site: &Site, service: SocketAddr, expected: [&[&str]; 3]) {
    for (node, by) in site.nodes.iter().zip(expected) {
        let by: BTreeSet<String> = by.iter().map(|name| (*name).to_owned()).collect();
        site.answers(node, service, |answer| answer.node, &by).await;
    }
}

/// Two units, one of them with two nodes.
const UNITS: [&[&str]; 3] = [&["node0"], &["node1", "node2"], &["node1", "node2"]];

/// After node2 has moved to the unit of node0. Its pod has moved with it: labels are only evaluated when pods are
/// bound.
const MOVED: [&[&str]; 3] = [&["node0", "node2"], &["node1"], &["node0", "node2"]];

async fn play(api: Api, switch: Switch) {
    let labels = ["zone1=nodeunit1", "zone1=nodeunit2", "zone1=nodeunit2"];
    let mut site = Site::start(api, switch, &labels).await.unwrap();
    // A pod that is bound while the second node of its unit is not ready yet stays on the first node permanently.
    site.prints(&["get", "nodes", "-o=jsonpath={.items[*].spec.taints}"], "").await;
    site.apply_example("topology.yaml").await;
    for child in ["deployment/echo-nodeunit1", "deployment/echo-nodeunit2"] {
        site.prints(&["get", child, "-o=jsonpath={.status.readyReplicas}"], "2").await;
    }
    let pods = site.items(&["pods", "-l", "appGrid=echo"]).await;
    let mut nodes: Vec<&str> = pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["node0", "node0", "node1", "node2"]);
    let service = site.one_service("zone1").await;
    answered(&site, service, UNITS).await;

    site.done(&["label", "node", "node2", "zone1=nodeunit1", "--overwrite"]).await;
    answered(&site, service, MOVED).await;
    others_edit_the_children(&site).await;
    answered(&site, service, MOVED).await;

    site.world.kill_cloud();
    answered(&site, service, MOVED).await;
    site.restart_nodes().await.unwrap();
    answered(&site, service, MOVED).await;

    // The edges receive the changes that happened meanwhile.
    site.world.start_cloud().await.unwrap();
    site.done(&["label", "node", "node2", "zone1=nodeunit2", "--overwrite"]).await;
    answered(&site, service, UNITS).await;
    site.world.check_cloud().unwrap();
    for number in 0..3 {
        let node = site.nodes[number].name.clone();
        site.world.check_edge(&node).unwrap();
    }
}

/// Opens the Service and lets a Deployment run anywhere; the controllers restore both.
async fn others_edit_the_children(site: &Site) {
    site.done(&["annotate", "service", SERVICE, "topologyKeys-"]).await;
    let keys = ["get", "service", SERVICE, "-o=jsonpath={.metadata.annotations.topologyKeys}"];
    site.prints(&keys, r#"["zone1"]"#).await;
    let child = "deployment/echo-nodeunit1";
    let elsewhere = r#"{"spec":{"template":{"spec":{"nodeSelector":{"zone1":"nodeunit2"}}}}}"#;
    site.done(&["patch", child, "--type=merge", "-p", elsewhere]).await;
    let selector = ["get", child, "-o=jsonpath={.spec.template.spec.nodeSelector}"];
    site.prints(&selector, r#"{"zone1":"nodeunit1"}"#).await;
    let observed = site.world.kubectl(&["get", child, "-o=jsonpath={.metadata.generation}"]).unwrap();
    let status = "-o=jsonpath={.status.observedGeneration} {.status.updatedReplicas}/{.status.replicas}";
    site.prints(&["get", child, status], &format!("{} 2/2", observed.trim())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_stay_inside_their_unit_with_kube_apiserver() {
    const TEST: &str = "requests_stay_inside_their_unit_with_kube_apiserver";
    cluster_or_skip!(TEST);
    let _turn = TURN.lock().await;
    if let Some(switch) = switch_or_skip(TEST) {
        play(Api::Real, switch).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_stay_inside_their_unit_with_the_embedded_server() {
    const TEST: &str = "requests_stay_inside_their_unit_with_the_embedded_server";
    cluster_or_skip!(TEST);
    let _turn = TURN.lock().await;
    if let Some(switch) = switch_or_skip(TEST) {
        play(Api::Embedded, switch).await;
    }
}
