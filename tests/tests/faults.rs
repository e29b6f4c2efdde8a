//! Faults of what lies under and between cloudcore and edgecore: the API server, etcd, the link.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;
use tombolo_testkit::{cluster_or_skip, wait_for, wait_for_value};
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

/// A world with one edge that holds a pod, a ConfigMap and a Secret.
async fn settled(world: &mut World) -> Objects {
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    objects.config_map("settings", "1").await.unwrap();
    objects.secret("password", "1").await.unwrap();
    world.start_edge("edge-a").await.unwrap();
    objects.accepted_pod("shop", "edge-a", &["settings"], &["password"]).await;
    world.converges("edge-a").await;
    objects
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_restarts() {
    cluster_or_skip!("the_api_server_restarts");
    let mut world = World::start(Api::Real, Transport::WebSocket).await.unwrap();
    let objects = settled(&mut world).await;
    let plane = world.plane.as_mut().unwrap();
    plane.stop_api_server();
    plane.start_api_server().await.unwrap();
    objects.config_map("settings", "2").await.unwrap();
    world.converges("edge-a").await;
    let log = world.edge_log("edge-a");
    assert_eq!(
        log.matches("connected to the cloud").count(),
        1,
        "the session outlives the API server:\n{log}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_is_restored_from_an_older_snapshot() {
    cluster_or_skip!("etcd_is_restored_from_an_older_snapshot");
    let mut world = World::start(Api::Real, Transport::Quic).await.unwrap();
    let objects = settled(&mut world).await;
    let snapshot = world.plane.as_mut().unwrap().snapshot().unwrap();
    wait_for("a write after the snapshot", DEADLINE, || async {
        objects.config_map("settings", "newer").await.map_err(|error| format!("{error:#}"))
    })
    .await;
    world.converges("edge-a").await;
    world.plane.as_mut().unwrap().restore(snapshot.path()).await.unwrap();
    world.converges("edge-a").await;
    // Revisions of the restored history are below those that the edge has seen; its updates count all the same.
    objects.config_map("settings", "after").await.unwrap();
    objects.secret("password", "after").await.unwrap();
    world.converges("edge-a").await;
}

/// 1 MiB on a link of 64 KiB a second takes 16 s; the node renews its lease every second.
async fn a_large_object_does_not_delay_leases(api: Api, transport: Transport) {
    const RATE: u32 = 64 * 1024;
    const LONGEST_GAP: Duration = Duration::from_secs(5);
    let mut world = World::start(api, transport).await.unwrap();
    world.slow_down(RATE).await.unwrap();
    let objects = settled(&mut world).await;
    let leases: kube::Api<Lease> = kube::Api::namespaced(world.client().await.unwrap(), "kube-node-lease");
    let renewed = || async {
        let lease = leases.get("edge-a").await.map_err(|error| error.to_string())?;
        lease
            .spec
            .and_then(|spec| spec.renew_time)
            .map(|time| time.0)
            .ok_or_else(|| "no renewal yet".to_owned())
    };
    let mut last = wait_for_value("the first lease renewal", DEADLINE, renewed).await;
    objects.config_map("settings", &noise(1000 * 1024)).await.unwrap();

    let (mut heard, mut longest, mut renewals) = (Instant::now(), Duration::ZERO, 0);
    let began = Instant::now();
    while world.difference("edge-a").await.unwrap_or(Some(String::new())).is_some() {
        assert!(began.elapsed() < DEADLINE * 2, "1 MiB takes 16 s on this link; renewals seen: {renewals}");
        let now = renewed().await.unwrap();
        if now != last {
            (last, renewals) = (now, renewals + 1);
            longest = longest.max(heard.elapsed());
            heard = Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(began.elapsed() > Duration::from_secs(8), "the link was not slow: {:?}", began.elapsed());
    assert!(longest < LONGEST_GAP, "a lease renewal waited {longest:?}");
    assert!(renewals >= 5, "only {renewals} renewals in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_object_does_not_delay_leases_over_websocket() {
    a_large_object_does_not_delay_leases(Api::Embedded, Transport::WebSocket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_object_does_not_delay_leases_over_quic() {
    cluster_or_skip!("a_large_object_does_not_delay_leases_over_quic");
    a_large_object_does_not_delay_leases(Api::Real, Transport::Quic).await;
}

/// Text that does not compress.
fn noise(length: usize) -> String {
    use rand::Rng as _;
    let mut random = rand::rng();
    (0..length).map(|_| char::from(random.sample(rand::distr::Alphanumeric))).collect()
}
