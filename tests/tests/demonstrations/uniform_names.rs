//! Demonstration B: the same names in every unit.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::network::Switch;
use tombolo_tests::world::{Api, DEADLINE};

use crate::TURN;
use crate::node::{Answer, COREDNS, Node, OWN_DNS};
use crate::site::{SERVICE, Site, switch_or_skip};

const PODS: usize = 3;

async fn play(api: Api, switch: Switch) {
    let labels = ["zone=zone-0", "zone=zone-1", "zone=zone-2"];
    let mut site = Site::start(api, switch, &labels).await.unwrap();
    for node in &mut site.nodes {
        node.start_coredns(&site.world).unwrap();
    }
    site.apply_example("uniform-names.yaml").await;
    three_stateful_sets(&site).await;
    let service = site.one_service("zone").await;
    for (unit, node) in site.nodes.iter().enumerate() {
        let all = |pod| Answer { node: node.name.clone(), pod: pod_name(unit, pod) };
        let expected: BTreeSet<Answer> = (0..PODS).map(all).collect();
        site.answers(node, service, |answer| answer, &expected).await;
    }
    nine_names(&site).await;
    the_grid_comes_again(&site).await;
    nine_names(&site).await;

    the_service_becomes_headless(&site).await;
    for unit in 0..site.nodes.len() {
        leads_to_the_ready_pods_of_the_unit(&site, unit, &[0, 1, 2]).await;
    }
    nine_names(&site).await;
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}).to_string();
    let pod = pod_name(0, 1);
    site.done(&["patch", "pod", &pod, "--subresource=status", "-p", &not_ready]).await;
    leads_to_the_ready_pods_of_the_unit(&site, 0, &[0, 2]).await;

    site.world.kill_cloud();
    site.restart_nodes().await.unwrap();
    leads_to_the_ready_pods_of_the_unit(&site, 0, &[0, 2]).await;
    for unit in 1..site.nodes.len() {
        leads_to_the_ready_pods_of_the_unit(&site, unit, &[0, 1, 2]).await;
        for pod in 0..PODS {
            leads_to(&site.nodes[unit], unit, pod).await;
        }
    }
}

fn pod_name(unit: usize, pod: usize) -> String {
    format!("statefulsetgrid-demo-zone-{unit}-{pod}")
}

async fn three_stateful_sets(site: &Site) {
    for unit in 0..site.nodes.len() {
        let child = format!("statefulset/statefulsetgrid-demo-zone-{unit}");
        let ready = "-o=jsonpath={.status.readyReplicas}/{.spec.replicas}";
        site.prints(&["get", &child, ready], "3/3").await;
    }
    let listed = site.done(&["get", "ssg", "--no-headers"]).await;
    assert_eq!(listed.split_whitespace().next(), Some("statefulsetgrid-demo"), "{listed}");
    assert_eq!(listed.lines().count(), 1, "{listed}");
    let sets = site.items(&["statefulsets"]).await;
    let names: Vec<&str> = sets.iter().filter_map(|set| set["metadata"]["name"].as_str()).collect();
    assert_eq!(
        names,
        ["statefulsetgrid-demo-zone-0", "statefulsetgrid-demo-zone-1", "statefulsetgrid-demo-zone-2"]
    );
    for (unit, set) in sets.iter().enumerate() {
        let pod = &set["spec"]["template"]["spec"];
        assert_eq!(pod["nodeSelector"], json!({"zone": format!("zone-{unit}")}));
        assert_eq!(pod["terminationGracePeriodSeconds"], 10);
        assert_eq!(set["spec"]["serviceName"], SERVICE);
        assert_eq!(pod["containers"][0]["resources"], json!({}));
        let variables = pod["containers"][0]["env"].as_array().unwrap();
        let names: Vec<&Value> = variables.iter().map(|variable| &variable["name"]).collect();
        assert_eq!(names, ["NODE_NAME", "POD_NAME", "POD_NAMESPACE", "POD_IP"]);
    }
}

/// UIDs of the ready pods.
async fn ready_pods(site: &Site) -> BTreeSet<String> {
    let mut pods = site.items(&["pods", "-l", "appGrid=echo"]).await;
    pods.retain(|pod| {
        let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    });
    pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str().map(str::to_owned)).collect()
}

/// Deletes the grid of the pods and creates it again at once: its children and their pods are deleted, and others get
/// their names.
async fn the_grid_comes_again(site: &Site) {
    let before = ready_pods(site).await;
    site.done(&["delete", "statefulsetgrid", "statefulsetgrid-demo"]).await;
    site.apply_example("uniform-names.yaml").await;
    wait_for("nine other pods", DEADLINE, || async {
        let now = ready_pods(site).await;
        if now.len() == 9 && now.is_disjoint(&before) { Ok(()) } else { Err(format!("{before:?} {now:?}")) }
    })
    .await;
    three_stateful_sets(site).await;
}

