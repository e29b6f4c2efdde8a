//! Faults of the components below and between cloudcore and edgecore: the API server, etcd, the link.

use std::fs;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;
use tokio::time::Instant;
use tombolo_testkit::{cluster_or_skip, wait_for, wait_for_value};
use tombolo_tests::world::objects::Objects;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

/// Nodes of a world, with their transports.
const NODES: [(&str, Transport); 2] = [("edge-a", Transport::WebSocket), ("edge-b", Transport::Quic)];

/// A world with an edge over each transport. Both edges hold a pod, a ConfigMap and a Secret.
async fn settled(world: &mut World) -> Objects {
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    objects.config_map("settings", "1").await.unwrap();
    objects.secret("password", "1").await.unwrap();
    for (node, transport) in NODES {
        world.set_transport(transport);
        world.start_edge(node).await.unwrap();
        objects.accepted_pod(&format!("shop-{node}"), node, &["settings"], &["password"]).await;
    }
    converge(world).await;
    objects
}

async fn converge(world: &World) {
    for (node, _) in NODES {
        world.converges(node).await;
    }
}

/// Writes while cloudcore and the API server may still be coming up.
async fn write(objects: &Objects, value: &str) {
    wait_for("writes to be accepted", DEADLINE, || async {
        objects.config_map("settings", value).await.map_err(|error| format!("{error:#}"))?;
        objects.secret("password", value).await.map_err(|error| format!("{error:#}"))
    })
    .await;
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
    converge(&world).await;
    for (node, _) in NODES {
        let log = world.edge_log(node);
        let sessions = log.matches("connected to the cloud").count();
        assert_eq!(sessions, 1, "the session of {node} outlives the API server:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_is_restored_from_an_older_snapshot() {
    cluster_or_skip!("etcd_is_restored_from_an_older_snapshot");
    let mut world = World::start(Api::Real, Transport::Quic).await.unwrap();
    let objects = settled(&mut world).await;
    let snapshot = world.plane.as_mut().unwrap().snapshot().unwrap();
    write(&objects, "newer").await;
    converge(&world).await;
    world.plane.as_mut().unwrap().restore(snapshot.path()).await.unwrap();
    converge(&world).await;
    // The restored history has lower revisions than those that the edge has seen; its updates are applied nevertheless.
    write(&objects, "after").await;
    converge(&world).await;

    // The same while no cloudcore is watching: only the file beside cloudcore shows that there was more.
    let before = generation(&world).await;
    witnessed(&world, &objects).await;
    world.kill_cloud();
    world.plane.as_mut().unwrap().restore(snapshot.path()).await.unwrap();
    world.start_cloud().await.unwrap();
    restored(&world, &objects, before, "1").await;

    // The same when all of cloudcore's data is lost: only the edges know. The record is the same in both histories.
    let before = generation(&world).await;
    let snapshot = world.plane.as_mut().unwrap().snapshot().unwrap();
    for number in 0..REVISIONS {
        write(&objects, &format!("newer {number}")).await;
    }
    attested(&mut world, &objects).await;
    world.kill_cloud();
    fs::remove_file(world.cloud_dir().join(WITNESS)).unwrap();
    world.plane.as_mut().unwrap().restore(snapshot.path()).await.unwrap();
    world.start_cloud().await.unwrap();
    restored(&world, &objects, before, "after").await;
}

/// Rounds of writes that an API server cannot catch up with by a start alone.
const REVISIONS: usize = 200;

/// Makes the edges know everything that was written until now: a cloudcore that starts informs them at once.
async fn attested(world: &mut World, objects: &Objects) {
    world.kill_cloud();
    world.start_cloud().await.unwrap();
    write(objects, "newest").await;
    converge(world).await;
}

/// Restoring a backup of the embedded server's folder brings back everything except the file that is not part of a
/// cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_server_is_restored_from_an_older_copy() {
    let mut world = World::start(Api::Embedded, Transport::Quic).await.unwrap();
    let objects = settled(&mut world).await;
    world.kill_cloud();
    let (data, copy) = (world.cloud_dir(), tempfile::tempdir().unwrap());
    copy_folder(&data, copy.path());
    fs::remove_file(copy.path().join(WITNESS)).unwrap();
    world.start_cloud().await.unwrap();
    write(&objects, "newer").await;
    converge(&world).await;

    let before = generation(&world).await;
    witnessed(&world, &objects).await;
    world.kill_cloud();
    let kept = fs::read(data.join(WITNESS)).unwrap();
    fs::remove_dir_all(&data).unwrap();
    copy_folder(copy.path(), &data);
    fs::write(data.join(WITNESS), kept).unwrap();
    world.start_cloud().await.unwrap();
    restored(&world, &objects, before, "1").await;

    // The same with only the edges' knowledge beside the copy.
    let before = generation(&world).await;
    attested(&mut world, &objects).await;
    world.kill_cloud();
    fs::remove_dir_all(&data).unwrap();
    copy_folder(copy.path(), &data);
    world.start_cloud().await.unwrap();
    restored(&world, &objects, before, "1").await;
}

/// File in which cloudcore stores the newest revision that it has seen.
const WITNESS: &str = "epoch.json";

/// Waits until that file contains the newest write.
async fn witnessed(world: &World, objects: &Objects) {
    let newest = objects.secrets().get("password").await.unwrap().metadata.resource_version.unwrap();
    let newest: u64 = newest.parse().unwrap();
    wait_for("the newest revision to be stored", DEADLINE, || async {
        let text = fs::read(world.cloud_dir().join(WITNESS)).map_err(|error| error.to_string())?;
        let seen: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        if seen["revision"].as_u64() >= Some(newest) { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
}

/// Generation of the epoch, from its record in the cluster.
async fn generation(world: &World) -> u64 {
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(world.client().await.unwrap(), "kubeedge");
    let record = maps.get("tombolo-epoch").await.unwrap();
    record.data.unwrap()["generation"].parse().unwrap()
}

/// Checks the state after a restore: a new epoch, the old state at every edge, and updates that are applied.
async fn restored(world: &World, objects: &Objects, before: u64, value: &str) {
    wait_for("a new epoch", DEADLINE, || async {
        if generation(world).await > before { Ok(()) } else { Err(world.cloud_log()) }
    })
    .await;
    let map = objects.config_maps().get("settings").await.unwrap();
    assert_eq!(map.data.unwrap()["value"], value, "the older state is back");
    converge(world).await;
    write(objects, "after").await;
    converge(world).await;
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            // Also the mode: cloudcore rejects keys that other users can read.
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// An agent that is not configured with a transport, behind a firewall that drops UDP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_whose_datagrams_disappear_uses_websocket() {
    let mut world = World::start(Api::Embedded, Transport::Quic).await.unwrap();
    world.swallow_datagrams().unwrap();
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    objects.config_map("settings", "1").await.unwrap();
    world.start_edge("edge-a").await.unwrap();
    objects.accepted_pod("shop", "edge-a", &["settings"], &[]).await;
    world.converges("edge-a").await;
    let log = world.edge_log("edge-a");
    assert!(log.contains("QUIC connection failed, using WebSocket"), "{log}");
    let cloud = world.cloud_log();
    let connected = cloud.lines().find(|line| line.contains("node connected")).unwrap_or_default();
    assert!(connected.contains("websocket"), "{cloud}");
}

/// The maximum size of a ConfigMap in bytes.
const LARGEST: usize = 1024 * 1024;

/// 1 MiB on a link of 64 KiB per second takes 16 s; each node renews its lease every second.
async fn a_large_object_does_not_delay_leases(api: Api) {
    const RATE: u32 = 64 * 1024;
    let mut world = World::start(api, Transport::WebSocket).await.unwrap();
    world.slow_down(RATE).await.unwrap();
    let objects = settled(&mut world).await;
    let leases: kube::Api<Lease> = kube::Api::namespaced(world.client().await.unwrap(), "kube-node-lease");
    for (node, _) in NODES {
        wait_for_value("the first lease renewal", DEADLINE, || renewed(&leases, node)).await;
    }
    objects.config_map("settings", &noise(LARGEST)).await.unwrap();
    let began = Instant::now();
    futures::future::join_all(NODES.map(|(node, transport)| {
        let (world, leases) = (&world, &leases);
        async move {
            let heard = lease_gaps(world, leases, node, began).await;
            let took = began.elapsed();
            assert!(took > Duration::from_secs(8), "{transport:?}: the link was not slow: {took:?}");
            assert!(heard.longest < LONGEST_GAP, "{transport:?}: a lease renewal waited: {heard:?}");
            assert!(heard.renewals >= 5, "{transport:?}: {heard:?} in {took:?}");
        }
    }))
    .await;
}

/// Longest acceptable time between renewals on a busy machine, for a node that renews once per second.
const LONGEST_GAP: Duration = Duration::from_secs(8);

/// Observed renewals of a lease.
#[derive(Debug)]
struct Heard {
    renewals: u32,
    /// Longest time without a renewal, including the time after the last one.
    longest: Duration,
}

/// Watches a lease until its node holds everything that it should.
async fn lease_gaps(world: &World, leases: &kube::Api<Lease>, node: &str, began: Instant) -> Heard {
    let mut last = renewed(leases, node).await.unwrap();
    let mut at = Instant::now();
    let mut heard = Heard { renewals: 0, longest: Duration::ZERO };
    while world.difference(node).await.unwrap_or(Some(String::new())).is_some() {
        assert!(began.elapsed() < DEADLINE * 2, "1 MiB takes 16 s on this link; {node}: {heard:?}");
        heard.longest = heard.longest.max(at.elapsed());
        let now = renewed(leases, node).await.unwrap();
        if now != last {
            (last, at) = (now, Instant::now());
            heard.renewals += 1;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    heard.longest = heard.longest.max(at.elapsed());
    heard
}

async fn renewed(leases: &kube::Api<Lease>, node: &str) -> Result<jiff::Timestamp, String> {
    let lease = leases.get(node).await.map_err(|error| error.to_string())?;
    let time = lease.spec.and_then(|spec| spec.renew_time);
    time.map(|time| time.0).ok_or_else(|| "no renewal yet".to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_object_does_not_delay_leases_of_the_embedded_server() {
    a_large_object_does_not_delay_leases(Api::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_object_does_not_delay_leases_of_kube_apiserver() {
    cluster_or_skip!("a_large_object_does_not_delay_leases_of_kube_apiserver");
    a_large_object_does_not_delay_leases(Api::Real).await;
}

/// Incompressible text.
fn noise(length: usize) -> String {
    use rand::{Rng as _, SeedableRng as _};
    let mut random = rand::rngs::StdRng::seed_from_u64(1);
    (0..length).map(|_| char::from(random.sample(rand::distr::Alphanumeric))).collect()
}
