//! A node's certificate over its life: renewed while it is valid, and renewed after it has expired while the node was
//! disconnected, by an agent and a cloudcore in processes of their own.

use std::fs;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::Api as Objects;
use kube::api::{DeleteParams, Patch, PatchParams};
use rcgen::{Issuer, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivateSec1KeyDer};
use serde_json::json;
use tombolo_cloud::bootstrap::identities::{SECRET_PREFIX, SHARDS};
use tombolo_edge::identity::Identity;
use tombolo_proto::NodeId;
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::pki::{issue, node_params};
use tombolo_tests::world::objects::Objects as Workload;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

const NODE: &str = "node-a";
const DAY: Duration = Duration::from_secs(86_400);

/// The agent's log line for a new session.
const CONNECTED: &str = "connected to the cloud";

fn present(world: &World) -> Identity {
    Identity::load(&world.edge_dir(NODE), &NodeId::parse(NODE).unwrap()).unwrap()
}

/// Replaces the node's certificate by one with other dates, signed by the cloud's authority for the node's existing
/// key.
async fn replace_certificate(world: &World, begin: SystemTime, end: SystemTime) {
    let secrets: Objects<Secret> = Objects::namespaced(world.client().await.unwrap(), "kubeedge");
    let mut ca = secrets.get("casecret").await.unwrap().data.unwrap();
    let certificate = CertificateDer::from(ca.remove("cadata").unwrap().0);
    let key = PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(ca.remove("cakeydata").unwrap().0));
    let key = KeyPair::from_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256).unwrap();
    let issuer = Issuer::from_ca_cert_der(&certificate, key).unwrap();
    let mut params = node_params(NODE);
    (params.not_before, params.not_after) = (begin.into(), end.into());
    let (leaf, key) = issue(&params, &issuer).unwrap();
    fs::write(world.edge_dir(NODE).join("pki/node.pem"), key + &leaf).unwrap();
    // No record has this certificate: it is accepted like those of a fleet from before there were records.
    for shard in 0..SHARDS {
        let nothing = Patch::Merge(json!({"data": null}));
        secrets.patch(&format!("{SECRET_PREFIX}-{shard}"), &PatchParams::default(), &nothing).await.unwrap();
    }
}

/// A stopped node that holds a pod.
async fn stopped(api: Api, transport: Transport) -> (World, Workload) {
    let mut world = World::start(api, transport).await.unwrap();
    world.start_edge(NODE).await.unwrap();
    let workload = Workload::new(world.client().await.unwrap()).await.unwrap();
    wait_for("the node to be registered", DEADLINE, || async {
        workload.nodes().get(NODE).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    workload.config_map("map", "1").await.unwrap();
    wait_for("the pod to be accepted", DEADLINE, || async {
        workload.pod("pod", NODE, &["map"], &[]).await.map(drop).map_err(|error| format!("{error:#}"))
    })
    .await;
    world.converges(NODE).await;
    world.kill_edge(NODE);
    // Over QUIC, the hub keeps the session of a killed node until it has been silent for long enough, and records the
    // certificate of each of its sessions.
    world.kill_cloud();
    world.start_cloud().await.unwrap();
    (world, workload)
}

/// Waits until the agent has a certificate that is valid for most of a year, keeps it, and works with it.
async fn renews(world: &World, workload: &Workload, sessions: usize) {
    wait_for("a new certificate", DEADLINE, || async {
        let (_, end) = present(world).validity().unwrap();
        let left = end.duration_since(SystemTime::now()).unwrap_or_default();
        if left > DAY * 300 { Ok(()) } else { Err(world.edge_log(NODE)) }
    })
    .await;
    wait_for("a session with the new certificate", DEADLINE, || async {
        let log = world.edge_log(NODE);
        let renewed = log.rfind("the node's certificate is renewed");
        let connected = log.rfind(CONNECTED);
        // The previous session may log its line after the renewal that ends it.
        let count = log.matches(CONNECTED).count();
        if connected > renewed && (sessions..=sessions + 1).contains(&count) { Ok(()) } else { Err(log) }
    })
    .await;
    workload.config_map("map", "2").await.unwrap();
    world.converges(NODE).await;
    assert_eq!(present(world).node().unwrap().as_str(), NODE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_in_its_last_days_is_renewed_and_the_session_moves_over() {
    let (mut world, workload) = stopped(Api::Embedded, Transport::WebSocket).await;
    let now = SystemTime::now();
    replace_certificate(&world, now - DAY * 360, now + DAY * 5).await;
    world.start_edge(NODE).await.unwrap();
    // One session before; one with the old certificate, unless the renewal was faster; and one with the new
    // certificate.
    wait_for("a new certificate", DEADLINE, || async {
        let log = world.edge_log(NODE);
        if log.contains("the node's certificate is renewed") { Ok(()) } else { Err(log) }
    })
    .await;
    let log = world.edge_log(NODE);
    let before = log[..log.find("the node's certificate is renewed").unwrap()].matches(CONNECTED).count();
    renews(&world, &workload, before + 1).await;
}

async fn an_ended_certificate_is_renewed(api: Api, transport: Transport) {
    let (mut world, workload) = stopped(api, transport).await;
    let now = SystemTime::now();
    replace_certificate(&world, now - DAY * 365, now - DAY * 3).await;
    world.start_edge(NODE).await.unwrap();
    renews(&world, &workload, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_that_expired_offline_is_renewed_with_its_key() {
    an_ended_certificate_is_renewed(Api::Embedded, Transport::Quic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_that_expired_offline_is_renewed_with_its_key_on_kube_apiserver() {
    cluster_or_skip!("certificate_that_expired_offline_is_renewed_with_its_key_on_kube_apiserver");
    an_ended_certificate_is_renewed(Api::Real, Transport::WebSocket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_renewal_says_what_to_do() {
    let (mut world, workload) = stopped(Api::Embedded, Transport::WebSocket).await;
    let now = SystemTime::now();
    replace_certificate(&world, now - DAY * 365, now - DAY * 40).await;
    world.start_edge(NODE).await.unwrap();
    logs(&world, &["beyond the grace period of 30 days", "run edgecore join with a new token", "retry_in"])
        .await;
    world.kill_edge(NODE);

    replace_certificate(&world, now - DAY * 365, now - DAY).await;
    let nodes: Objects<Node> = workload.nodes();
    nodes.delete(NODE, &DeleteParams::default()).await.unwrap();
    world.start_edge(NODE).await.unwrap();
    logs(&world, &["is no longer registered", "run edgecore join with a new token"]).await;
    world.kill_edge(NODE);

    world.kill_cloud();
    world.start_edge(NODE).await.unwrap();
    logs(&world, &["cannot reach the join endpoint", "check the setting cloud.join"]).await;
}

/// Waits until a line about the renewal in the agent's log contains all of these words.
async fn logs(world: &World, words: &[&str]) {
    wait_for(&format!("a line with {words:?}"), DEADLINE, || async {
        let log = world.edge_log(NODE);
        let said = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
        if said { Ok(()) } else { Err(log) }
    })
    .await;
}
