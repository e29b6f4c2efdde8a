//! Stock kube-proxy on the wrapper: its rules lead only to the pods of this node's unit.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::json;
use tombolo_testkit::{Child, cluster_or_skip, free_port, wait_for};
use tombolo_tests::network::{NEEDS, Namespace, cannot, start_kube_proxy};
use tombolo_tests::world::DEADLINE;

use crate::cluster::{Cluster, NODE};
use crate::elsewhere::Elsewhere;

/// The targets of the rules, by `NAMESPACE/SERVICE:PORT`.
fn endpoints(rules: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in rules.lines().filter(|line| line.contains("-j DNAT")) {
        let service = line.split("--comment ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let target = line.split("--to-destination ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let (service, target) = service.zip(target).unwrap_or_else(|| panic!("{line}"));
        found.entry(service.trim_matches('"').to_owned()).or_default().push(target.to_owned());
    }
    found.values_mut().for_each(|targets| targets.sort());
    found
}

struct Rules<'a> {
    namespace: &'a Namespace,
}

impl Rules<'_> {
    /// Waits until the Services of the namespace lead to exactly these targets.
    async fn are(&self, proxy: &Child, expected: &[(&str, &[&str])]) {
        wait_for(&format!("rules {expected:?}"), DEADLINE, || async {
            let mut found = endpoints(&self.namespace.rules().map_err(|error| error.to_string())?);
            found.retain(|service, _| service.starts_with("shop/"));
            let wanted: BTreeMap<String, Vec<String>> = expected
                .iter()
                .map(|(service, targets)| {
                    ((*service).to_owned(), targets.iter().map(|target| (*target).to_owned()).collect())
                })
                .collect();
            if found == wanted { Ok(()) } else { Err(format!("{found:?}\n{}", proxy.log_tail(20))) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kube_proxy_sends_requests_to_pods_of_this_unit() {
    const TEST: &str = "kube_proxy_sends_requests_to_pods_of_this_unit";
    cluster_or_skip!(TEST);
    let mut namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return cannot(TEST, &format!("{NEEDS}: {error:#}")),
    };
    let elsewhere = Elsewhere::start().await.unwrap();
    let dns: SocketAddr = format!("127.0.0.1:{}", free_port().unwrap()).parse().unwrap();
    let mut cluster = Cluster::start(dns, elsewhere.address).await.unwrap();
    let api = namespace.let_reach(cluster.wrapper, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut proxy = start_kube_proxy(&cluster.world, NODE, &namespace, folder.path(), Some(api)).unwrap();
    let rules = Rules { namespace: &namespace };
    const PLAIN: (&str, &[&str]) = ("shop/plain:http", &["10.1.0.2:8080", "10.2.0.2:8080"]);
    rules.are(&proxy, &[PLAIN, ("shop/web:http", &["10.1.0.1:8080"])]).await;

    // Pods are created and deleted.
    cluster
        .slice("web", 8080, &["10.1.0.1@edge-a", "10.1.0.5@edge-a", "10.2.0.1@node-b", "10.2.0.5@node-b"])
        .await;
    rules.are(&proxy, &[PLAIN, ("shop/web:http", &["10.1.0.1:8080", "10.1.0.5:8080"])]).await;
    // The node moves to another unit and back; nothing else changes.
    cluster.label(NODE, "b").await;
    rules
        .are(
            &proxy,
            &[
                PLAIN,
                ("shop/web:http", &["10.1.0.1:8080", "10.1.0.5:8080", "10.2.0.1:8080", "10.2.0.5:8080"]),
            ],
        )
        .await;
    cluster.label("node-b", "c").await;
    rules.are(&proxy, &[PLAIN, ("shop/web:http", &["10.1.0.1:8080", "10.1.0.5:8080"])]).await;

    let here: &[(&str, &[&str])] = &[PLAIN, ("shop/web:http", &["10.1.0.1:8080", "10.1.0.5:8080"])];
    cluster.world.kill_cloud();
    rules.are(&proxy, here).await;
    // Everything on the node restarts without a cloud, and the rules are lost, as after a reboot.
    cluster.world.kill_edge(NODE);
    proxy.kill();
    namespace.flush_rules().unwrap();
    assert_eq!(endpoints(&namespace.rules().unwrap()), BTreeMap::new());
    cluster.world.start_edge(NODE).await.unwrap();
    let mut proxy = start_kube_proxy(&cluster.world, NODE, &namespace, folder.path(), Some(api)).unwrap();
    rules.are(&proxy, here).await;

    // Another client opens a Service while kube-proxy is running.
    cluster.world.start_cloud().await.unwrap();
    cluster.client = cluster.world.client().await.unwrap();
    let ports = json!([{"name": "http", "port": 80}, {"name": "metrics", "port": 9100}]);
    cluster.service("web", json!({}), json!({}), json!({"ports": ports})).await;
    rules
        .are(
            &proxy,
            &[
                PLAIN,
                ("shop/web:http", &["10.1.0.1:8080", "10.1.0.5:8080", "10.2.0.1:8080", "10.2.0.5:8080"]),
            ],
        )
        .await;
    proxy.check_running().unwrap();
    cluster.world.check_edge(NODE).unwrap();
}