/// Checks all nine combinations of unit and pod, with both DNS servers.
async fn nine_names(site: &Site) {
    for (unit, node) in site.nodes.iter().enumerate() {
        for pod in 0..PODS {
            leads_to(node, unit, pod).await;
        }
    }
}

/// A program in a pod of the unit resolves a uniform name to the pod of its own unit.
async fn leads_to(node: &Node, unit: usize, pod: usize) {
    let short = format!("statefulsetgrid-demo-{pod}.{SERVICE}");
    let expected = Answer { node: node.name.clone(), pod: pod_name(unit, pod) };
    for server in [COREDNS, OWN_DNS] {
        for name in [format!("{short}.default.svc.cluster.local"), short.clone()] {
            wait_for(&format!("{name} on {} to lead to {expected:?}", node.name), DEADLINE, || async {
                let found = node.pod(server).resolve(&name).map_err(|error| format!("{error:#}"))?;
                let [address] = &found[..] else { return Err(format!("{found:?}\n{}", node.log())) };
                let address: IpAddr = address.parse().map_err(|_| address.clone())?;
                let answer = node.ask(SocketAddr::new(address, 8080)).await;
                match answer.map_err(|error| format!("{error:#}"))? {
                    answer if answer == expected => Ok(()),
                    answer => Err(format!("{answer:?}")),
                }
            })
            .await;
        }
    }
}

/// An existing Service cannot become headless, and the grid reports that. The Service is deleted and recreated at once.
async fn the_service_becomes_headless(site: &Site) {
    let headless = r#"{"spec":{"template":{"clusterIP":"None"}}}"#;
    site.done(&["patch", "servicegrid", "servicegrid-demo", "--type=merge", "-p", headless]).await;
    let reason = r#"-o=jsonpath={.status.conditions[?(@.type=="Synced")].reason}"#;
    site.prints(&["get", "servicegrid", "servicegrid-demo", reason], "Invalid").await;
    let text = site.done(&["get", "servicegrid", "servicegrid-demo", "-o=json"]).await;
    let mut grid: Value = serde_json::from_str(&text).unwrap();
    grid["metadata"] = json!({"name": "servicegrid-demo", "namespace": "default"});
    grid["status"] = json!({});
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("headless.json");
    std::fs::write(&manifest, grid.to_string()).unwrap();
    site.done(&["delete", "servicegrid", "servicegrid-demo"]).await;
    site.done(&["create", "-f", manifest.to_str().unwrap()]).await;
    let address = ["get", "service", SERVICE, "-o=jsonpath={.spec.clusterIP}"];
    site.prints(&address, "None").await;
    // The Service does not change when the template no longer states the field, as with `kubectl apply`.
    let silent = r#"{"spec":{"template":{"clusterIP":null}}}"#;
    site.done(&["patch", "servicegrid", "servicegrid-demo", "--type=merge", "-p", silent]).await;
    let of_synced = |field: &str| format!(r#"{{.status.conditions[?(@.type=="Synced")].{field}}}"#);
    let synced = format!("-o=jsonpath={} {}", of_synced("observedGeneration"), of_synced("status"));
    site.prints(&["get", "servicegrid", "servicegrid-demo", &synced], "2 True").await;
    site.prints(&address, "None").await;
}

/// The Service's name resolves only to the ready pods in the unit of the node that sends the query, with both DNS
/// servers.
async fn leads_to_the_ready_pods_of_the_unit(site: &Site, unit: usize, pods: &[usize]) {
    let node = &site.nodes[unit];
    let name = format!("{SERVICE}.default.svc.cluster.local");
    let expected: BTreeSet<Answer> =
        pods.iter().map(|pod| Answer { node: node.name.clone(), pod: pod_name(unit, *pod) }).collect();
    for server in [COREDNS, OWN_DNS] {
        wait_for(&format!("{name} on {} to lead to {expected:?}", node.name), DEADLINE, || async {
            let found = node.pod(server).resolve(&name).map_err(|error| format!("{error:#}"))?;
            let mut answers = BTreeSet::new();
            for address in &found {
                let address: IpAddr = address.parse().map_err(|_| address.clone())?;
                let answer = node.ask(SocketAddr::new(address, 8080)).await;
                answers.insert(answer.map_err(|error| format!("{error:#}"))?);
            }
            if answers == expected { Ok(()) } else { Err(format!("{answers:?}\n{}", node.log())) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_unit_has_the_same_names_with_kube_apiserver() {
    const TEST: &str = "every_unit_has_the_same_names_with_kube_apiserver";
    cluster_or_skip!(TEST);
    let _turn = TURN.lock().await;
    if let Some(switch) = switch_or_skip(TEST) {
        play(Api::Real, switch).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_unit_has_the_same_names_with_the_embedded_server() {
    const TEST: &str = "every_unit_has_the_same_names_with_the_embedded_server";
    cluster_or_skip!(TEST);
    let _turn = TURN.lock().await;
    if let Some(switch) = switch_or_skip(TEST) {
        play(Api::Embedded, switch).await;
    }
}
