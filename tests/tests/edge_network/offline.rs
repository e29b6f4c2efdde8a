//! Names while pods move, and while the cloud is down.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use hickory_proto::rr::RecordType;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tombolo_testkit::{cluster_or_skip, free_port, wait_for, wait_for_value};
use tombolo_tests::network::{CoreDns, Program, cannot};
use tombolo_tests::world::DEADLINE;
use tombolo_tests::world::objects::Objects;

use crate::ask::{Way, ask, leads_to};
use crate::cluster::{Cluster, NAMESPACE, NODE};
use crate::elsewhere::Elsewhere;

const UNIFORM: &str = "db-0.db.shop.svc.cluster.local";
const CLOSED: &str = "db.shop.svc.cluster.local";

/// Two addresses of this machine with port 53 that no other test on it uses; none if port 53 is not available.
fn own_addresses() -> Option<[SocketAddr; 2]> {
    let process = std::process::id().to_be_bytes();
    let address = |last: u8| SocketAddr::new(Ipv4Addr::new(127, process[2], process[3], last).into(), 53);
    let both = [address(53), address(54)];
    both.iter().all(|address| UdpSocket::bind(address).is_ok()).then_some(both)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_follow_pods_and_outlive_the_cloud_and_restarts() {
    const TEST: &str = "names_follow_pods_and_outlive_the_cloud_and_restarts";
    cluster_or_skip!(TEST);
    let elsewhere = Elsewhere::start().await.unwrap();
    let Some([dns, coredns_address]) = own_addresses() else {
        return cannot(TEST, "needs root: resolvers only use port 53");
    };
    let mut cluster = Cluster::start(dns, elsewhere.address).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut coredns =
        CoreDns::start(&cluster.coredns(coredns_address, elsewhere.address, true), folder.path()).unwrap();
    all_lead_to(&[dns, coredns_address], "10.1.0.10", "10.1.0.11").await;
    // A pod restarts with another address.
    let own = own_pod(&cluster, "db-a-0").await;
    let first = format!("10.1.0.10@edge-a=db-a-0#{own}");
    cluster.pods(&[&first, "10.1.0.11@edge-a=db-a-1", "10.2.0.10@node-b=db-b-0"]).await;
    let moved = first.replace("10.1.0.10", "10.1.0.15");
    cluster.pods(&[&moved, "10.1.0.11@edge-a=db-a-1", "10.2.0.10@node-b=db-b-0"]).await;
    all_lead_to(&[dns, coredns_address], "10.1.0.15", "10.1.0.11").await;

    // And again without a cloud, which alone could update its slice.
    cluster.world.kill_cloud();
    all_lead_to(&[dns, coredns_address], "10.1.0.15", "10.1.0.11").await;
    starts_anew(&cluster, "db-a-0", "10.1.0.12").await;
    all_lead_to(&[dns, coredns_address], "10.1.0.12", "10.1.0.11").await;
    resolves_as_a_pod_does(&[dns, coredns_address]).await;
    cluster.world.kill_edge(NODE);
    drop(coredns);
    cluster.world.start_edge(NODE).await.unwrap();
    coredns =
        CoreDns::start(&cluster.coredns(coredns_address, elsewhere.address, true), folder.path()).unwrap();
    all_lead_to(&[dns, coredns_address], "10.1.0.12", "10.1.0.11").await;
    resolves_as_a_pod_does(&[dns, coredns_address]).await;

    // The cloud is back, and its changes arrive.
    cluster.world.start_cloud().await.unwrap();
    cluster.client = cluster.world.client().await.unwrap();
    cluster.pods(&[&first.replace("10.1.0.10", "10.1.0.12"), "10.1.0.14@edge-a=db-a-1"]).await;
    all_lead_to(&[dns, coredns_address], "10.1.0.12", "10.1.0.14").await;
    starts_anew(&cluster, "db-a-0", "10.1.0.13").await;
    all_lead_to(&[dns, coredns_address], "10.1.0.13", "10.1.0.14").await;
    cluster.label(NODE, "b").await;
    for server in [dns, coredns_address] {
        leads_to(server, UNIFORM, &[]).await;
    }
    cluster.world.check_edge(NODE).unwrap();
    println!("{}", coredns.log());
}

/// Binds a pod to the node, and returns its UID once the node's local API has it.
async fn own_pod(cluster: &Cluster, name: &str) -> String {
    let objects = Objects::in_namespace(cluster.client.clone(), NAMESPACE).await.unwrap();
    objects.accepted_pod(name, NODE, &[], &[]).await;
    let here = objects.seen_by(cluster.world.edge_client(NODE).await.unwrap());
    wait_for_value("the pod on its node", DEADLINE, || async {
        let pod = here.pods().get(name).await.map_err(|error| error.to_string())?;
        pod.metadata.uid.ok_or_else(|| "no uid".to_owned())
    })
    .await
}

/// Reports at the node's local API what a kubelet reports for a pod that it has restarted.
async fn starts_anew(cluster: &Cluster, name: &str, address: &str) {
    let pods: Api<Pod> = Api::namespaced(cluster.world.impatient_edge_client(NODE).await.unwrap(), NAMESPACE);
    let status = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
    wait_for("the status to be accepted", DEADLINE, || async {
        let taken = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await;
        taken.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

async fn all_lead_to(servers: &[SocketAddr], first: &str, second: &str) {
    for server in servers {
        leads_to(*server, UNIFORM, &[first]).await;
        let mut both = [first, second];
        both.sort_unstable();
        leads_to(*server, CLOSED, &both).await;
    }
}

/// A program in a pod gets the same answers, with the resolver configuration that the kubelet writes.
async fn resolves_as_a_pod_does(servers: &[SocketAddr]) {
    for server in servers {
        let program = Program { network: None, namespace: NAMESPACE, nameserver: server.ip(), account: None };
        for (name, expected) in [
            ("db-0.db", "10.1.0.12"),
            ("db-1.db.shop", "10.1.0.11"),
            ("missing-0.db", ""),
            ("inner", "10.1.0.20"),
            ("www.example", "192.0.2.1"),
            ("missing.example", ""),
        ] {
            let expected: &[&str] = if expected.is_empty() { &[] } else { &[expected] };
            assert_eq!(program.resolve(name).unwrap(), expected, "{name} at {server}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsynced_agent_answers_no_nxdomain() {
    cluster_or_skip!("unsynced_agent_answers_no_nxdomain");
    let elsewhere = Elsewhere::start().await.unwrap();
    let dns: SocketAddr = format!("127.0.0.1:{}", free_port().unwrap()).parse().unwrap();
    let mut cluster = Cluster::start(dns, elsewhere.address).await.unwrap();
    leads_to(dns, UNIFORM, &["10.1.0.10"]).await;
    cluster.world.kill_edge(NODE);
    cluster.world.kill_cloud();
    // As after the loss of a disk: only the identity is left.
    for name in ["store.redb", "store.key"] {
        std::fs::remove_file(cluster.world.edge_dir(NODE).join(name)).unwrap();
    }
    cluster.world.start_edge(NODE).await.unwrap();
    leads_to(dns, "www.example", &["192.0.2.1"]).await;
    let said = ask(dns, "web.shop.svc.cluster.local", RecordType::A, Way::Udp).await.unwrap();
    assert_eq!(said.code, "Server Failure");
}
