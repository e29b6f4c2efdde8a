//! Recorded traffic against a running cloudcore, with a real kube-apiserver and its controllers.

use tombolo_cli::replay::{ReplayTarget, play_edge};
use tombolo_testkit::cluster_or_skip;
use tombolo_tests::world::{Api, Transport, World};

use crate::transcript;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_edges_meet_a_cloudcore_on_a_real_cluster() {
    cluster_or_skip!("recorded_edges_meet_a_cloudcore_on_a_real_cluster");
    let world = World::start(Api::Real, Transport::WebSocket).await.unwrap();
    let [websocket, quic, join] = world.hub_ports().map(|port| format!("127.0.0.1:{port}"));
    for name in ["kubeedge-metaserver.jsonl", "kubeedge-join-run-offline.jsonl"] {
        let transcript = transcript(name);
        let target = ReplayTarget::given(&websocket, Some(&quic), &join, &world.kubeconfig()).await.unwrap();
        let run = play_edge(&transcript, &target).await.unwrap();
        let preconditions = run.preconditions;
        let summary = run.outcome.unwrap_or_else(|difference| panic!("{name}: {difference}"));
        println!("{name}: {preconditions:#?} {summary:?}");
        assert!(summary.matched > 30, "{summary:?}");
    }
}
