//! Two machines with the same disk image.

use tombolo_testkit::wait_for;
use tombolo_tests::kubeedge::KubeEdgeNode;
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_kubeedge_edges_with_one_identity_are_detected_and_slowed_down() {
    let world = World::start(Api::Embedded, Transport::WebSocket).await.unwrap();
    let mut node = KubeEdgeNode::join(&world, "edge-1").await.unwrap();
    node.connect().await.unwrap();
    node.register().await.unwrap();
    // A machine that reconnects after a while proves nothing.
    node.disconnect();
    node.connect().await.unwrap();
    node.until("the second connection", |store| store.connections == 2).await;
    let contested = "tombolo_cloud_identities_contested_total";
    assert_eq!(world.cloud_metric(contested).await.unwrap(), 0.0);

    let mut twin = node.twin();
    twin.connect().await.unwrap();
    let events =
        ["get", "events", "-n", "default", "--field-selector=reason=IdentityUsedTwice", "-o", "name"];
    wait_for("the event", DEADLINE, async || match world.kubectl(&events) {
        Ok(found) if found.lines().count() == 1 => Ok(()),
        other => Err(format!("{other:?}: {}", world.cloud_log())),
    })
    .await;
    // The first machine keeps dialling, and the second one stays connected.
    wait_for("a refusal", DEADLINE, async || {
        match world.cloud_metric("tombolo_cloud_refused_connections_total").await {
            Ok(refused) if refused >= 2.0 => Ok(()),
            other => Err(format!("{other:?}: {}", world.cloud_log())),
        }
    })
    .await;
    assert_eq!(world.cloud_metric(contested).await.unwrap(), 1.0);
    assert_eq!(twin.look(|store| (store.connections, store.connected)), (1, true));
}
